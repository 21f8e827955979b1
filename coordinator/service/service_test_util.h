// A coordinator without a network for tests: manual clock, planning when told to, memory store.
#pragma once

#include <deque>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/manual_scheduler.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sole_claims.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::testing_support {

// Runs tasks when the test says so.
class ManualExecutor : public PlanExecutor {
 public:
  FlowId NewFlow() override {
    absl::MutexLock lock(&mutex_);
    open_flows_.insert(++flows_);
    return flows_;
  }

  void EndFlow(FlowId flow) override {
    absl::MutexLock lock(&mutex_);
    EXPECT_EQ(open_flows_.erase(flow), 1u) << "flow " << flow << " was ended before";
  }

  size_t open_flows() {
    absl::MutexLock lock(&mutex_);
    return open_flows_.size();
  }

  bool TrySubmit(FlowId, Task task) override {
    absl::MutexLock lock(&mutex_);
    if (tasks_.size() >= capacity_) return false;
    tasks_.push_back(std::move(task));
    return true;
  }

  size_t queued() {
    absl::MutexLock lock(&mutex_);
    return tasks_.size();
  }

  void set_capacity(size_t capacity) {
    absl::MutexLock lock(&mutex_);
    capacity_ = capacity;
  }

  void RunAll() {
    while (true) {
      Task task;
      {
        absl::MutexLock lock(&mutex_);
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
      task();
    }
  }

 private:
  absl::Mutex mutex_;
  std::deque<Task> tasks_ ABSL_GUARDED_BY(mutex_);
  FlowId flows_ ABSL_GUARDED_BY(mutex_) = 0;
  std::set<FlowId> open_flows_ ABSL_GUARDED_BY(mutex_);
  size_t capacity_ ABSL_GUARDED_BY(mutex_) = 100;
};

// The answer of a call that may wait; filled in when it comes.
template <typename T>
struct Pending {
  std::shared_ptr<std::optional<absl::StatusOr<T>>> slot =
      std::make_shared<std::optional<absl::StatusOr<T>>>();
  CancelWait cancel;

  bool answered() const { return slot->has_value(); }
  const absl::StatusOr<T>& get() const { return slot->value(); }
  absl::Status status() const { return slot->value().status(); }
  const T& value() const { return *slot->value(); }
  const T* operator->() const { return &*slot->value(); }

  auto Done() {
    return [slot = slot](absl::StatusOr<T> answer) {
      ASSERT_FALSE(slot->has_value()) << "answered twice";
      *slot = std::move(answer);
    };
  }
};

using JoinPending = Pending<v1::JoinJobResponse>;
using ExchangePending = Pending<v1::ExchangeStepResponse>;

// A job of `data` ranks without pipeline.
inline v1::JobSpec MakeSpec(const std::string& name, uint32_t data = 2) {
  v1::JobSpec spec;
  spec.mutable_job()->set_name(name);
  spec.mutable_parallelism()->set_data(data);
  v1::PlanSettings* plan = spec.mutable_plan();
  plan->set_policy("sparsebalance");
  plan->set_data_parallel_size(data);
  plan->set_block_tokens(64);
  plan->set_base_budget_blocks(8);
  plan->set_max_tokens_per_micro_batch(4096);
  plan->set_coverage_guard(0.1);
  spec.set_num_layers(2);
  spec.set_device_class("cpu-1-thread");
  spec.set_model_class("tiny");
  spec.set_dataset_fingerprint(7);
  spec.set_global_batch_size(8);
  spec.set_lease_ms(10'000);
  spec.set_startup_grace_ms(60'000);
  return spec;
}

inline v1::GlobalBatch MakeBatch(uint64_t step, int sequences = 8, uint64_t first_id = 0) {
  v1::GlobalBatch batch;
  batch.set_step(step);
  for (int i = 0; i < sequences; ++i) {
    v1::BatchSequence* sequence = batch.add_sequences();
    sequence->set_id(first_id + step * 100 + static_cast<uint64_t>(i));
    sequence->set_tokens(200 + 150 * static_cast<uint64_t>(i));
    sequence->set_supervised_tokens(100);
  }
  batch.set_digest(BatchDigest(batch));
  return batch;
}

inline v1::GlobalBatch DigestOnly(v1::GlobalBatch batch) {
  batch.clear_sequences();
  return batch;
}

inline v1::RankTelemetry MakeTelemetry(uint32_t rank, uint64_t step, double compute_ms = 50) {
  v1::RankTelemetry report;
  report.set_rank(rank);
  report.set_step(step);
  report.set_step_ms(100);
  report.set_compute_ms(compute_ms);
  report.set_loss_sum(30);
  report.set_supervised_tokens(10);
  report.set_tokens(512);
  v1::MicroBatchTelemetry* micro = report.add_micro_batches();
  micro->set_forward_ms(compute_ms / 3);
  micro->set_backward_ms(compute_ms * 2 / 3);
  v1::SequenceTelemetry* sequence = micro->add_sequences();
  sequence->set_sequence_id(step * 100 + rank);
  sequence->set_tokens(512);
  sequence->set_planned_budget_blocks(8);
  sequence->add_realized_budget_blocks(8);
  for (const auto& [budget, coverage] : {std::pair{1u, 0.0}, {4u, 0.7}, {8u, 1.0}}) {
    sequence->mutable_coverage()->add_budget_blocks(budget);
    sequence->mutable_coverage()->add_coverage(coverage);
  }
  return report;
}

// One coordinator's life. Several may follow one another on one store.
class Coordinator {
 public:
  // `shared`: claims that it shares with others; null: it is alone.
  explicit Coordinator(Store* store, ServiceOptions given = {}, JobClaims* shared = nullptr)
      : options(given), writer(std::make_unique<StoreWriter>(store)) {
    if (shared == nullptr) {
      auto opened_claims = SoleClaims::Open(store, "127.0.0.1:7070");
      claims = *std::move(opened_claims);
      shared = claims.get();
    }
    auto opened = JobRegistry::Open({&options, &quotas, store, writer.get(), shared, &scheduler,
                                     &executor, &background, &events, "test"});
    registry = *std::move(opened);
    shared->OnLost(registry->LostHandler());
  }
  ~Coordinator() {
    registry.reset();
    writer.reset();
  }

  // Ends it as SIGKILL would, but for what the writer holds.
  ServiceOptions options;
  std::unique_ptr<StoreWriter> writer;
  std::unique_ptr<SoleClaims> claims;
  QuotaTable quotas;
  ManualScheduler scheduler;
  ManualExecutor executor;
  ManualExecutor background;
  NoEvents events;
  std::unique_ptr<JobRegistry> registry;

  uint64_t Register(const v1::JobSpec& spec) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = spec;
    const auto answer = Register(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->spec_fingerprint() : 0;
  }
  absl::StatusOr<v1::RegisterJobResponse> Register(const v1::RegisterJobRequest& request) {
    absl::StatusOr<v1::RegisterJobResponse> answer = absl::InternalError("not answered");
    registry->RegisterJob(
        request, [&](absl::StatusOr<v1::RegisterJobResponse> given) { answer = std::move(given); });
    return answer;
  }

  v1::JoinJobRequest JoinRequest(const std::string& job, const std::string& node,
                                 const std::vector<uint32_t>& ranks, uint64_t incarnation = 1) {
    v1::JoinJobRequest request;
    request.mutable_job()->set_name(job);
    v1::GetJobRequest get;
    get.mutable_job()->set_name(job);
    const auto status = registry->GetJob(get);
    if (status.ok()) request.set_spec_fingerprint(status->status().spec_fingerprint());
    request.set_node_id(node);
    request.set_incarnation(incarnation);
    request.set_wait_ms(5'000);
    for (const uint32_t rank : ranks) {
      v1::RankInfo* info = request.add_ranks();
      info->set_rank(rank);
      info->set_rendezvous(node + "/" + std::to_string(rank) + "#" + std::to_string(incarnation));
    }
    return request;
  }

  JoinPending Join(const v1::JoinJobRequest& request) {
    JoinPending pending;
    pending.cancel = registry->JoinJob(
        request, [done = pending.Done()](absl::StatusOr<JoinAnswer> answer) mutable {
          if (!answer.ok()) return done(answer.status());
          v1::JoinJobResponse parsed;
          ASSERT_TRUE(parsed.ParseFromString(**answer));
          done(std::move(parsed));
        });
    return pending;
  }
  JoinPending Join(const std::string& job, const std::string& node,
                   const std::vector<uint32_t>& ranks, uint64_t incarnation = 1) {
    return Join(JoinRequest(job, node, ranks, incarnation));
  }
  // A reconnect: no rendezvous, the communicator of `held` still stands.
  JoinPending Rejoin(const std::string& job, const std::string& node,
                     const std::vector<uint32_t>& ranks, uint64_t held, uint64_t next_step = 0) {
    v1::JoinJobRequest request = JoinRequest(job, node, ranks);
    for (v1::RankInfo& rank : *request.mutable_ranks()) rank.clear_rendezvous();
    request.set_held_generation(held);
    request.set_next_step(next_step);
    return Join(request);
  }

  // Registers `name` with two ranks on the nodes a and b, and forms its first generation.
  void FormPair(const std::string& name) {
    Register(MakeSpec(name));
    const JoinPending a = Join(name, "a", {0});
    const JoinPending b = Join(name, "b", {1});
    ASSERT_TRUE(a.answered() && a.get().ok());
    ASSERT_TRUE(b.answered() && b.get().ok());
  }

  static v1::NodeKey Key(const std::string& job, const std::string& node, uint64_t generation = 1,
                         uint64_t incarnation = 1) {
    v1::NodeKey key;
    key.mutable_job()->set_name(job);
    key.set_node_id(node);
    key.set_generation(generation);
    key.set_incarnation(incarnation);
    return key;
  }

  ExchangePending Exchange(const v1::ExchangeStepRequest& request) {
    ExchangePending pending;
    pending.cancel = registry->ExchangeStep(request, pending.Done());
    return pending;
  }
  ExchangePending Ask(const v1::NodeKey& node, const v1::GlobalBatch& batch) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = node;
    *request.mutable_batch() = batch;
    request.set_wait_ms(5'000);
    return Exchange(request);
  }
  ExchangePending Report(const v1::NodeKey& node, const std::vector<v1::RankTelemetry>& telemetry,
                         const std::vector<v1::ConsumedBatch>& consumed = {}) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = node;
    for (const auto& report : telemetry) *request.add_telemetry() = report;
    for (const auto& batch : consumed) *request.add_consumed() = batch;
    request.set_report_only(true);
    return Exchange(request);
  }

  absl::Status Heartbeat(const v1::NodeKey& node) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = node;
    return registry->Heartbeat(request).status();
  }

  v1::JobStatus Status(const std::string& job) {
    v1::GetJobRequest request;
    request.mutable_job()->set_name(job);
    const auto answer = registry->GetJob(request);
    EXPECT_TRUE(answer.ok()) << answer.status();
    return answer.ok() ? answer->status() : v1::JobStatus();
  }
};

MATCHER_P(HasCode, code, "") { return arg.code() == code; }

// The typed detail of a status, or a default one after a failed expectation.
template <typename M>
M Detail(const absl::Status& status) {
  const std::optional<M> detail = planner::GetDetail<M>(status);
  EXPECT_TRUE(detail.has_value()) << status;
  return detail.value_or(M());
}

}  // namespace sparsebalance::testing_support
