#include "coordinator/cli/simulate.h"

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/table.h"
#include "coordinator/planner/settings_text.h"
#include "coordinator/planner/validation.h"
#include "coordinator/simulation/coverage_source.h"
#include "coordinator/simulation/modelled_profile.h"
#include "coordinator/simulation/simulation_page.h"
#include "coordinator/simulation/simulator.h"
#include "coordinator/simulation/trace_replay.h"
#include "coordinator/simulation/workload.h"
#include "google/protobuf/util/json_util.h"
#include "nlohmann/json.hpp"

namespace sparsebalance {
namespace {

using simulation::PolicyResult;
using simulation::SimulationOptions;
using simulation::SimulationResult;

absl::StatusOr<v1::LatencyProfile> LoadProfile(const SimulateFlags& flags) {
  if (flags.profile.empty()) {
    return simulation::ModelledProfile(flags.pipeline_parallel, flags.block_tokens);
  }
  std::ifstream in(flags.profile);
  if (!in) return absl::NotFoundError(absl::StrCat(flags.profile, " cannot be opened"));
  std::ostringstream text;
  text << in.rdbuf();
  v1::LatencyProfile profile;
  const auto parsed = google::protobuf::util::JsonStringToMessage(text.str(), &profile);
  if (!parsed.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.profile, ": not a latency profile: ", std::string(parsed.message())));
  }
  const uint32_t blocks = profile.model().block_tokens();
  if (blocks != 0 && blocks != flags.block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.profile, ": made for blocks of ", blocks, " tokens, the simulation has ",
                     flags.block_tokens, "; use --block-tokens ", blocks, " or another profile"));
  }
  if (profile.source().empty()) profile.set_source(absl::StrCat("profile ", flags.profile));
  return profile;
}

absl::StatusOr<SimulationOptions> MakeOptions(const SimulateFlags& flags) {
  SimulationOptions options;
  v1::PlanSettings& s = options.settings;
  s.set_data_parallel_size(flags.data_parallel);
  s.set_pipeline_parallel_size(flags.pipeline_parallel);
  s.set_block_tokens(flags.block_tokens);
  s.set_base_budget_blocks(flags.base_budget);
  s.set_min_budget_blocks(1);
  s.set_max_budget_blocks(flags.max_budget);
  s.set_max_tokens_per_micro_batch(flags.max_tokens);
  s.set_micro_batch_size(flags.micro_batch_size);
  s.set_coverage_guard(flags.guard);
  s.set_lookahead_steps(flags.lookahead_steps);
  s.set_layer_budgets(flags.layers > 0);
  for (const absl::Status& status :
       {planner::Named("--effort", planner::ParseSearchEffort(flags.effort, s)),
        planner::Named("--floor",
                       planner::ParseCoverageFloor(flags.floor, *s.mutable_coverage_floor()))}) {
    if (!status.ok()) return status;
  }
  // Before anything is computed from them.
  if (absl::Status status = planner::ValidateSettings(s); !status.ok()) return status;
  options.global_batch_size = flags.global_batch_size;
  options.steps = flags.steps;
  options.seed = flags.seed;
  options.layers = flags.layers;
  options.policies = flags.policies;
  auto workload = simulation::LoadWorkload(flags.workload);
  if (!workload.ok()) return workload.status();
  options.workload = *std::move(workload);
  auto coverage = simulation::LoadCoverage(flags.coverage);
  if (!coverage.ok()) return coverage.status();
  options.coverage = *std::move(coverage);
  auto profile = LoadProfile(flags);
  if (!profile.ok()) return profile.status();
  options.profile = *std::move(profile);
  return options;
}

std::string ResultJson(const PolicyResult& p) {
  nlohmann::ordered_json json;
  json["policy"] = p.policy;
  json["step_ms_mean"] = p.step_ms_mean;
  json["speedup"] = p.speedup;
  json["imbalance_mean"] = p.imbalance_mean;
  json["coverage_mean"] = p.coverage_mean;
  json["coverage_ratio_min"] = p.coverage_ratio_min;
  json["lower_bound_ms_mean"] = p.lower_bound_ms_mean;
  json["gap_mean"] = p.gap_mean;
  json["plan_ms_p50"] = p.plan_ms_p50;
  json["plan_ms_p99"] = p.plan_ms_p99;
  json["cap_violations"] = p.cap_violations;
  json["guard_violations"] = p.guard_violations;
  json["fallbacks"] = p.fallbacks;
  json["exchanged_sequences"] = p.exchanged_sequences;
  json["max_displacement_steps"] = p.max_displacement_steps;
  return json.dump();
}

std::string ResultTable(const SimulationOptions& options, const SimulationResult& result) {
  Table table({{"POLICY"},
               {"STEP MS", Align::kRight},
               {"SPEED-UP", Align::kRight},
               {"IMBALANCE", Align::kRight},
               {"COVERAGE", Align::kRight},
               {"LEAST RATIO", Align::kRight},
               {"BOUND MS", Align::kRight},
               {"GAP %", Align::kRight},
               {"PLAN MS P50", Align::kRight},
               {"P99", Align::kRight},
               {"VIOLATIONS", Align::kRight}});
  for (const PolicyResult& p : result.policies) {
    table.AddRow(
        {p.policy, absl::StrFormat("%.2f", p.step_ms_mean), absl::StrFormat("%.3fx", p.speedup),
         absl::StrFormat("%.3f", p.imbalance_mean), absl::StrFormat("%.4f", p.coverage_mean),
         absl::StrFormat("%.3f", p.coverage_ratio_min),
         absl::StrFormat("%.2f", p.lower_bound_ms_mean), absl::StrFormat("%.2f", 100 * p.gap_mean),
         absl::StrFormat("%.2f", p.plan_ms_p50), absl::StrFormat("%.2f", p.plan_ms_p99),
         absl::StrCat(p.cap_violations + p.guard_violations)});
  }
  std::string text =
      absl::StrCat("lengths: ", options.workload.description, "\ntimes: ", options.profile.source(),
                   "\ncoverage: ", options.coverage.description);
  if (options.layers > 0) {
    absl::StrAppend(&text, ", drawn anew for each of ", options.layers, " layers");
  }
  absl::StrAppend(&text, "\n\n", table.ToString());
  for (const PolicyResult& p : result.policies) {
    if (options.settings.lookahead_steps() < 2 || p.policy != "sparsebalance") continue;
    absl::StrAppendFormat(&text,
                          "\n%s exchanged %d of %d sequences with later batches; none was trained "
                          "more than %d steps from its place\n",
                          p.policy, p.exchanged_sequences, result.sequences,
                          p.max_displacement_steps);
  }
  return text;
}

std::string Percent(double part) { return absl::StrFormat("%.1f %%", 100 * part); }

std::string SlowText(const std::vector<simulation::SlowPart>& slow, const std::string& what) {
  if (slow.empty()) return absl::StrCat("no ", what, " is slow\n");
  std::string text;
  for (const simulation::SlowPart& part : slow) {
    absl::StrAppendFormat(&text, "%s %d takes %.2f times as long as the others\n", what, part.index,
                          part.factor);
  }
  return text;
}

std::string ReplayText(const simulation::TraceReport& r) {
  std::string text = absl::StrFormat(
      "%d steps, %d data-parallel ranks, %d stages\n"
      "actual step     %10.2f ms\n"
      "by the schedule %10.2f ms, off by %s on average and %s at most\n"
      "rank imbalance  %10.3f (max / mean)\n"
      "in balance      %10.2f ms: all micro-batches alike, the same work; %s less\n\n",
      r.steps, r.ranks, r.stages, r.actual_ms_mean, r.predicted_ms_mean, Percent(r.error_mean),
      Percent(r.error_max_abs), r.imbalance_mean, r.balanced_ms_mean,
      Percent(1 - r.balanced_ms_mean / r.predicted_ms_mean));
  text += SlowText(r.slow_ranks, "rank");
  text += SlowText(r.slow_stages, "stage");
  absl::StrAppendFormat(
      &text,
      "\nsteps would take %s less without slow ranks, %s less without slow stages, %s less with "
      "even sequences\ncause: %s\n",
      Percent(1 - r.without_slow_ranks_ms / r.predicted_ms_mean),
      Percent(1 - r.without_slow_stages_ms / r.predicted_ms_mean),
      Percent(1 - r.without_uneven_ms / r.predicted_ms_mean), CauseName(r.cause));
  return text;
}

nlohmann::ordered_json SlowJson(const std::vector<simulation::SlowPart>& slow, const char* key) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const simulation::SlowPart& part : slow) {
    list.push_back({{key, part.index}, {"factor", part.factor}});
  }
  return list;
}

}  // namespace

absl::Status RunSimulate(const SimulateFlags& flags, std::ostream& out) {
  const absl::StatusOr<SimulationOptions> options = MakeOptions(flags);
  if (!options.ok()) return options.status();
  // An unwritable file should not be found out after the work.
  std::ofstream page;
  if (!flags.html.empty()) {
    page.open(flags.html);
    if (!page) {
      return absl::FailedPreconditionError(absl::StrCat(flags.html, " cannot be written"));
    }
  }
  const absl::StatusOr<SimulationResult> result = simulation::Simulate(*options);
  if (!result.ok()) return result.status();
  if (page.is_open()) {
    page << simulation::SimulationPage(*options, *result);
    page.close();
    if (!page) return absl::DataLossError(absl::StrCat(flags.html, " could not be written whole"));
  }
  if (flags.json) {
    for (const PolicyResult& p : result->policies) out << ResultJson(p) << "\n";
  } else {
    out << ResultTable(*options, *result);
  }
  return absl::OkStatus();
}

absl::Status RunReplay(const std::string& trace, bool json, std::ostream& out) {
  const absl::StatusOr<simulation::TraceReport> report = simulation::ReplayTrace(trace);
  if (!report.ok()) return report.status();
  if (!json) {
    out << ReplayText(*report);
    return absl::OkStatus();
  }
  nlohmann::ordered_json o;
  o["steps"] = report->steps;
  o["actual_ms_mean"] = report->actual_ms_mean;
  o["predicted_ms_mean"] = report->predicted_ms_mean;
  o["error_mean"] = report->error_mean;
  o["error_max_abs"] = report->error_max_abs;
  o["imbalance_mean"] = report->imbalance_mean;
  o["balanced_ms_mean"] = report->balanced_ms_mean;
  o["slow_ranks"] = SlowJson(report->slow_ranks, "rank");
  o["slow_stages"] = SlowJson(report->slow_stages, "stage");
  o["cause"] = simulation::CauseName(report->cause);
  out << o.dump() << "\n";
  return absl::OkStatus();
}

}  // namespace sparsebalance
