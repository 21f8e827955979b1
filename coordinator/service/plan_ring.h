// The plans of the recent past: for retries, for GetPlan, for the report of a finished step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "google/protobuf/arena.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance {

// Its messages live and die together, on an arena: a plan may have a hundred thousand slices.
struct PlannedStep {
  google::protobuf::Arena arena;
  uint64_t generation = 0;
  uint64_t step = 0;
  uint64_t batch_digest = 0;
  uint64_t plan_digest = 0;
  v1::PlanRequest& request = *google::protobuf::Arena::CreateMessage<v1::PlanRequest>(&arena);
  v1::Plan& plan = *google::protobuf::Arena::CreateMessage<v1::Plan>(&arena);
};

// Not thread-safe: the job's mutex guards it. Entries never change, so they may be read outside.
class PlanRing {
 public:
  // At most `kept` plans and `kept_bytes` of memory, but always the latest kAlwaysKept: what is
  // asked for now, and what a retry may ask for.
  PlanRing(size_t kept, size_t kept_bytes) : kept_(kept), kept_bytes_(kept_bytes) {}

  static constexpr size_t kAlwaysKept = 4;

  void Add(std::shared_ptr<const PlannedStep> planned);

  // Null where it is not kept (any more).
  std::shared_ptr<const PlannedStep> Find(uint64_t generation, uint64_t step) const;
  // Of the latest generation that planned the step.
  std::shared_ptr<const PlannedStep> FindLatest(uint64_t step) const;

  // Had this plan been made, it would be gone by now: it must not be made a second time.
  bool MayHaveDropped(uint64_t generation, uint64_t step) const;

  std::vector<uint64_t> Steps() const;                           // ascending
  std::vector<std::shared_ptr<const PlannedStep>> Kept() const;  // oldest first

  size_t bytes() const { return bytes_; }  // of memory

  // Imbalance that `length` would have had for the step, once it is known.
  void SetLengthImbalance(uint64_t generation, uint64_t step, double imbalance);
  double LengthImbalance(const PlannedStep& planned) const;  // 0: not known

 private:
  struct Entry {
    std::shared_ptr<const PlannedStep> planned;
    double length_imbalance = 0;
    size_t bytes = 0;
  };
  struct Dropped {
    uint64_t generation = 0;
    uint64_t highest_step = 0;
  };

  const size_t kept_;
  const size_t kept_bytes_;
  size_t bytes_ = 0;
  std::deque<Entry> entries_;  // oldest first
  std::optional<Dropped> dropped_;
};

}  // namespace sparsebalance
