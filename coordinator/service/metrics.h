// The coordinator's metrics for Prometheus, all named sparsebalance_coordinator_*.
//
// Figures of single jobs are read from the registry at each scrape, so they vanish with the job:
// when it is finished or forgotten. No label ever holds a rank, sequence, step or generation.
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/service/job_figures.h"
#include "coordinator/service/plan_executor.h"
#include "coordinator/service/service_events.h"
#include "grpcpp/support/status.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/family.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"

namespace sparsebalance {

class CoordinatorMetrics : public ServiceEvents {
 public:
  // What is read at each scrape.
  struct Snapshot {
    uint64_t leader_epoch = 0;
    std::vector<JobFigures> jobs;
    ThreadPoolExecutor::Load planner;
    size_t calls = 0;                // under way
    std::array<uint64_t, 3> shed{};  // by CallClass, since the start
    bool claims_alive = true;
    bool store_answers = true;
    std::optional<absl::Time> certificate_not_after;  // nothing: plaintext
    uint64_t certificate_failures = 0;
    uint64_t rule_failures = 0;
  };

  explicit CoordinatorMetrics(const std::string& version);

  void PlanMade(const std::string& policy, absl::Duration took) override;
  void PlanQueued(absl::Duration waited) override;
  void PlanFailed() override { plans_failed_->Increment(); }
  void PlanPostponed() override { plans_postponed_->Increment(); }
  void BarrierWaited(absl::Duration waited) override;
  void GenerationFormed(bool kept) override;
  void NodeDied() override { nodes_died_->Increment(); }
  void BatchMismatched() override { batch_mismatches_->Increment(); }
  void StoreWriteFailed() override { store_write_failures_->Increment(); }

  void RpcAnswered(const char* method, grpc::StatusCode code);
  void CallDenied(const char* method);  // by authorization
  void CallFenced() { fenced_->Increment(); }
  void StoreWritten(absl::Duration took);

  // In the text format of Prometheus.
  std::string Scrape(const Snapshot& snapshot) const;
  // What the scrape that has ended took; the next one tells.
  void ScrapeTook(absl::Duration took);

 private:
  prometheus::Registry registry_;
  prometheus::Family<prometheus::Counter>* rpcs_;
  prometheus::Family<prometheus::Counter>* denials_;
  prometheus::Family<prometheus::Counter>* plans_;
  prometheus::Family<prometheus::Counter>* generations_;
  prometheus::Counter* plans_failed_;
  prometheus::Counter* plans_postponed_;
  prometheus::Counter* nodes_died_;
  prometheus::Counter* batch_mismatches_;
  prometheus::Counter* store_write_failures_;
  prometheus::Counter* fenced_;
  prometheus::Family<prometheus::Histogram>* plan_seconds_;
  prometheus::Histogram* plan_queue_seconds_;
  prometheus::Histogram* store_write_seconds_;
  prometheus::Gauge* scrape_seconds_;
  prometheus::Histogram* barrier_wait_seconds_;
};

// "OK", "DEADLINE_EXCEEDED", ...: the names of grpc's status codes.
const char* GrpcCodeName(grpc::StatusCode code);

}  // namespace sparsebalance
