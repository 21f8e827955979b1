// A worker's own /metrics, in Prometheus' text format.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "worker/train/step_record.h"

namespace sparsebalance {

class WorkerMetrics {
 public:
  // Serves on `listen` (host:port; port 0 takes a free one) until destroyed. UNAVAILABLE where the
  // address cannot be bound.
  static absl::StatusOr<std::unique_ptr<WorkerMetrics>> Serve(const std::string& listen);
  ~WorkerMetrics();

  void Record(const std::string& policy, const StepRecord& record);
  int port() const;

 private:
  struct Impl;
  explicit WorkerMetrics(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsebalance
