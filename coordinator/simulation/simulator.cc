#include "coordinator/simulation/simulator.h"

#include <algorithm>
#include <chrono>
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
    *q.mutable_coverage() = options.coverage.sample(blocks, random);
  }
  return request;
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
        const auto blocks = static_cast<uint32_t>(planner::BlocksOf(q.tokens(), s.block_tokens()));
        const double base =
            planner::CoverageAt(q.coverage(), blocks, std::min(s.base_budget_blocks(), blocks));
        const double kept =
            planner::CoverageAt(q.coverage(), blocks, std::min(slice.budget_blocks(), blocks));
        result.budgets.push_back(slice.budget_blocks());
        result.coverages.push_back(kept);
        result.guard_violations += kept < (1 - s.coverage_guard()) * base - kRounding ? 1 : 0;
      }
      result.cap_violations += padded > s.max_tokens_per_micro_batch() ? 1 : 0;
    }
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
  for (uint64_t step = 0; step < options.steps; ++step) {
    v1::PlanRequest request = MakeBatch(options, step, random);
    for (const v1::Sequence& q : request.sequences()) {
      result.lengths.push_back(q.tokens());
      result.tokens += q.tokens();
    }
    for (size_t p = 0; p < options.policies.size(); ++p) {
      PolicyResult& out = result.policies[p];
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
      Tally(request, *plan, out);
      if (step == 0) out.first_plan = *std::move(plan);
    }
    if (step == 0) result.first_request = std::move(request);
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
