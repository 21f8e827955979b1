#include "coordinator/simulation/simulator.h"

#include <algorithm>
#include <chrono>
#include <deque>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/planner.h"

namespace sparsebalance::simulation {
namespace {

// Rounding of coverage to 1e-9 is no violation.
constexpr double kRounding = 1e-6;

v1::PlanRequest MakeBatch(const SimulationOptions& options, uint64_t step, Random& random) {
  v1::PlanRequest request;
  *request.mutable_settings() = options.settings;
  *request.mutable_latency() = options.profile.model();
  request.set_step(step);
  for (uint64_t i = 0; i < options.global_batch_size; ++i) {
    v1::Sequence& q = *request.add_sequences();
    q.set_id(step * options.global_batch_size + i);
    q.set_tokens(options.workload.sample(random));
    q.set_supervised_tokens(q.tokens());
    const auto blocks =
        static_cast<uint32_t>(planner::BlocksOf(q.tokens(), options.settings.block_tokens()));
    if (options.layers == 0) *q.mutable_coverage() = options.coverage.sample(blocks, random);
    for (uint32_t l = 0; l < options.layers; ++l) {
      *q.add_layer_coverage() = options.coverage.sample(blocks, random);
    }
  }
  return request;
}

struct Kept {
  double coverage = 0;
  bool guarded = true;
};

Kept CoverageKept(const v1::PlanSettings& s, const v1::Sequence& q, const v1::Slice& slice) {
  const auto blocks = static_cast<uint32_t>(planner::BlocksOf(q.tokens(), s.block_tokens()));
  double base = 0;
  Kept kept;
  const auto add = [&](const v1::CoverageCurve& curve, uint32_t budget, bool own_guard) {
    const double at_base =
        planner::CoverageAt(curve, blocks, std::min(s.base_budget_blocks(), blocks));
    const double covered = planner::CoverageAt(curve, blocks, std::min(budget, blocks));
    base += at_base;
    kept.coverage += covered;
    if (own_guard && covered < (1 - s.coverage_guard()) * at_base - kRounding) kept.guarded = false;
  };
  const int layers = std::max(1, q.layer_coverage_size());
  const bool dealt = !slice.layer_budget_blocks().empty();
  for (int l = 0; l < layers; ++l) {
    add(q.layer_coverage().empty() ? q.coverage() : q.layer_coverage(l),
        dealt ? slice.layer_budget_blocks(l) : slice.budget_blocks(), dealt);
  }
  if (kept.coverage < (1 - s.coverage_guard()) * base - kRounding * layers) kept.guarded = false;
  kept.coverage /= layers;
  return kept;
}

// Sequence by sequence, from plan and request alone.
void Tally(const v1::PlanRequest& request, const v1::Plan& plan, PolicyResult& result) {
  const v1::PlanSettings& s = request.settings();
  std::map<uint64_t, const v1::Sequence*> sequences;
  for (const v1::Sequence& q : request.sequences()) sequences[q.id()] = &q;
  const uint64_t padding = std::max<uint32_t>(1, s.padding_multiple());
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (const v1::MicroBatch& mb : rank.micro_batches()) {
      uint64_t padded = 0;
      for (const v1::Slice& slice : mb.slices()) {
        const v1::Sequence& q = *sequences.at(slice.sequence_id());
        padded += (q.tokens() + padding - 1) / padding * padding;
        const Kept kept = CoverageKept(s, q, slice);
        result.budgets.push_back(slice.budget_blocks());
        result.coverages.push_back(kept.coverage);
        result.guard_violations += kept.guarded ? 0 : 1;
      }
      result.cap_violations += padded > s.max_tokens_per_micro_batch() ? 1 : 0;
    }
  }
}

// The batches of one policy, from the next step on: exchanges make them differ.
using Window = std::deque<v1::PlanRequest>;

// The request of the window's first step, with the batches that it may exchange with.
v1::PlanRequest RequestOf(const Window& window) {
  v1::PlanRequest request = window.front();
  for (size_t b = 1; b < window.size(); ++b) {
    v1::UpcomingBatch& upcoming = *request.add_upcoming();
    upcoming.set_step(window[b].step());
    *upcoming.mutable_sequences() = window[b].sequences();
  }
  return request;
}

// Does what the plan says; the first batch is then what it trains.
void Exchange(const v1::Plan& plan, Window& window) {
  const auto find = [](v1::PlanRequest& batch, uint64_t id) {
    return std::find_if(batch.mutable_sequences()->begin(), batch.mutable_sequences()->end(),
                        [id](const v1::Sequence& q) { return q.id() == id; });
  };
  for (const v1::SequenceExchange& exchange : plan.exchanges()) {
    const auto ahead = exchange.later_step() - window.front().step();
    const auto mine = find(window.front(), exchange.later_id());
    mine->set_deferred_steps(mine->deferred_steps() + static_cast<uint32_t>(ahead));
    mine->Swap(&*find(window[ahead], exchange.now_id()));
  }
}

double Quantile(std::vector<double> values, double q) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(q * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

}  // namespace

absl::StatusOr<SimulationResult> Simulate(const SimulationOptions& options) {
  if (options.steps == 0 || options.global_batch_size == 0 || options.policies.empty()) {
    return absl::InvalidArgumentError(
        "a simulation needs at least one step, one sequence a step and one policy");
  }
  SimulationResult result;
  for (const std::string& policy : options.policies) result.policies.emplace_back().policy = policy;
  std::vector<std::vector<double>> plan_ms(options.policies.size());
  Random random(options.seed);
  const bool scheduled = options.settings.pipeline_parallel_size() > 1;
  const auto steps = static_cast<double>(options.steps);
  std::vector<Window> windows(options.policies.size());
  const uint64_t ahead = std::max<uint64_t>(1, options.settings.lookahead_steps());
  uint64_t made = 0;
  for (uint64_t step = 0; step < options.steps; ++step) {
    for (; made < std::min(options.steps, step + ahead); ++made) {
      const v1::PlanRequest batch = MakeBatch(options, made, random);
      for (const v1::Sequence& q : batch.sequences()) {
        result.lengths.push_back(q.tokens());
        result.tokens += q.tokens();
      }
      for (Window& window : windows) window.push_back(batch);
      if (made == 0) result.first_request = batch;
    }
    for (size_t p = 0; p < options.policies.size(); ++p) {
      PolicyResult& out = result.policies[p];
      v1::PlanRequest request = RequestOf(windows[p]);
      request.mutable_settings()->set_policy(out.policy);
      const auto begin = std::chrono::steady_clock::now();
      absl::StatusOr<v1::Plan> plan = planner::MakePlan(request);
      const std::chrono::duration<double, std::milli> took =
          std::chrono::steady_clock::now() - begin;
      if (!plan.ok()) {
        return absl::Status(
            plan.status().code(),
            absl::StrCat("step ", step, ", policy ", out.policy, ": ", plan.status().message()));
      }
      plan_ms[p].push_back(took.count());
      out.step_ms_mean += plan->predicted_step_ms() / steps;
      out.lower_bound_ms_mean += plan->lower_bound_ms() / steps;
      if (plan->lower_bound_ms() > 0) {
        out.gap_mean += (plan->predicted_step_ms() / plan->lower_bound_ms() - 1) / steps;
      }
      out.imbalance_mean +=
          (scheduled ? plan->micro_batch_imbalance() : plan->rank_imbalance()) / steps;
      out.coverage_mean += plan->mean_coverage() / steps;
      out.coverage_ratio_min = std::min(out.coverage_ratio_min, plan->min_coverage_ratio());
      out.fallbacks += plan->fallback() == v1::FALLBACK_REASON_NONE ? 0 : 1;
      out.exchanged_sequences += static_cast<uint64_t>(plan->exchanges_size());
      out.max_displacement_steps =
          std::max(out.max_displacement_steps, plan->max_displacement_steps());
      Exchange(*plan, windows[p]);
      Tally(windows[p].front(), *plan, out);
      windows[p].pop_front();
      if (step == 0) out.first_plan = *std::move(plan);
    }
  }
  result.sequences = options.steps * options.global_batch_size;
  for (size_t p = 0; p < options.policies.size(); ++p) {
    PolicyResult& out = result.policies[p];
    const double first = result.policies[0].step_ms_mean;
    out.speedup = out.step_ms_mean > 0 ? first / out.step_ms_mean : 1;
    out.plan_ms_p50 = Quantile(plan_ms[p], 0.5);
    out.plan_ms_p99 = Quantile(plan_ms[p], 0.99);
  }
  return result;
}

}  // namespace sparsebalance::simulation
