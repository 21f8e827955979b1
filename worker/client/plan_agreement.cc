#include "worker/client/plan_agreement.h"

#include <algorithm>
#include <array>
#include <map>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace sparsebalance {
namespace {

enum Field { kStep, kHasPlan, kEpoch, kGeneration, kPlanDigest, kFallbackDigest, kStop, kFields };

// Groups the ranks by a value in which they differ, largest group first, so that the odd ones out
// are read last: "ranks 0, 1, 3: 00000000000000aa; ranks 2: 00000000000000bb".
absl::StatusOr<std::string> DescribeDifference(Communicator& comm, int64_t own) {
  std::vector<int64_t> all(static_cast<size_t>(comm.size()));
  const std::array<int64_t, 1> mine = {own};
  if (absl::Status status = comm.AllGatherInt64(mine, all); !status.ok()) return status;
  std::map<int64_t, std::vector<int>> ranks_by_value;
  for (int rank = 0; rank < comm.size(); ++rank) {
    ranks_by_value[all[static_cast<size_t>(rank)]].push_back(rank);
  }
  std::vector<std::pair<int64_t, std::vector<int>>> groups(ranks_by_value.begin(),
                                                           ranks_by_value.end());
  std::stable_sort(groups.begin(), groups.end(),
                   [](const auto& a, const auto& b) { return a.second.size() > b.second.size(); });
  std::vector<std::string> parts;
  for (const auto& [value, ranks] : groups) {
    parts.push_back(absl::StrFormat("%s %s: %016x", ranks.size() == 1 ? "rank" : "ranks",
                                    absl::StrJoin(ranks, ", "), static_cast<uint64_t>(value)));
  }
  return absl::StrJoin(parts, "; ");
}

}  // namespace

absl::StatusOr<PlanAgreement> AgreeOnPlan(Communicator& comm, const PlanVote& vote) {
  std::array<int64_t, kFields> mine{};
  mine[kStep] = static_cast<int64_t>(vote.step);
  mine[kHasPlan] = vote.has_plan ? 1 : 0;
  if (vote.has_plan) {
    mine[kEpoch] = static_cast<int64_t>(vote.leader_epoch);
    mine[kGeneration] = static_cast<int64_t>(vote.generation);
    mine[kPlanDigest] = static_cast<int64_t>(vote.plan_digest);
  }
  mine[kFallbackDigest] = static_cast<int64_t>(vote.fallback_digest);
  mine[kStop] = vote.stop_requested ? 1 : 0;

  // The complement reverses the order of integers without overflow: min(x) = ~max(~x).
  std::array<int64_t, 2 * kFields> extremes{};
  for (size_t f = 0; f < kFields; ++f) {
    extremes[f] = mine[f];
    extremes[kFields + f] = ~mine[f];
  }
  if (absl::Status status = comm.AllReduceMaxInt64(extremes); !status.ok()) return status;
  const auto max = [&](Field f) { return extremes[f]; };
  const auto min = [&](Field f) { return ~extremes[static_cast<size_t>(kFields) + f]; };
  const auto differs = [&](Field f) { return max(f) != min(f); };

  if (differs(kStep)) {
    absl::StatusOr<std::string> who = DescribeDifference(comm, mine[kStep]);
    if (!who.ok()) return who.status();
    return absl::FailedPreconditionError(
        absl::StrCat("the ranks are not at the same step (", *who,
                     ", hexadecimal); resume all of them from the same checkpoint"));
  }
  if (differs(kFallbackDigest)) {
    absl::StatusOr<std::string> who = DescribeDifference(comm, mine[kFallbackDigest]);
    if (!who.ok()) return who.status();
    return absl::FailedPreconditionError(absl::StrCat(
        "step ", vote.step, ": the ranks computed different fallback plans (", *who,
        "); they read different data sets or run different versions, so training stops here"));
  }

  PlanAgreement agreement;
  agreement.stop = max(kStop) == 1;
  if (min(kHasPlan) == 0) {
    agreement.reason = max(kHasPlan) == 0 ? "no rank has a plan" : "some ranks have no plan";
  } else if (differs(kEpoch)) {
    agreement.reason = "the ranks hold plans of different leader epochs";
  } else if (differs(kGeneration)) {
    agreement.reason = "the ranks hold plans of different generations";
  } else if (differs(kPlanDigest)) {
    agreement.reason = "the ranks hold different plans";
  } else {
    agreement.use_plan = true;
  }
  return agreement;
}

}  // namespace sparsebalance
