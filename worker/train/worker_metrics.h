// A worker's own /metrics, in Prometheus' text format. docs/metrics.md says what each is.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "worker/train/step_record.h"

namespace sparsebalance {

class WorkerMetrics {
 public:
  // Serves on `listen` (host:port; port 0 takes a free one) until destroyed. UNAVAILABLE where the
  // address cannot be bound.
  static absl::StatusOr<std::unique_ptr<WorkerMetrics>> Serve(const std::string& listen,
                                                              const std::string& version,
                                                              const std::string& backend);
  ~WorkerMetrics();

  // `job` is the one that the policy trains, where several train side by side.
  void Record(const v1::JobKey& job, const std::string& policy, const StepRecord& record);
  // The worker joined again after the loss of a peer.
  void Rejoined(const v1::JobKey& job, const std::string& policy);
  int port() const;

 private:
  struct Impl;
  explicit WorkerMetrics(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsebalance
