#include "coordinator/service/state_rpcs.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/service/retry_later.h"
#include "coordinator/service/status_conversion.h"

namespace sparsebalance {
namespace {

constexpr absl::Duration kRetry = absl::Seconds(5);

absl::Status Busy(absl::string_view why) {
  return RetryLater(absl::StatusCode::kResourceExhausted, std::string(why), kRetry);
}

}  // namespace

absl::Status StateRpcs::Begin() {
  absl::MutexLock lock(&mutex_);
  if (closing_) return absl::UnavailableError("the coordinator is shutting down");
  if (busy_) return Busy("another backup or restore is under way; try again when it has ended");
  busy_ = true;
  return absl::OkStatus();
}

void StateRpcs::End() {
  absl::MutexLock lock(&mutex_);
  busy_ = false;
}

bool StateRpcs::closing() {
  absl::MutexLock lock(&mutex_);
  return closing_;
}

void StateRpcs::Shutdown() {
  absl::MutexLock lock(&mutex_);
  closing_ = true;
}

bool StateRpcs::RunInBackground(PlanExecutor::Task work) {
  const PlanExecutor::FlowId flow = parts_.background->NewFlow();
  const bool taken = parts_.background->TrySubmit(flow, std::move(work));
  parts_.background->EndFlow(flow);
  return taken;
}

// A background thread reads the store and waits for each write to be taken; it touches the call no
// more once it has called Finish.
class StateRpcs::ExportCall : public grpc::ServerWriteReactor<v1::StateRecord> {
 public:
  explicit ExportCall(StateRpcs* rpcs) : rpcs_(rpcs) {}

  void Start(const v1::ExportStateRequest& request) {
    began_ = true;
    if (!rpcs_->RunInBackground([this, ns = request.namespace_()] { Run(ns); })) {
      FinishWith(Busy("the coordinator is too busy for a backup; try again"));
    }
  }

  void FinishWith(const absl::Status& status) {
    const grpc::Status answer = ToGrpcStatus(status);
    rpcs_->parts_.observer("ExportState", answer.error_code());
    if (began_) rpcs_->End();
    Finish(answer);
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    gone_ |= !ok;
  }
  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    gone_ = true;
  }
  void OnDone() override { delete this; }

 private:
  void Run(const std::string& ns) {
    rpcs_->parts_.registry->WriteKnowledge();
    absl::Status status = rpcs_->parts_.writer->Flush();
    if (status.ok()) {
      ExportOptions options;
      options.ns = ns;
      options.version = rpcs_->parts_.version;
      options.leader_epoch = rpcs_->parts_.registry->HighestEpoch();
      options.now = absl::Now();
      status = ExportState(*rpcs_->parts_.store, options,
                           [this](const v1::StateRecord& record) { return Put(record); });
    }
    if (rpcs_->closing()) status = absl::UnavailableError("the coordinator is shutting down");
    FinishWith(status);
  }

  // Waits until the record before this one was taken.
  bool Put(const v1::StateRecord& record) {
    if (!WaitUntilWritten() || rpcs_->closing()) return false;
    record_ = record;
    {
      absl::MutexLock lock(&mutex_);
      writing_ = true;
    }
    StartWrite(&record_);
    return WaitUntilWritten();
  }

  bool WaitUntilWritten() {
    absl::MutexLock lock(&mutex_);
    const auto written = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !writing_; };
    mutex_.Await(absl::Condition(&written));
    return !gone_;
  }

  StateRpcs* const rpcs_;
  bool began_ = false;
  v1::StateRecord record_;
  absl::Mutex mutex_;
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool gone_ ABSL_GUARDED_BY(mutex_) = false;
};

grpc::ServerWriteReactor<v1::StateRecord>* StateRpcs::Export(const v1::ExportStateRequest& request,
                                                             const absl::Status& allowed) {
  auto* call = new ExportCall(this);
  absl::Status status = allowed;
  if (status.ok()) status = Begin();
  if (status.ok()) {
    call->Start(request);
  } else {
    call->FinishWith(status);
  }
  return call;
}

// Records are taken in on a background thread, one after the other: a job may have to wait for the
// store.
class StateRpcs::ImportCall : public grpc::ServerReadReactor<v1::ImportStateRequest> {
 public:
  ImportCall(StateRpcs* rpcs, v1::ImportStateResponse* response)
      : rpcs_(rpcs),
        response_(response),
        importer_({[this](const v1::LatencyProfile& profile) { return TakeProfile(profile); },
                   [this](JobSeed job, uint64_t above) {
                     return rpcs_->parts_.registry->ImportJob(std::move(job), above, replace_);
                   }}) {}

  void Start() {
    began_ = true;
    StartRead(&request_);
  }

  void FinishWith(const absl::Status& status) {
    const grpc::Status answer = ToGrpcStatus(status);
    rpcs_->parts_.observer("ImportState", answer.error_code());
    if (began_) rpcs_->End();
    Finish(answer);
  }

  void OnReadDone(bool ok) override {
    const auto work = [this, ok] {
      if (ok) {
        Take();
      } else {
        End();
      }
    };
    if (!rpcs_->RunInBackground(work)) {
      FinishWith(Busy("the coordinator is too busy to restore a backup; try again"));
    }
  }
  void OnDone() override { delete this; }

 private:
  absl::Status TakeProfile(const v1::LatencyProfile& profile) {
    v1::PutProfileRequest request;
    *request.mutable_profile() = profile;
    return rpcs_->parts_.registry->PutProfile(request).status();
  }

  void Take() {
    if (rpcs_->closing()) {
      FinishWith(absl::UnavailableError("the coordinator is shutting down"));
      return;
    }
    if (first_) replace_ = request_.replace();
    first_ = false;
    if (const absl::Status status = importer_.Add(request_.record()); !status.ok()) {
      FinishWith(status);
      return;
    }
    StartRead(&request_);
  }

  void End() {
    absl::StatusOr<v1::ImportStateResponse> taken = importer_.Finish();
    // Restored means stored.
    absl::Status status = taken.status();
    if (status.ok()) status = rpcs_->parts_.writer->Flush();
    if (status.ok()) *response_ = *std::move(taken);
    FinishWith(status);
  }

  StateRpcs* const rpcs_;
  v1::ImportStateResponse* const response_;
  bool began_ = false;
  bool first_ = true;
  bool replace_ = false;
  v1::ImportStateRequest request_;
  StateImporter importer_;
};

grpc::ServerReadReactor<v1::ImportStateRequest>* StateRpcs::Import(
    v1::ImportStateResponse* response, const absl::Status& allowed) {
  auto* call = new ImportCall(this, response);
  absl::Status status = allowed;
  if (status.ok()) status = Begin();
  if (status.ok()) {
    call->Start();
  } else {
    call->FinishWith(status);
  }
  return call;
}

}  // namespace sparsebalance
