#include "coordinator/planner/plan_slice.h"

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/lookahead.h"
#include "coordinator/planner/problem.h"

namespace sparsebalance::planner {
namespace {

class Checker {
 public:
  explicit Checker(const Problem& problem) : problem_(problem), seen_(problem.num_sequences()) {}

  absl::Status Check(const v1::Plan& plan) {
    if (plan.ranks_size() != problem_.num_ranks()) {
      return Broken("the plan has ", plan.ranks_size(), " ranks, the job ", problem_.num_ranks());
    }
    for (int r = 0; r < plan.ranks_size(); ++r) {
      if (plan.ranks(r).rank() != static_cast<uint32_t>(r)) {
        return Broken("position ", r, " holds rank ", plan.ranks(r).rank());
      }
      const int count = plan.ranks(r).micro_batches_size();
      if (problem_.fixed_count() > 0 && count != problem_.fixed_count()) {
        return Broken("rank ", r, " has ", count, " micro-batches, the job fixes ",
                      problem_.fixed_count());
      }
      if (problem_.equal_count() && count != plan.ranks(0).micro_batches_size()) {
        return Broken("rank ", r, " has ", count, " micro-batches, rank 0 ",
                      plan.ranks(0).micro_batches_size());
      }
      for (const v1::MicroBatch& mb : plan.ranks(r).micro_batches()) {
        if (absl::Status s = CheckMicroBatch(r, mb); !s.ok()) return s;
      }
    }
    for (int i = 0; i < problem_.num_sequences(); ++i) {
      if (!seen_[i]) return Broken("sequence ", problem_.sequence(i).id, " is missing");
    }
    return absl::OkStatus();
  }

 private:
  template <class... Parts>
  static absl::Status Broken(const Parts&... parts) {
    return absl::InternalError(absl::StrCat("plan breaks a hard constraint: ", parts...));
  }

  int Find(uint64_t id) const {
    int low = 0;
    int high = problem_.num_sequences();
    // Ids are often spread evenly: the first guesses are where this one then would be.
    for (int guesses = 0; guesses < 3 && high - low > 8; ++guesses) {
      const uint64_t first = problem_.sequence(low).id;
      const uint64_t last = problem_.sequence(high - 1).id;
      if (id < first || id > last) return -1;
      const int guess =
          low + static_cast<int>(static_cast<double>(id - first) /
                                 static_cast<double>(last - first) * (high - low - 1));
      const uint64_t there = problem_.sequence(guess).id;
      if (there == id) return guess;
      if (there < id) {
        low = guess + 1;
      } else {
        high = guess;
      }
    }
    while (low < high) {
      const int middle = (low + high) / 2;
      if (problem_.sequence(middle).id < id) {
        low = middle + 1;
      } else {
        high = middle;
      }
    }
    return low < problem_.num_sequences() && problem_.sequence(low).id == id ? low : -1;
  }

  absl::Status CheckMicroBatch(int r, const v1::MicroBatch& mb) {
    if (mb.zero_weight() != (mb.slices_size() == 0)) {
      return Broken("rank ", r, " has a micro-batch of ", mb.slices_size(),
                    " slices with zero_weight ", mb.zero_weight() ? "set" : "unset");
    }
    int64_t padded = 0;
    for (const v1::Slice& slice : mb.slices()) {
      const int i = Find(slice.sequence_id());
      if (i < 0) return Broken("sequence ", slice.sequence_id(), " is not in the batch");
      if (seen_[i]) return Broken("sequence ", slice.sequence_id(), " is planned twice");
      seen_[i] = true;
      const ProblemSequence& s = problem_.sequence(i);
      if (slice.token_begin() != 0 || slice.token_end() != static_cast<uint64_t>(s.tokens)) {
        return Broken("sequence ", s.id, " is cut to [", slice.token_begin(), ", ",
                      slice.token_end(), ")");
      }
      if (absl::Status st = CheckBudget(s, slice.budget_blocks()); !st.ok()) return st;
      if (absl::Status st = CheckLayers(i, slice); !st.ok()) return st;
      padded += problem_.padded_tokens(i);
    }
    if (padded > problem_.rank(r).cap_tokens) {
      return Broken("a micro-batch of rank ", r, " holds ", padded, " padded tokens, its cap is ",
                    problem_.rank(r).cap_tokens);
    }
    return absl::OkStatus();
  }

  static absl::Status CheckBudget(const ProblemSequence& s, uint32_t budget) {
    if (budget < static_cast<uint32_t>(s.low) || budget > static_cast<uint32_t>(s.high)) {
      return Broken("sequence ", s.id, " has budget ", budget, ", allowed are ", s.low, " to ",
                    s.high, " by the budget range and the coverage guard");
    }
    return absl::OkStatus();
  }

  absl::Status CheckLayers(int i, const v1::Slice& slice) const {
    const LayerBudgets* layers = problem_.Layers(i);
    if (layers == nullptr && slice.layer_budget_blocks().empty()) return absl::OkStatus();
    if (layers != nullptr) {
      std::vector<uint32_t> budgets(slice.layer_budget_blocks().begin(),
                                    slice.layer_budget_blocks().end());
      if (budgets.empty()) budgets.assign(layers->layers(), slice.budget_blocks());
      if (layers->Allows(budgets, static_cast<int32_t>(slice.budget_blocks()))) {
        return absl::OkStatus();
      }
    }
    return Broken("sequence ", slice.sequence_id(), " has ", slice.layer_budget_blocks_size(),
                  " layer budgets, ",
                  layers == nullptr ? "but one budget for all layers"
                                    : "which break the coverage guard of a layer, the budget "
                                      "range or the work of its budget on a stage");
  }

  const Problem& problem_;
  std::vector<bool> seen_;
};

}  // namespace

v1::Plan PlanForRanks(const v1::Plan& plan, absl::Span<const uint32_t> data_ranks) {
  v1::Plan part;
  // Copying a large plan to drop most of it would cost more than the slice itself; and with a node
  // for every few ranks, looking through all of them would cost more than the copy.
  for (const uint32_t wanted : data_ranks) {
    if (wanted < static_cast<uint32_t>(plan.ranks_size()) &&
        plan.ranks(static_cast<int>(wanted)).rank() == wanted) {
      *part.add_ranks() = plan.ranks(static_cast<int>(wanted));
      continue;
    }
    const auto rank = std::find_if(plan.ranks().begin(), plan.ranks().end(),
                                   [&](const v1::RankPlan& r) { return r.rank() == wanted; });
    if (rank != plan.ranks().end()) *part.add_ranks() = *rank;
  }
  part.set_step(plan.step());
  part.set_policy(plan.policy());
  part.set_predicted_step_ms(plan.predicted_step_ms());
  part.set_lower_bound_ms(plan.lower_bound_ms());
  part.set_mean_coverage(plan.mean_coverage());
  part.set_token_weighted_mean_coverage(plan.token_weighted_mean_coverage());
  part.set_baseline_mean_coverage(plan.baseline_mean_coverage());
  part.set_min_coverage_ratio(plan.min_coverage_ratio());
  part.set_rank_imbalance(plan.rank_imbalance());
  part.set_micro_batch_imbalance(plan.micro_batch_imbalance());
  part.set_length_policy_step_ms(plan.length_policy_step_ms());
  part.set_global_supervised_tokens(plan.global_supervised_tokens());
  part.set_fallback(plan.fallback());
  part.set_fallback_detail(plan.fallback_detail());
  part.set_extrapolated_sequences(plan.extrapolated_sequences());
  part.set_bubble_fraction(plan.bubble_fraction());
  *part.mutable_exchanges() = plan.exchanges();
  part.set_max_displacement_steps(plan.max_displacement_steps());
  part.set_lookahead_saved_ms(plan.lookahead_saved_ms());
  return part;
}

absl::Status CheckPlan(const v1::PlanRequest& request, const v1::Plan& plan) {
  absl::StatusOr<v1::PlanRequest> trained = AfterExchanges(request, plan.exchanges());
  if (!trained.ok()) return absl::InternalError(trained.status().message());
  absl::StatusOr<Problem> problem = Problem::Create(*trained);
  if (!problem.ok()) return problem.status();
  return CheckPlan(*problem, plan);
}

absl::Status CheckPlan(const Problem& problem, const v1::Plan& plan) {
  return Checker(problem).Check(plan);
}

}  // namespace sparsebalance::planner
