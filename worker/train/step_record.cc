#include "worker/train/step_record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <limits>

namespace sparsebalance {
namespace {

constexpr size_t kDoubles = sizeof(RankStepStats) / sizeof(double);
static_assert(kDoubles * sizeof(double) == sizeof(RankStepStats));

double Sum(const std::vector<RankStepStats>& ranks, double RankStepStats::*field) {
  double sum = 0;
  for (const RankStepStats& rank : ranks) sum += rank.*field;
  return sum;
}

double Max(const std::vector<RankStepStats>& ranks, double RankStepStats::*field) {
  double most = 0;
  for (const RankStepStats& rank : ranks) most = std::max(most, rank.*field);
  return most;
}

}  // namespace

double StepRecord::step_ms() const { return Max(ranks, &RankStepStats::step_ms); }

double StepRecord::rank_imbalance() const {
  const double sum = Sum(ranks, &RankStepStats::compute_ms);
  if (sum <= 0) return 1;
  return Max(ranks, &RankStepStats::compute_ms) * static_cast<double>(ranks.size()) / sum;
}

double StepRecord::idle_fraction() const {
  const double total = Sum(ranks, &RankStepStats::step_ms);
  return total > 0 ? Sum(ranks, &RankStepStats::idle_ms) / total : 0;
}

double StepRecord::mean_coverage() const {
  const double count = sequences();
  return count > 0 ? Sum(ranks, &RankStepStats::coverage_sum) / count : 1;
}

double StepRecord::loss() const {
  const double supervised = Sum(ranks, &RankStepStats::supervised_tokens);
  return supervised > 0 ? Sum(ranks, &RankStepStats::loss_sum) / supervised : 0;
}

double StepRecord::plan_wait_ms() const { return Max(ranks, &RankStepStats::plan_wait_ms); }
double StepRecord::tokens() const { return Sum(ranks, &RankStepStats::tokens); }
double StepRecord::sequences() const { return Sum(ranks, &RankStepStats::sequences); }
double StepRecord::peak_memory_bytes() const {
  return Max(ranks, &RankStepStats::peak_memory_bytes);
}

double StepRecord::audited_sequences() const {
  return Sum(ranks, &RankStepStats::audited_sequences);
}
double StepRecord::audited_mass() const {
  const double count = audited_sequences();
  return count > 0 ? Sum(ranks, &RankStepStats::audited_mass_sum) / count : 0;
}
double StepRecord::audited_coverage() const {
  const double count = audited_sequences();
  return count > 0 ? Sum(ranks, &RankStepStats::audited_coverage_sum) / count : 0;
}

double StepRecord::guard_raises() const { return Sum(ranks, &RankStepStats::guard_raises); }
double StepRecord::attended_flops() const { return Sum(ranks, &RankStepStats::attended_flops); }

std::optional<double> StepRecord::mfu() const {
  const bool known = std::all_of(ranks.begin(), ranks.end(),
                                 [](const RankStepStats& r) { return r.peak_flops > 0; });
  const double possible = Sum(ranks, &RankStepStats::peak_flops) * step_ms() / 1e3;
  if (!known || !(possible > 0)) return std::nullopt;
  return attended_flops() / possible;
}

v1::NoPlanReason StepRecord::no_plan_reason() const {
  int first = v1::NO_PLAN_REASON_NONE;
  for (const RankStepStats& rank : ranks) {
    const int reason = static_cast<int>(rank.no_plan_reason);
    if (reason != v1::NO_PLAN_REASON_NONE && (first == v1::NO_PLAN_REASON_NONE || reason < first)) {
      first = reason;
    }
  }
  return used_fallback ? static_cast<v1::NoPlanReason>(first) : v1::NO_PLAN_REASON_NONE;
}

absl::StatusOr<std::vector<RankStepStats>> GatherStats(Communicator& comm,
                                                       const RankStepStats& mine) {
  std::array<double, kDoubles> packed;
  std::memcpy(packed.data(), &mine, sizeof(mine));
  std::vector<double> all(kDoubles * static_cast<size_t>(comm.size()));
  if (absl::Status status = comm.AllGather(packed, all); !status.ok()) return status;
  std::vector<RankStepStats> ranks(static_cast<size_t>(comm.size()));
  std::memcpy(static_cast<void*>(ranks.data()), all.data(), all.size() * sizeof(double));
  // The rank that computed longest waited for nobody: what it has is the time of the sum itself.
  double least = std::numeric_limits<double>::infinity();
  for (const RankStepStats& rank : ranks) least = std::min(least, rank.idle_ms);
  for (RankStepStats& rank : ranks) rank.idle_ms -= least;
  return ranks;
}

}  // namespace sparsebalance
