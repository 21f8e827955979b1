// Where a rank gets its plans from: a coordinator (NodeSession) or a recorded run (PlanReplay).
//
//   source.Request(batch_of_step_1);            // while step 0 computes
//   std::optional<PlanOffer> offer = source.Wait(1, absl::Now() + deadline);
//   // The offer, or its absence, goes into AgreeOnPlan(): no rank acts on it alone.
//
// All methods are thread-safe and may be called by every rank thread of a node.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

struct PlanOffer {
  uint64_t leader_epoch = 0;
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t digest = 0;  // of the whole plan; `plan` holds at least this node's ranks
  std::shared_ptr<const v1::Plan> plan;
};

class PlanSource {
 public:
  virtual ~PlanSource() = default;

  // Asks for the plan of batch.step() and returns at once. The batch lists every sequence. A
  // request for a later step replaces an unanswered one; repeating a step changes nothing.
  virtual void Request(const v1::GlobalBatch& batch) = 0;

  // The plan of `step` as soon as it is there. Empty at the deadline, or at once where it is known
  // that none will come in time; a plan that arrives after that is thrown away.
  virtual std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) = 0;

  // Whether the coordinator could not be reached when it was last asked: why Wait brings nothing.
  virtual bool CoordinatorAway() { return false; }

  // What a rank measured, and (from rank 0 only) what a step consumed.
  virtual void Report(v1::RankTelemetry telemetry) = 0;
  virtual void ReportConsumed(v1::ConsumedBatch consumed) = 0;

  // Not OK once this node can no longer be part of the job, for example because a member was
  // replaced; the ranks stop then.
  virtual absl::Status Health() = 0;
};

}  // namespace sparsebalance
