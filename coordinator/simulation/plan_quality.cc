// The plan benchmark: `sparsebalance` against `paper` at the coverage that `paper` keeps, and
// against `length` at the coverage of fixed budgets, with both efforts, on four settings.
//
//   plan_quality [DIR]
//
// Batches are made by a seeded generator, or read from DIR/SETTING.{baseline,paper}.jsonl
// (request_file.h). Ratios are of mean predicted step times; times to plan are of this machine.

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/planner.h"
#include "coordinator/simulation/random.h"
#include "coordinator/simulation/request_file.h"
#include "coordinator/simulation/workload.h"

namespace sparsebalance::simulation {
namespace {

constexpr int kBatches = 50;
constexpr uint64_t kSeed = 20'260'301;
constexpr double kLowestAlpha = 0.6;
constexpr double kHighestAlpha = 1.8;

struct Setting {
  const char* name;
  const char* workload;
  uint32_t ranks, stages;
  int sequences;
};

constexpr Setting kSettings[] = {{"chatqa2-dp2pp4", "chatqa2-like", 2, 4, 16},
                                 {"chatqa2-dp8pp1", "chatqa2-like", 8, 1, 64},
                                 {"longalign-dp2pp4", "longalign-like", 2, 4, 16},
                                 {"longalign-dp8pp1", "longalign-like", 8, 1, 64}};

absl::StatusOr<v1::Plan> PlanBy(v1::PlanRequest request, const std::string& policy,
                                v1::SearchEffort effort = v1::SEARCH_EFFORT_NORMAL) {
  request.mutable_settings()->set_policy(policy);
  request.mutable_settings()->set_search_effort(effort);
  return planner::MakePlan(request);
}

absl::StatusOr<std::vector<v1::PlanRequest>> Generate(const Setting& setting, bool at_paper) {
  const absl::StatusOr<Workload> workload = LoadWorkload(setting.workload);
  if (!workload.ok()) return workload.status();
  Random random(kSeed);
  std::vector<v1::PlanRequest> requests(kBatches);
  for (v1::PlanRequest& request : requests) {
    v1::PlanSettings& s = *request.mutable_settings();
    s.set_data_parallel_size(setting.ranks);
    s.set_pipeline_parallel_size(setting.stages);
    s.set_block_tokens(256);
    s.set_base_budget_blocks(32);
    s.set_max_budget_blocks(128);
    s.set_max_tokens_per_micro_batch(73728);
    s.set_micro_batch_size(1);
    s.set_coverage_guard(0.1);
    v1::LatencyModel& m = *request.mutable_latency();
    m.set_constant_ms(0.4);
    m.set_per_token_ms(0.0016);
    m.set_per_pair_ms(4.5e-7);
    m.set_forward_fraction(1.0 / 3.0);
    for (int i = 0; i < setting.sequences; ++i) {
      v1::Sequence& q = *request.add_sequences();
      q.set_id(static_cast<uint64_t>(i));
      q.set_tokens(workload->sample(random));
      const auto blocks = static_cast<uint32_t>(planner::BlocksOf(q.tokens(), 256));
      *q.mutable_coverage() =
          planner::DensePowerCurve(blocks, random.Between(kLowestAlpha, kHighestAlpha));
    }
    if (!at_paper) continue;
    const absl::StatusOr<v1::Plan> paper = PlanBy(request, "paper");
    if (!paper.ok()) return paper.status();
    s.mutable_coverage_floor()->set_value(paper->mean_coverage());
  }
  return requests;
}

struct Figures {
  double step_ms = 0, gap = 0, plan_ms_p50 = 0, plan_ms_max = 0;
  int worse = 0;  // batches on which the reference is faster
};

absl::StatusOr<Figures> Measure(const std::vector<v1::PlanRequest>& requests,
                                const std::vector<double>& reference, v1::SearchEffort effort) {
  Figures out;
  std::vector<double> plan_ms;
  const auto n = static_cast<double>(requests.size());
  for (size_t i = 0; i < requests.size(); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<v1::Plan> plan = PlanBy(requests[i], "sparsebalance", effort);
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    if (!plan.ok()) return plan.status();
    plan_ms.push_back(took.count());
    out.step_ms += plan->predicted_step_ms() / n;
    out.gap += (plan->predicted_step_ms() / plan->lower_bound_ms() - 1) / n;
    out.worse += plan->predicted_step_ms() > reference[i] ? 1 : 0;
  }
  std::sort(plan_ms.begin(), plan_ms.end());
  out.plan_ms_p50 = plan_ms[plan_ms.size() / 2];
  out.plan_ms_max = plan_ms.back();
  return out;
}

absl::Status Compare(const std::string& folder, bool at_paper) {
  const std::string reference_policy = at_paper ? "paper" : "length";
  std::printf("\nagainst `%s`, at the mean coverage of %s\n", reference_policy.c_str(),
              at_paper ? "`paper`" : "fixed budgets");
  std::printf("%-18s %-7s %9s %9s %7s %7s %11s %8s %6s\n", "setting", "effort", "reference",
              "step ms", "ratio", "gap %", "plan ms p50", "max", "worse");
  for (const auto& [effort, name] :
       {std::pair{v1::SEARCH_EFFORT_NORMAL, "normal"}, {v1::SEARCH_EFFORT_HIGH, "high"}}) {
    double product = 1;
    for (const Setting& setting : kSettings) {
      const auto requests =
          folder.empty()
              ? Generate(setting, at_paper)
              : ReadPlanRequests(absl::StrCat(folder, "/", setting.name,
                                              at_paper ? ".paper" : ".baseline", ".jsonl"));
      if (!requests.ok()) return requests.status();
      std::vector<double> reference;
      double mean = 0;
      for (const v1::PlanRequest& request : *requests) {
        const absl::StatusOr<v1::Plan> plan = PlanBy(request, reference_policy);
        if (!plan.ok()) return plan.status();
        reference.push_back(plan->predicted_step_ms());
        mean += reference.back() / static_cast<double>(requests->size());
      }
      const absl::StatusOr<Figures> f = Measure(*requests, reference, effort);
      if (!f.ok()) return f.status();
      product *= mean / f->step_ms;
      std::printf("%-18s %-7s %9.2f %9.2f %7.4f %7.2f %11.2f %8.2f %6d\n", setting.name, name, mean,
                  f->step_ms, mean / f->step_ms, 100 * f->gap, f->plan_ms_p50, f->plan_ms_max,
                  f->worse);
    }
    std::printf("%-18s %-7s %9s %9s %7.4f\n", "geometric mean", name, "", "",
                std::pow(product, 1.0 / std::size(kSettings)));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsebalance::simulation

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  for (const bool at_paper : {true, false}) {
    const absl::Status status = sparsebalance::simulation::Compare(folder, at_paper);
    if (!status.ok()) {
      std::cerr << "plan_quality: " << status.message() << "\n";
      return 1;
    }
  }
  return 0;
}
