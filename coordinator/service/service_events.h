// What happens in the coordinator, for metrics. The logic knows nothing about how it is exported.
#pragma once

#include <string>

#include "absl/time/time.h"

namespace sparsebalance {

// Thread-safe; called without locks held.
class ServiceEvents {
 public:
  virtual ~ServiceEvents() = default;

  virtual void PlanMade(const std::string& policy, absl::Duration took) = 0;
  virtual void PlanQueued(absl::Duration waited) = 0;  // for a thread, before it was begun
  virtual void PlanFailed() = 0;
  virtual void PlanPostponed() = 0;                       // the queue was full
  virtual void BarrierWaited(absl::Duration waited) = 0;  // from a node's call to its answer
  virtual void GenerationFormed(bool kept) = 0;
  virtual void NodeDied() = 0;
  virtual void BatchMismatched() = 0;
  virtual void StoreWriteFailed() = 0;
};

// Hears nothing.
class NoEvents : public ServiceEvents {
 public:
  void PlanMade(const std::string&, absl::Duration) override {}
  void PlanQueued(absl::Duration) override {}
  void PlanFailed() override {}
  void PlanPostponed() override {}
  void BarrierWaited(absl::Duration) override {}
  void GenerationFormed(bool) override {}
  void NodeDied() override {}
  void BatchMismatched() override {}
  void StoreWriteFailed() override {}
};

}  // namespace sparsebalance
