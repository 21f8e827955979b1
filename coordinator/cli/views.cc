#include "coordinator/cli/views.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/table.h"
#include "coordinator/planner/no_plan_reason.h"
#include "coordinator/planner/slow_rank.h"
#include "coordinator/service/job_spec.h"
#include "coordinator/service/rank_names.h"

namespace sparsebalance {
namespace {

std::string StateName(v1::JobState state) {
  switch (state) {
    case v1::JOB_STATE_REGISTERED:
      return "registered";
    case v1::JOB_STATE_JOINING:
      return "joining";
    case v1::JOB_STATE_TRAINING:
      return "training";
    case v1::JOB_STATE_FINISHED:
      return "finished";
    default:
      return "unknown";
  }
}

std::string Fixed(double value, int digits) { return absl::StrFormat("%.*f", digits, value); }

// Zero stands for "not known" in these figures.
std::string FixedOrNothing(double value, int digits) {
  return value == 0 ? "" : Fixed(value, digits);
}

std::string JobName(const v1::JobKey& job) {
  return absl::StrCat(job.namespace_().empty() ? "default" : job.namespace_(), "/", job.name());
}

// "title      value" lines with aligned values.
std::string Facts(const std::vector<std::pair<std::string, std::string>>& facts) {
  size_t width = 0;
  for (const auto& [title, value] : facts) width = std::max(width, title.size());
  std::string text;
  for (const auto& [title, value] : facts) {
    absl::StrAppend(&text, title, std::string(width - title.size() + 2, ' '), value, "\n");
  }
  return text;
}

std::string RanksTable(const v1::JobStatus& job) {
  Table table({{"RANK", Align::kRight},
               {"NODE"},
               {"DEVICE"},
               {"CLIENT"},
               {"TIME FACTOR", Align::kRight},
               {"LAST STEP", Align::kRight},
               {"SILENT MS", Align::kRight}});
  for (const v1::RankStatus& rank : job.ranks()) {
    table.AddRow({absl::StrCat(rank.rank()), rank.node_id(), rank.device_name(),
                  rank.client_version(),
                  absl::StrCat(rank.time_factor() >= planner::kSlowRankTimeFactor ? "slow " : "",
                               Fixed(rank.time_factor(), 3)),
                  absl::StrCat(rank.last_step()), absl::StrCat(rank.silent_ms())});
  }
  return table.ToString();
}

std::string StepsTable(const v1::JobStatus& job) {
  Table table({{"STEP", Align::kRight},
               {"POLICY"},
               {"STEP MS", Align::kRight},
               {"PREDICTED", Align::kRight},
               {"IMBALANCE", Align::kRight},
               {"BY LENGTH", Align::kRight},
               {"COVERAGE", Align::kRight},
               {"GAP %", Align::kRight},
               {"WAIT MS", Align::kRight},
               {"SLOWEST", Align::kRight},
               {"LOSS", Align::kRight}});
  // The latest ten fill a terminal; --format json has the rest.
  constexpr int kShown = 10;
  for (int i = std::max(job.recent_steps_size() - kShown, 0); i < job.recent_steps_size(); ++i) {
    const v1::StepStatus& step = job.recent_steps(i);
    table.AddRow({absl::StrCat(step.step()),
                  step.used_fallback()
                      ? absl::StrCat(step.policy(), " (fallback: ",
                                     planner::NoPlanReasonName(step.no_plan_reason()), ")")
                      : step.policy(),
                  Fixed(step.step_ms(), 1), FixedOrNothing(step.predicted_step_ms(), 1),
                  Fixed(step.rank_imbalance(), 3), FixedOrNothing(step.length_imbalance(), 3),
                  FixedOrNothing(step.mean_coverage(), 4),
                  step.predicted_step_ms() > 0 ? Fixed(step.optimality_gap() * 100, 2) : "",
                  Fixed(step.plan_wait_ms(), 1), absl::StrCat(step.slowest_rank()),
                  FixedOrNothing(step.loss(), 4)});
  }
  return table.ToString();
}

}  // namespace

std::string JobsView(const v1::ListJobsResponse& jobs) {
  if (jobs.jobs().empty()) return "no jobs\n";
  Table table({{"JOB"},
               {"STATE"},
               {"GENERATION", Align::kRight},
               {"RANKS", Align::kRight},
               {"NEXT STEP", Align::kRight},
               {"POLICY"},
               {"STEP MS", Align::kRight},
               {"IMBALANCE", Align::kRight}});
  for (const v1::JobSummary& job : jobs.jobs()) {
    table.AddRow({JobName(job.job()), StateName(job.state()), absl::StrCat(job.generation()),
                  absl::StrCat(job.ranks_present(), "/", job.ranks()),
                  absl::StrCat(job.next_step()), job.policy(), FixedOrNothing(job.step_ms(), 1),
                  FixedOrNothing(job.rank_imbalance(), 3)});
  }
  return table.ToString();
}

std::string JobView(const v1::JobStatus& job) {
  const v1::Parallelism& parallelism = job.spec().parallelism();
  const RankLayout layout(parallelism);
  std::vector<std::pair<std::string, std::string>> facts = {
      {"job", JobName(job.spec().job())},
      {"state", StateName(job.state())},
      {"generation", absl::StrCat(job.generation())},
      {"leader epoch", absl::StrCat(job.leader_epoch())},
      {"ranks", absl::StrCat(layout.count(), " (data ", parallelism.data(), ", pipeline ",
                             std::max(parallelism.pipeline(), 1u), ", sequence ",
                             std::max(parallelism.sequence(), 1u), ")")},
      {"policy", job.spec().plan().policy().empty() ? "sparsebalance" : job.spec().plan().policy()},
      {"next step", absl::StrCat(job.next_step())},
      {"latency model", job.latency_source()},
      {"steps", absl::StrCat(job.steps_reported(), " reported, ", job.fallback_steps(),
                             " of them with the fallback plan")},
      {"sequences", absl::StrCat(job.sequences_consumed(), " consumed in this epoch, ",
                                 job.sequences_consumed_twice(), " twice; coverage known of ",
                                 job.remembered_sequences())},
  };
  if (!job.missing_ranks().empty()) {
    facts.emplace_back("waits for",
                       RankNames({job.missing_ranks().begin(), job.missing_ranks().end()}));
  }
  std::string text = Facts(facts);
  if (!job.ranks().empty()) absl::StrAppend(&text, "\n", RanksTable(job));
  if (!job.recent_steps().empty()) absl::StrAppend(&text, "\n", StepsTable(job));
  return text;
}

std::string PlanView(const v1::JobKey& job, const v1::GetPlanResponse& response) {
  const v1::Plan& plan = response.plan();
  std::vector<std::pair<std::string, std::string>> facts = {
      {"job",
       absl::StrCat(JobName(job), ", step ", plan.step(), ", generation ", response.generation())},
      {"policy", plan.policy()},
      {"predicted step", absl::StrCat(Fixed(plan.predicted_step_ms(), 2), " ms; lower bound ",
                                      Fixed(plan.lower_bound_ms(), 2), " ms; by length ",
                                      Fixed(plan.length_policy_step_ms(), 2), " ms")},
      {"imbalance", absl::StrCat("ranks ", Fixed(plan.rank_imbalance(), 3), ", micro-batches ",
                                 Fixed(plan.micro_batch_imbalance(), 3), ", bubble ",
                                 Fixed(plan.bubble_fraction() * 100, 1), " %")},
      {"mean coverage", absl::StrCat(Fixed(plan.mean_coverage(), 4), "; at base budgets ",
                                     Fixed(plan.baseline_mean_coverage(), 4))},
      {"digest", absl::StrFormat("%016x", response.plan_digest())},
  };
  if (plan.fallback() != v1::FALLBACK_REASON_NONE) {
    facts.emplace_back("fallback", plan.fallback_detail());
  }
  Table table({{"RANK", Align::kRight},
               {"MICRO-BATCH", Align::kRight},
               {"SEQUENCES", Align::kRight},
               {"TOKENS", Align::kRight},
               {"BUDGETS", Align::kRight},
               {"PREDICTED MS", Align::kRight}});
  for (const v1::RankPlan& rank : plan.ranks()) {
    for (int m = 0; m < rank.micro_batches_size(); ++m) {
      const v1::MicroBatch& micro = rank.micro_batches(m);
      uint64_t tokens = 0;
      uint32_t least = 0;
      uint32_t most = 0;
      for (const v1::Slice& slice : micro.slices()) {
        tokens += slice.token_end() - slice.token_begin();
        least = least == 0 ? slice.budget_blocks() : std::min(least, slice.budget_blocks());
        most = std::max(most, slice.budget_blocks());
      }
      table.AddRow({absl::StrCat(rank.rank()), absl::StrCat(m),
                    micro.zero_weight() ? "filler" : absl::StrCat(micro.slices_size()),
                    absl::StrCat(tokens),
                    micro.zero_weight() ? ""
                    : least == most     ? absl::StrCat(least)
                                        : absl::StrCat(least, "-", most),
                    Fixed(micro.predicted_ms(), 2)});
    }
    table.AddRow({absl::StrCat(rank.rank()), "all", "", "", "", Fixed(rank.predicted_ms(), 2)});
  }
  std::string text = absl::StrCat(Facts(facts), "\n", table.ToString());
  if (!response.explanation().empty()) absl::StrAppend(&text, "\n");
  for (const std::string& sentence : response.explanation()) {
    absl::StrAppend(&text, sentence, "\n");
  }
  return text;
}

}  // namespace sparsebalance
