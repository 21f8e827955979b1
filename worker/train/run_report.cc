#include "worker/train/run_report.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/no_plan_reason.h"
#include "nlohmann/json.hpp"

namespace sparsebalance {
namespace {

PolicySummary Summarize(const std::string& policy, const std::vector<StepRecord>& records) {
  PolicySummary summary;
  summary.policy = policy;
  summary.steps = records.size();
  if (records.empty()) return summary;
  std::vector<double> step_ms;
  double idle_ms = 0;
  double rank_ms = 0;
  double error = 0;
  uint64_t predicted = 0;
  for (const StepRecord& record : records) {
    step_ms.push_back(record.step_ms());
    summary.seconds += record.step_ms() / 1e3;
    summary.imbalance_mean += record.rank_imbalance();
    summary.coverage_mean += record.mean_coverage();
    summary.plan_wait_ms_mean += record.plan_wait_ms();
    summary.tokens += record.tokens();
    summary.sequences_trained += static_cast<uint64_t>(std::llround(record.sequences()));
    summary.fallback_steps += record.used_fallback ? 1 : 0;
    summary.skipped_steps += record.skipped ? 1 : 0;
    summary.peak_memory_bytes = std::max(summary.peak_memory_bytes, record.peak_memory_bytes());
    const double audited = record.audited_sequences();
    summary.audited_sequences += static_cast<uint64_t>(std::llround(audited));
    summary.audited_mass_mean += record.audited_mass() * audited;
    summary.audited_coverage_mean += record.audited_coverage() * audited;
    for (const RankStepStats& rank : record.ranks) {
      idle_ms += rank.idle_ms;
      rank_ms += rank.step_ms;
    }
    if (record.predicted_step_ms > 0 && record.step_ms() > 0) {
      error += record.predicted_step_ms / record.step_ms() - 1;
      ++predicted;
    }
  }
  const auto count = static_cast<double>(records.size());
  summary.step_ms_mean = summary.seconds * 1e3 / count;
  summary.imbalance_mean /= count;
  summary.coverage_mean /= count;
  summary.plan_wait_ms_mean /= count;
  const auto audited = static_cast<double>(std::max<uint64_t>(1, summary.audited_sequences));
  summary.audited_mass_mean /= audited;
  summary.audited_coverage_mean /= audited;
  summary.idle_fraction = rank_ms > 0 ? idle_ms / rank_ms : 0;
  summary.prediction_error_mean = predicted > 0 ? error / static_cast<double>(predicted) : 0;
  summary.loss_first = records.front().loss();
  summary.loss_last = records.back().loss();
  std::sort(step_ms.begin(), step_ms.end());
  const size_t half = step_ms.size() / 2;
  summary.step_ms_p50 =
      step_ms.size() % 2 == 1 ? step_ms[half] : (step_ms[half - 1] + step_ms[half]) / 2;
  return summary;
}

}  // namespace

void RunReport::AddPolicy(const std::string& policy) {
  if (records_.try_emplace(policy).second) order_.push_back(policy);
}

void RunReport::Add(const std::string& policy, const StepRecord& record) {
  AddPolicy(policy);
  records_[policy].push_back(record);
}

std::vector<PolicySummary> RunReport::Summaries() const {
  std::vector<PolicySummary> summaries;
  for (const std::string& policy : order_) {
    summaries.push_back(Summarize(policy, records_.at(policy)));
  }
  for (PolicySummary& summary : summaries) {
    if (summary.step_ms_mean > 0) {
      summary.speedup = summaries.front().step_ms_mean / summary.step_ms_mean;
    }
  }
  return summaries;
}

std::string FormatTable(const std::vector<PolicySummary>& summaries) {
  std::string text = absl::StrFormat("%-15s %6s %9s %9s %9s %7s %9s %7s %12s %10s\n", "policy",
                                     "steps", "step ms", "speed-up", "imbalance", "idle %",
                                     "coverage", "loss", "plan wait ms", "pred/meas");
  for (const PolicySummary& s : summaries) {
    absl::StrAppend(
        &text, absl::StrFormat("%-15s %6d %9.1f %8.2fx %9.3f %7.1f %9.4f %7.3f %12.2f %10.3f\n",
                               s.policy, s.steps, s.step_ms_mean, s.speedup, s.imbalance_mean,
                               s.idle_fraction * 100, s.coverage_mean, s.loss_last,
                               s.plan_wait_ms_mean, 1 + s.prediction_error_mean));
  }
  for (const PolicySummary& s : summaries) {
    if (s.audited_sequences == 0) continue;
    absl::StrAppendFormat(&text,
                          "%s: an audit of %d sequences found %.4f of past attention on the "
                          "chosen blocks; coverage said %.4f\n",
                          s.policy, s.audited_sequences, s.audited_mass_mean,
                          s.audited_coverage_mean);
  }
  return text;
}

std::string FormatJson(const std::vector<PolicySummary>& summaries) {
  nlohmann::ordered_json policies = nlohmann::ordered_json::array();
  for (const PolicySummary& s : summaries) {
    policies.push_back({{"policy", s.policy},
                        {"step_ms_mean", s.step_ms_mean},
                        {"step_ms_p50", s.step_ms_p50},
                        {"speedup", s.speedup},
                        {"imbalance_mean", s.imbalance_mean},
                        {"idle_fraction", s.idle_fraction},
                        {"coverage_mean", s.coverage_mean},
                        {"loss_first", s.loss_first},
                        {"loss_last", s.loss_last},
                        {"plan_wait_ms_mean", s.plan_wait_ms_mean},
                        {"prediction_error_mean", s.prediction_error_mean},
                        {"steps", s.steps},
                        {"tokens", s.tokens},
                        {"sequences_trained", s.sequences_trained},
                        {"fallback_steps", s.fallback_steps},
                        {"skipped_steps", s.skipped_steps},
                        {"peak_memory_bytes", s.peak_memory_bytes},
                        {"audited_sequences", s.audited_sequences},
                        {"audited_mass_mean", s.audited_mass_mean},
                        {"audited_coverage_mean", s.audited_coverage_mean},
                        {"seconds", s.seconds}});
  }
  nlohmann::ordered_json root;
  root["policies"] = std::move(policies);
  return root.dump(2) + "\n";
}

std::string FormatProgress(const std::string& policy, const StepRecord& record, uint64_t steps) {
  const double tokens_per_second =
      record.step_ms() > 0 ? record.tokens() / record.step_ms() * 1e3 : 0;
  return absl::StrFormat(
      "%-15s step %3d/%d  loss %6.3f  %7.0f tokens/s  imbalance %.2f  coverage %.3f%s", policy,
      record.step + 1, steps, record.loss(), tokens_per_second, record.rank_imbalance(),
      record.mean_coverage(), record.used_fallback ? "  (fallback plan)" : "");
}

std::string FormatStepJson(const std::string& policy, const StepRecord& record) {
  nlohmann::ordered_json line;
  line["policy"] = policy;
  line["step"] = record.step;
  line["trained_by"] = record.policy;
  line["used_fallback"] = record.used_fallback;
  if (record.used_fallback)
    line["no_plan_reason"] = planner::NoPlanReasonName(record.no_plan_reason());
  line["skipped"] = record.skipped;
  line["step_ms"] = record.step_ms();
  line["predicted_step_ms"] = record.predicted_step_ms;
  line["imbalance"] = record.rank_imbalance();
  line["idle_fraction"] = record.idle_fraction();
  line["coverage"] = record.mean_coverage();
  if (record.audited_sequences() > 0) {
    line["audited_sequences"] = record.audited_sequences();
    line["audited_mass"] = record.audited_mass();
    line["audited_coverage"] = record.audited_coverage();
  }
  if (record.guard_raises() > 0) line["guard_raises"] = record.guard_raises();
  if (const std::optional<double> mfu = record.mfu()) line["mfu"] = *mfu;
  line["loss"] = record.loss();
  line["gradient_norm"] = record.gradient_norm;
  line["learning_rate"] = record.learning_rate;
  line["tokens"] = record.tokens();
  line["sequences"] = record.sequences();
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  for (const RankStepStats& r : record.ranks) {
    ranks.push_back({{"step_ms", r.step_ms},
                     {"compute_ms", r.compute_ms},
                     {"idle_ms", r.idle_ms},
                     {"plan_wait_ms", r.plan_wait_ms},
                     {"agreement_ms", r.agreement_ms},
                     {"peak_memory_bytes", r.peak_memory_bytes}});
  }
  line["ranks"] = std::move(ranks);
  return line.dump() + "\n";
}

}  // namespace sparsebalance
