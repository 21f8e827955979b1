// Gathers what the nodes of one generation ask for, step by step, until a step can be planned.
//
// A step collects: every node names the digest of its batch, and one node sends the batch whole.
// When all have come with one digest it is planned, once. Digests that differ, or a plan that
// cannot be made, are told to every node that waits. Questions outlive the calls that brought them:
// a node whose poll ended need not be asked again for the step to be planned.
//
// Not thread-safe: the job's mutex guards it. Waiters it returns are answered by the caller,
// outside the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/scheduler.h"
#include "coordinator/store/job_id.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

using ExchangeDone = absl::AnyInvocable<void(absl::StatusOr<v1::ExchangeStepResponse>)>;

struct StepWaiter {
  uint64_t id = 0;  // unique in the job
  std::string node_id;
  std::vector<uint32_t> data_ranks;  // of the node
  absl::Time since;
  Scheduler::TimerId timer = 0;
  ExchangeDone done;
};

class StepBarrier {
 public:
  enum class Outcome {
    kWait,      // others are missing, or the plan is being made
    kComplete,  // this was the last one: plan it
    kRefused,   // `error` is the answer, for the caller and for `told`
  };
  struct Arrival {
    Outcome outcome = Outcome::kWait;
    absl::Status error;
    std::vector<StepWaiter> told;
    uint64_t serial = 0;  // where complete: names this attempt at the step
  };
  struct Planned {
    std::vector<StepWaiter> waiters;
    std::shared_ptr<const v1::GlobalBatch> batch;
  };

  StepBarrier(JobId id, size_t max_open_steps) : id_(std::move(id)), max_open_(max_open_steps) {}

  // `node_count` nodes are in the generation. FAILED_PRECONDITION (BatchMismatch);
  // RESOURCE_EXHAUSTED where too many steps are open; or what the planner said of this very batch.
  Arrival Arrive(const std::string& node_id, const v1::GlobalBatch& batch, size_t node_count);

  void AddWaiter(uint64_t step, StepWaiter waiter);
  std::optional<StepWaiter> RemoveWaiter(uint64_t step, uint64_t waiter_id);

  // The batch of a complete step; null where the attempt is over.
  std::shared_ptr<const v1::GlobalBatch> Batch(uint64_t step, uint64_t serial) const;
  // The plan is made: the step is no longer open. Nothing where the attempt is over.
  std::optional<std::vector<StepWaiter>> Finish(uint64_t step, uint64_t serial);
  // The batch cannot be planned. The same batch will be refused in the same words; another may
  // come.
  std::vector<StepWaiter> Fail(uint64_t step, uint64_t serial, const absl::Status& why);
  // Nobody had time to plan: the next call of any node tries again.
  std::vector<StepWaiter> Postpone(uint64_t step, uint64_t serial);

  // The generation is over.
  std::vector<StepWaiter> Clear();

  // Since when the node waits that has waited longest for the calls of others; InfiniteFuture where
  // none does. A step that is being planned waits for nobody.
  absl::Time WaitingSince() const;

  // Of `nodes`, those that have not asked for the step.
  std::vector<std::string> MissingNodes(uint64_t step, const std::vector<std::string>& nodes) const;

 private:
  enum class Phase { kCollecting, kPlanning, kFailed };
  struct Step {
    Phase phase = Phase::kCollecting;
    uint64_t serial = 0;
    std::map<std::string, uint64_t> digests;  // by node
    std::shared_ptr<const v1::GlobalBatch> batch;
    std::vector<StepWaiter> waiters;
    absl::Status failure;
  };

  bool MakeRoom();
  Step* Attempt(uint64_t step, uint64_t serial);
  static bool Withdrawn(const Step& step, const std::string& node_id);
  absl::Status Mismatch(const Step& step, const std::string& node_id,
                        const v1::GlobalBatch& batch) const;

  const JobId id_;
  const size_t max_open_;
  uint64_t next_serial_ = 1;
  std::map<uint64_t, Step> steps_;
};

}  // namespace sparsebalance
