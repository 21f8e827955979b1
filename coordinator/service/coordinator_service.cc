#include "coordinator/service/coordinator_service.h"

#include <utility>

#include "coordinator/planner/status_payload.h"
#include "coordinator/service/status_conversion.h"
#include "grpcpp/support/slice.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

using security::PeerIdentity;

namespace {

// The bytes of an answer without a copy of them.
grpc::ByteBuffer Shared(const JoinAnswer& answer) {
  auto* const held = new JoinAnswer(answer);
  const auto release = [](void* of) { delete static_cast<JoinAnswer*>(of); };
  // gRPC reads what it sends, and no more.
  const grpc::Slice slice(const_cast<char*>((*held)->data()), (*held)->size(), release, held);
  return grpc::ByteBuffer(&slice, 1);
}

}  // namespace

// gRPC keeps a call until OnDone, also while OnCancel runs, and calls neither before the method
// that made it has returned.
class CoordinatorService::CallReactor : public grpc::ServerUnaryReactor {
 public:
  explicit CallReactor(CoordinatorService* service) : service_(service) { service_->Began(); }

  void set_cancel(CancelWait cancel) { cancel_ = std::move(cancel); }
  void set_pass(LoadGate::Pass pass) { pass_ = std::move(pass); }

  void OnCancel() override {
    if (cancel_) cancel_();
  }

  void OnDone() override {
    CoordinatorService* const service = service_;
    delete this;
    service->Ended();
  }

 private:
  CoordinatorService* const service_;
  LoadGate::Pass pass_;
  CancelWait cancel_;
};

CoordinatorService::CoordinatorService(Parts parts)
    : parts_(std::move(parts)), authorizer_(parts_.authorizer) {}

void CoordinatorService::Began() {
  absl::MutexLock lock(&mutex_);
  ++calls_;
}

void CoordinatorService::Ended() {
  absl::MutexLock lock(&mutex_);
  --calls_;
}

bool CoordinatorService::WaitUntilIdle(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return calls_ == 0; };
  return mutex_.AwaitWithTimeout(absl::Condition(&idle), timeout);
}

template <typename Request>
absl::StatusOr<PeerIdentity> CoordinatorService::Admit(const grpc::CallbackServerContext& context,
                                                       CallClass call_class, const Request& request,
                                                       CallReactor& call) {
  absl::StatusOr<PeerIdentity> caller = authorizer_.Authorize(context, request);
  if (!caller.ok()) return caller.status();
  absl::StatusOr<LoadGate::Pass> pass = parts_.gate->Enter(call_class, request.ByteSizeLong());
  if (!pass.ok()) return pass.status();
  call.set_pass(*std::move(pass));
  return caller;
}

template <typename Response>
void CoordinatorService::Answer(const char* method, CallReactor* call,
                                absl::StatusOr<Response> answer, Response* response) {
  const grpc::Status status = ToGrpcStatus(answer.status());
  const bool fenced = planner::GetDetail<v1::StaleMember>(answer.status()).has_value();
  if (answer.ok()) *response = *std::move(answer);
  parts_.observer(method, status.error_code());
  if (fenced) parts_.fenced();
  call->Finish(status);
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* CoordinatorService::AnswerNow(
    const char* method, CallClass call_class, grpc::CallbackServerContext* context,
    const Request* request, Response* response,
    absl::StatusOr<Response> (JobRegistry::*answer)(const Request&)) {
  auto* call = new CallReactor(this);
  const auto caller = Admit(*context, call_class, *request, *call);
  Answer<Response>(method, call,
                   caller.ok() ? (parts_.registry->*answer)(*request)
                               : absl::StatusOr<Response>(caller.status()),
                   response);
  return call;
}

template <typename Request, typename Response>
grpc::ServerUnaryReactor* CoordinatorService::AnswerLater(
    const char* method, CallClass call_class, grpc::CallbackServerContext* context,
    const Request* request, Response* response,
    CancelWait (JobRegistry::*start)(const Request&,
                                     absl::AnyInvocable<void(absl::StatusOr<Response>)>)) {
  auto* call = new CallReactor(this);
  const auto caller = Admit(*context, call_class, *request, *call);
  if (!caller.ok()) {
    Answer<Response>(method, call, caller.status(), response);
    return call;
  }
  call->set_cancel((parts_.registry->*start)(
      *request, [this, method, response, call](absl::StatusOr<Response> answer) {
        Answer<Response>(method, call, std::move(answer), response);
      }));
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::RegisterJob(grpc::CallbackServerContext* context,
                                                          const v1::RegisterJobRequest* request,
                                                          v1::RegisterJobResponse* response) {
  auto* call = new CallReactor(this);
  static constexpr char kMethod[] = "RegisterJob";
  const auto caller = Admit(*context, CallClass::kTraining, *request, *call);
  if (!caller.ok()) {
    Answer<v1::RegisterJobResponse>(kMethod, call, caller.status(), response);
    return call;
  }
  parts_.registry->RegisterJob(
      *request, [this, response, call](absl::StatusOr<v1::RegisterJobResponse> answer) {
        Answer(kMethod, call, std::move(answer), response);
      });
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::JoinJob(grpc::CallbackServerContext* context,
                                                      const grpc::ByteBuffer* request,
                                                      grpc::ByteBuffer* response) {
  static constexpr char kMethod[] = "JoinJob";
  auto* call = new CallReactor(this);
  v1::JoinJobRequest parsed;
  grpc::ByteBuffer bytes(*request);  // reading empties it
  absl::Status status =
      grpc::SerializationTraits<v1::JoinJobRequest>::Deserialize(&bytes, &parsed).ok()
          ? absl::OkStatus()
          : absl::InvalidArgumentError("JoinJob: what was sent is no JoinJobRequest");
  if (status.ok()) status = Admit(*context, CallClass::kTraining, parsed, *call).status();
  if (!status.ok()) {
    Answer<grpc::ByteBuffer>(kMethod, call, status, response);
    return call;
  }
  call->set_cancel(
      parts_.registry->JoinJob(parsed, [this, response, call](absl::StatusOr<JoinAnswer> answer) {
        Answer<grpc::ByteBuffer>(
            kMethod, call,
            answer.ok() ? Shared(*answer) : absl::StatusOr<grpc::ByteBuffer>(answer.status()),
            response);
      }));
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::ExchangeStep(grpc::CallbackServerContext* context,
                                                           const v1::ExchangeStepRequest* request,
                                                           v1::ExchangeStepResponse* response) {
  return AnswerLater("ExchangeStep", CallClass::kTraining, context, request, response,
                     &JobRegistry::ExchangeStep);
}

grpc::ServerUnaryReactor* CoordinatorService::Heartbeat(grpc::CallbackServerContext* context,
                                                        const v1::HeartbeatRequest* request,
                                                        v1::HeartbeatResponse* response) {
  return AnswerNow("Heartbeat", CallClass::kLiveness, context, request, response,
                   &JobRegistry::Heartbeat);
}

grpc::ServerUnaryReactor* CoordinatorService::LeaveJob(grpc::CallbackServerContext* context,
                                                       const v1::LeaveJobRequest* request,
                                                       v1::LeaveJobResponse* response) {
  return AnswerNow("LeaveJob", CallClass::kLiveness, context, request, response,
                   &JobRegistry::LeaveJob);
}

grpc::ServerUnaryReactor* CoordinatorService::PutCoverage(grpc::CallbackServerContext* context,
                                                          const v1::PutCoverageRequest* request,
                                                          v1::PutCoverageResponse* response) {
  return AnswerNow("PutCoverage", CallClass::kOther, context, request, response,
                   &JobRegistry::PutCoverage);
}

grpc::ServerUnaryReactor* CoordinatorService::ListJobs(grpc::CallbackServerContext* context,
                                                       const v1::ListJobsRequest* request,
                                                       v1::ListJobsResponse* response) {
  auto* call = new CallReactor(this);
  const auto caller = Admit(*context, CallClass::kOther, *request, *call);
  absl::StatusOr<v1::ListJobsResponse> answer =
      caller.ok() ? parts_.registry->ListJobs(*request)
                  : absl::StatusOr<v1::ListJobsResponse>(caller.status());
  if (caller.ok()) {
    const security::NamespaceView visible = authorizer_.VisibleNamespaces(*caller);
    if (answer.ok() && !visible.every) {
      v1::ListJobsResponse shown = *answer;
      shown.clear_jobs();
      for (v1::JobSummary& job : *answer->mutable_jobs()) {
        if (visible.Contains(job.job().namespace_())) *shown.add_jobs() = std::move(job);
      }
      answer = std::move(shown);
    }
  }
  Answer("ListJobs", call, std::move(answer), response);
  return call;
}

grpc::ServerUnaryReactor* CoordinatorService::GetJob(grpc::CallbackServerContext* context,
                                                     const v1::GetJobRequest* request,
                                                     v1::GetJobResponse* response) {
  return AnswerNow("GetJob", CallClass::kOther, context, request, response, &JobRegistry::GetJob);
}

grpc::ServerUnaryReactor* CoordinatorService::GetPlan(grpc::CallbackServerContext* context,
                                                      const v1::GetPlanRequest* request,
                                                      v1::GetPlanResponse* response) {
  return AnswerNow("GetPlan", CallClass::kOther, context, request, response, &JobRegistry::GetPlan);
}

grpc::ServerUnaryReactor* CoordinatorService::WatchJob(grpc::CallbackServerContext* context,
                                                       const v1::WatchJobRequest* request,
                                                       v1::WatchJobResponse* response) {
  return AnswerLater("WatchJob", CallClass::kOther, context, request, response,
                     &JobRegistry::WatchJob);
}

grpc::ServerUnaryReactor* CoordinatorService::PutProfile(grpc::CallbackServerContext* context,
                                                         const v1::PutProfileRequest* request,
                                                         v1::PutProfileResponse* response) {
  return AnswerNow("PutProfile", CallClass::kOther, context, request, response,
                   &JobRegistry::PutProfile);
}

grpc::ServerUnaryReactor* CoordinatorService::GetProfile(grpc::CallbackServerContext* context,
                                                         const v1::GetProfileRequest* request,
                                                         v1::GetProfileResponse* response) {
  return AnswerNow("GetProfile", CallClass::kOther, context, request, response,
                   &JobRegistry::GetProfile);
}

grpc::ServerUnaryReactor* CoordinatorService::EvictNode(grpc::CallbackServerContext* context,
                                                        const v1::EvictNodeRequest* request,
                                                        v1::EvictNodeResponse* response) {
  return AnswerNow("EvictNode", CallClass::kLiveness, context, request, response,
                   &JobRegistry::EvictNode);
}

grpc::ServerUnaryReactor* CoordinatorService::RemoveJob(grpc::CallbackServerContext* context,
                                                        const v1::RemoveJobRequest* request,
                                                        v1::RemoveJobResponse* response) {
  return AnswerNow("RemoveJob", CallClass::kLiveness, context, request, response,
                   &JobRegistry::RemoveJob);
}

grpc::ServerUnaryReactor* CoordinatorService::Drain(grpc::CallbackServerContext* context,
                                                    const v1::DrainRequest* request,
                                                    v1::DrainResponse* response) {
  auto* call = new CallReactor(this);
  const auto caller = Admit(*context, CallClass::kLiveness, *request, *call);
  absl::StatusOr<v1::DrainResponse> answer = v1::DrainResponse();
  if (!caller.ok()) {
    answer = caller.status();
  } else {
    for (const v1::JobStatus& job : parts_.registry->Statuses()) {
      if (job.ranks_size() > 0) answer->set_jobs(answer->jobs() + 1);
    }
    parts_.drain(request->reason());
  }
  Answer("Drain", call, std::move(answer), response);
  return call;
}

grpc::ServerWriteReactor<v1::StateRecord>* CoordinatorService::ExportState(
    grpc::CallbackServerContext* context, const v1::ExportStateRequest* request) {
  const auto caller = authorizer_.Authorize(*context, *request);
  return parts_.state->Export(*request, caller.status());
}

grpc::ServerReadReactor<v1::ImportStateRequest>* CoordinatorService::ImportState(
    grpc::CallbackServerContext* context, v1::ImportStateResponse* response) {
  const auto caller = authorizer_.Authorize(*context, security::Method::kImportState, "");
  return parts_.state->Import(response, caller.status());
}

}  // namespace sparsebalance
