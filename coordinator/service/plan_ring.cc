#include "coordinator/service/plan_ring.h"

#include <algorithm>
#include <utility>

namespace sparsebalance {

void PlanRing::Add(std::shared_ptr<const PlannedStep> planned) {
  const size_t bytes = planned->arena.SpaceAllocated();
  bytes_ += bytes;
  entries_.push_back({std::move(planned), 0, bytes});
  while (entries_.size() > kept_ || (bytes_ > kept_bytes_ && entries_.size() > kAlwaysKept)) {
    const PlannedStep& oldest = *entries_.front().planned;
    if (!dropped_ || dropped_->generation != oldest.generation) {
      dropped_ = Dropped{oldest.generation, oldest.step};
    } else {
      dropped_->highest_step = std::max(dropped_->highest_step, oldest.step);
    }
    bytes_ -= entries_.front().bytes;
    entries_.pop_front();
  }
}

std::shared_ptr<const PlannedStep> PlanRing::Find(uint64_t generation, uint64_t step) const {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->planned->generation == generation && entry->planned->step == step) {
      return entry->planned;
    }
  }
  return nullptr;
}

std::shared_ptr<const PlannedStep> PlanRing::FindLatest(uint64_t step) const {
  for (auto entry = entries_.rbegin(); entry != entries_.rend(); ++entry) {
    if (entry->planned->step == step) return entry->planned;
  }
  return nullptr;
}

bool PlanRing::MayHaveDropped(uint64_t generation, uint64_t step) const {
  return dropped_ && dropped_->generation == generation && step <= dropped_->highest_step;
}

std::vector<uint64_t> PlanRing::Steps() const {
  std::vector<uint64_t> steps;
  steps.reserve(entries_.size());
  for (const Entry& entry : entries_) steps.push_back(entry.planned->step);
  std::sort(steps.begin(), steps.end());
  steps.erase(std::unique(steps.begin(), steps.end()), steps.end());
  return steps;
}

std::vector<std::shared_ptr<const PlannedStep>> PlanRing::Kept() const {
  std::vector<std::shared_ptr<const PlannedStep>> kept;
  kept.reserve(entries_.size());
  for (const Entry& entry : entries_) kept.push_back(entry.planned);
  return kept;
}

void PlanRing::SetLengthImbalance(uint64_t generation, uint64_t step, double imbalance) {
  for (Entry& entry : entries_) {
    if (entry.planned->generation == generation && entry.planned->step == step) {
      entry.length_imbalance = imbalance;
    }
  }
}

double PlanRing::LengthImbalance(const PlannedStep& planned) const {
  for (const Entry& entry : entries_) {
    if (entry.planned.get() == &planned) return entry.length_imbalance;
  }
  return 0;
}

}  // namespace sparsebalance
