#include "coordinator/service/step_barrier.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {

// A node whose calls have all ended may come back with another batch.
bool StepBarrier::Withdrawn(const Step& step, const std::string& node_id) {
  return step.phase == Phase::kCollecting &&
         std::none_of(step.waiters.begin(), step.waiters.end(),
                      [&](const StepWaiter& waiter) { return waiter.node_id == node_id; });
}

absl::Status StepBarrier::Mismatch(const Step& step, const std::string& node_id,
                                   const v1::GlobalBatch& batch) const {
  v1::BatchMismatch detail;
  *detail.mutable_job() = id_.ToProto();
  detail.set_step(batch.step());
  std::vector<std::string> words;
  words.reserve(step.digests.size() + 1);
  const auto add = [&](const std::string& who, uint64_t digest) {
    detail.add_node_ids(who);
    detail.add_digests(digest);
    words.push_back(absl::StrCat(who, " ", absl::Hex(digest, absl::kZeroPad16)));
  };
  for (const auto& [other, digest] : step.digests) {
    if (other != node_id || !Withdrawn(step, node_id)) add(other, digest);
  }
  add(node_id, batch.digest());
  absl::Status status = absl::FailedPreconditionError(absl::StrCat(
      "nodes of job ", id_.ToString(), " gave different batches for step ", batch.step(), ": ",
      absl::StrJoin(words, ", "), "; compare their data sets, seeds and positions"));
  planner::AttachDetail(status, detail);
  return status;
}

bool StepBarrier::MakeRoom() {
  if (steps_.size() < max_open_) return true;
  // Steps that nobody waits for any more were trained without a plan.
  const auto idle = std::find_if(steps_.begin(), steps_.end(), [](const auto& entry) {
    return entry.second.waiters.empty() && entry.second.phase != Phase::kPlanning;
  });
  if (idle == steps_.end()) return false;
  steps_.erase(idle);
  return true;
}

StepBarrier::Arrival StepBarrier::Arrive(const std::string& node_id, const v1::GlobalBatch& batch,
                                         size_t node_count) {
  Arrival arrival;
  const uint64_t number = batch.step();
  if (!steps_.contains(number)) {
    if (!MakeRoom()) {
      arrival.outcome = Outcome::kRefused;
      arrival.error = absl::ResourceExhaustedError(
          absl::StrCat(steps_.size(), " steps of job ", id_.ToString(),
                       " are waited for already; ask for step ", number, " after one of them"));
      return arrival;
    }
  }
  Step& step = steps_[number];
  const auto own = step.digests.find(node_id);
  if (step.phase == Phase::kFailed) {
    if (own != step.digests.end() && own->second == batch.digest()) {
      arrival.outcome = Outcome::kRefused;
      arrival.error = step.failure;
      return arrival;
    }
    // Another batch: the step starts afresh.
    step = Step();
  }

  const bool differ = std::any_of(step.digests.begin(), step.digests.end(), [&](const auto& entry) {
    return entry.second != batch.digest() && (entry.first != node_id || !Withdrawn(step, node_id));
  });
  if (differ) {
    arrival.outcome = Outcome::kRefused;
    arrival.error = Mismatch(step, node_id, batch);
    arrival.told = std::move(step.waiters);
    steps_.erase(number);
    return arrival;
  }

  step.digests[node_id] = batch.digest();
  // A batch that was sent before with another digest was withdrawn by its sender.
  if (step.batch != nullptr && step.batch->digest() != batch.digest()) step.batch = nullptr;
  if (step.batch == nullptr && !batch.sequences().empty()) {
    step.batch = std::make_shared<const v1::GlobalBatch>(batch);
  }
  if (step.phase == Phase::kCollecting && step.batch != nullptr &&
      step.digests.size() >= node_count) {
    step.phase = Phase::kPlanning;
    step.serial = next_serial_++;
    arrival.outcome = Outcome::kComplete;
    arrival.serial = step.serial;
  }
  return arrival;
}

void StepBarrier::AddWaiter(uint64_t step, StepWaiter waiter) {
  steps_[step].waiters.push_back(std::move(waiter));
}

std::optional<StepWaiter> StepBarrier::RemoveWaiter(uint64_t step, uint64_t waiter_id) {
  const auto entry = steps_.find(step);
  if (entry == steps_.end()) return std::nullopt;
  std::vector<StepWaiter>& waiters = entry->second.waiters;
  const auto waiter =
      std::find_if(waiters.begin(), waiters.end(),
                   [&](const StepWaiter& candidate) { return candidate.id == waiter_id; });
  if (waiter == waiters.end()) return std::nullopt;
  std::optional<StepWaiter> removed = std::move(*waiter);
  waiters.erase(waiter);
  return removed;
}

StepBarrier::Step* StepBarrier::Attempt(uint64_t step, uint64_t serial) {
  const auto entry = steps_.find(step);
  if (entry == steps_.end() || entry->second.serial != serial ||
      entry->second.phase != Phase::kPlanning) {
    return nullptr;
  }
  return &entry->second;
}

std::shared_ptr<const v1::GlobalBatch> StepBarrier::Batch(uint64_t step, uint64_t serial) const {
  const auto entry = steps_.find(step);
  return entry == steps_.end() || entry->second.serial != serial ? nullptr : entry->second.batch;
}

std::optional<std::vector<StepWaiter>> StepBarrier::Finish(uint64_t step, uint64_t serial) {
  Step* attempt = Attempt(step, serial);
  if (attempt == nullptr) return std::nullopt;
  std::vector<StepWaiter> waiters = std::move(attempt->waiters);
  steps_.erase(step);
  // Every node has moved on to this step: what is left of earlier ones was trained without a plan.
  std::erase_if(steps_, [&](const auto& entry) {
    return entry.first < step && entry.second.waiters.empty() &&
           entry.second.phase != Phase::kPlanning;
  });
  return waiters;
}

std::vector<StepWaiter> StepBarrier::Fail(uint64_t step, uint64_t serial, const absl::Status& why) {
  Step* attempt = Attempt(step, serial);
  if (attempt == nullptr) return {};
  attempt->phase = Phase::kFailed;
  attempt->failure = why;
  return std::exchange(attempt->waiters, {});
}

std::vector<StepWaiter> StepBarrier::Postpone(uint64_t step, uint64_t serial) {
  Step* attempt = Attempt(step, serial);
  if (attempt == nullptr) return {};
  attempt->phase = Phase::kCollecting;
  return std::exchange(attempt->waiters, {});
}

std::vector<StepWaiter> StepBarrier::Clear() {
  std::vector<StepWaiter> waiters;
  for (auto& [number, step] : steps_) {
    std::move(step.waiters.begin(), step.waiters.end(), std::back_inserter(waiters));
  }
  steps_.clear();
  return waiters;
}

absl::Time StepBarrier::WaitingSince() const {
  absl::Time since = absl::InfiniteFuture();
  for (const auto& [number, step] : steps_) {
    if (step.phase != Phase::kCollecting) continue;
    for (const StepWaiter& waiter : step.waiters) since = std::min(since, waiter.since);
  }
  return since;
}

std::vector<std::string> StepBarrier::MissingNodes(uint64_t step,
                                                   const std::vector<std::string>& nodes) const {
  const auto entry = steps_.find(step);
  std::vector<std::string> missing;
  for (const std::string& node : nodes) {
    if (entry == steps_.end() || !entry->second.digests.contains(node)) missing.push_back(node);
  }
  return missing;
}

}  // namespace sparsebalance
