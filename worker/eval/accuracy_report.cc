#include "worker/eval/accuracy_report.h"

#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace sparsebalance::eval {
namespace {

using Figure = std::function<double(const SeedResult&)>;

Estimate Over(const std::vector<SeedResult>& seeds, const Figure& figure) {
  std::vector<double> values;
  for (const SeedResult& seed : seeds) values.push_back(figure(seed));
  return EstimateOf(values);
}

std::string Percent(const Estimate& estimate) {
  return absl::StrFormat("%.2f +- %.2f %%", estimate.mean * 100, estimate.error * 100);
}

std::string Name(std::string_view seed, std::string_view budgets) {
  return absl::StrFormat("%-5s %-8s", seed, budgets);
}

// One model a row: what it cost and what it gets right.
std::string Row(std::string_view name, const ModelResult& result) {
  std::string row =
      absl::StrFormat("%s %6d %8.2f %8.2f %8.2f", name, result.steps, result.seconds,
                      result.accuracy.all * 100, result.accuracy.beyond_own_block * 100);
  for (const double accuracy : result.accuracy.by_distance) {
    absl::StrAppendFormat(&row, " %9.2f", accuracy * 100);
  }
  return row + "\n";
}

std::string MeanRow(std::string_view budgets, const std::vector<SeedResult>& seeds,
                    ModelResult SeedResult::*model) {
  ModelResult mean;
  mean.steps = static_cast<uint64_t>(std::llround(Over(seeds, [&](const SeedResult& s) {
                                                    return static_cast<double>((s.*model).steps);
                                                  }).mean));
  mean.seconds = Over(seeds, [&](const SeedResult& s) { return (s.*model).seconds; }).mean;
  const Estimate all = Over(seeds, [&](const SeedResult& s) { return (s.*model).accuracy.all; });
  const Estimate beyond =
      Over(seeds, [&](const SeedResult& s) { return (s.*model).accuracy.beyond_own_block; });
  mean.accuracy.all = all.mean;
  mean.accuracy.beyond_own_block = beyond.mean;
  std::string errors = absl::StrFormat("%s %6s %8s %8.2f %8.2f", Name("+-", budgets), "", "",
                                       all.error * 100, beyond.error * 100);
  const size_t distances = (seeds.front().*model).accuracy.by_distance.size();
  for (size_t d = 0; d < distances; ++d) {
    const Estimate at =
        Over(seeds, [&](const SeedResult& s) { return (s.*model).accuracy.by_distance[d]; });
    mean.accuracy.by_distance.push_back(at.mean);
    absl::StrAppendFormat(&errors, " %9.2f", at.error * 100);
  }
  return Row(Name("mean", budgets), mean) + errors + "\n";
}

std::string Table(std::string_view title, const std::vector<SeedResult>& seeds,
                  const std::vector<std::string>& distances, ModelResult SeedResult::*fixed,
                  ModelResult SeedResult::*dynamic) {
  std::string out = absl::StrFormat("%s\n%s %6s %8s %8s %8s", title, Name("seed", "budgets"),
                                    "steps", "seconds", "all %", "beyond %");
  for (const std::string& distance : distances) absl::StrAppendFormat(&out, " %9s", distance);
  out += "\n";
  for (const SeedResult& seed : seeds) {
    const std::string number = absl::StrCat(seed.seed);
    absl::StrAppend(&out, Row(Name(number, "fixed"), seed.*fixed),
                    Row(Name(number, "dynamic"), seed.*dynamic));
  }
  absl::StrAppend(&out, MeanRow("fixed", seeds, fixed), MeanRow("dynamic", seeds, dynamic));
  return out + "\n";
}

}  // namespace

Estimate EstimateOf(const std::vector<double>& values) {
  Estimate estimate;
  if (values.empty()) return estimate;
  const auto count = static_cast<double>(values.size());
  for (const double value : values) estimate.mean += value / count;
  if (values.size() < 2) return estimate;
  double squares = 0;
  for (const double value : values) squares += (value - estimate.mean) * (value - estimate.mean);
  estimate.error = std::sqrt(squares / (count - 1) / count);
  return estimate;
}

AccuracyVerdict Judge(const std::vector<SeedResult>& seeds) {
  const auto all = [&](ModelResult SeedResult::*model) {
    return Over(seeds, [model](const SeedResult& s) { return (s.*model).accuracy.all; });
  };
  const auto difference = [&](ModelResult SeedResult::*fixed, ModelResult SeedResult::*dynamic) {
    return Over(seeds, [=](const SeedResult& s) {
      return (s.*dynamic).accuracy.all - (s.*fixed).accuracy.all;
    });
  };
  AccuracyVerdict verdict;
  verdict.fixed = all(&SeedResult::fixed_equal_steps);
  verdict.dynamic = all(&SeedResult::dynamic_equal_steps);
  verdict.fixed_equal_time = all(&SeedResult::fixed_equal_time);
  verdict.dynamic_equal_time = all(&SeedResult::dynamic_equal_time);
  verdict.fixed_beyond = Over(
      seeds, [](const SeedResult& s) { return s.fixed_equal_steps.accuracy.beyond_own_block; });
  verdict.difference_equal_steps =
      difference(&SeedResult::fixed_equal_steps, &SeedResult::dynamic_equal_steps);
  verdict.difference_equal_time =
      difference(&SeedResult::fixed_equal_time, &SeedResult::dynamic_equal_time);
  verdict.valid =
      verdict.fixed.mean >= kRequiredAccuracy && verdict.fixed_beyond.mean >= kRequiredAccuracy;
  verdict.equal_steps_met = verdict.dynamic.mean >= verdict.fixed.mean - 2 * verdict.fixed.error;
  verdict.equal_time_met = verdict.dynamic_equal_time.mean >= verdict.fixed_equal_time.mean;
  return verdict;
}

std::string FormatAccuracyReport(const std::vector<SeedResult>& seeds,
                                 const std::vector<std::string>& distances) {
  std::string out = Table("Accuracy at equal steps, by distance in blocks", seeds, distances,
                          &SeedResult::fixed_equal_steps, &SeedResult::dynamic_equal_steps) +
                    Table("Accuracy at equal time, by distance in blocks", seeds, distances,
                          &SeedResult::fixed_equal_time, &SeedResult::dynamic_equal_time);
  const auto mean = [&](double SeedResult::*figure) {
    return Over(seeds, [figure](const SeedResult& s) { return s.*figure; }).mean;
  };
  absl::StrAppendFormat(
      &out,
      "Budgets in training: mean %.2f blocks fixed, %.2f dynamic (%.0f %% of the sequences away "
      "from the fixed one); mean coverage %.4f fixed, %.4f dynamic\n",
      mean(&SeedResult::fixed_budget), mean(&SeedResult::dynamic_budget),
      mean(&SeedResult::sequences_moved) * 100, mean(&SeedResult::fixed_coverage),
      mean(&SeedResult::dynamic_coverage));
  const Estimate speedup = Over(seeds, [](const SeedResult& s) {
    return s.fixed_equal_steps.seconds / s.dynamic_equal_steps.seconds;
  });
  absl::StrAppendFormat(&out, "Time of a step, fixed over dynamic: %.4f +- %.4f\n\n", speedup.mean,
                        speedup.error);

  const AccuracyVerdict verdict = Judge(seeds);
  if (!verdict.valid) {
    absl::StrAppend(&out, "VOID: fixed budgets reach ", Percent(verdict.fixed), " overall and ",
                    Percent(verdict.fixed_beyond),
                    " beyond the own block; below 80 % the comparison says nothing\n");
    return out;
  }
  absl::StrAppend(&out, "equal steps: dynamic ", Percent(verdict.dynamic), ", fixed ",
                  Percent(verdict.fixed), ", difference ", Percent(verdict.difference_equal_steps),
                  verdict.equal_steps_met ? ": MET" : ": NOT MET",
                  " (dynamic not below fixed minus two standard errors)\n");
  absl::StrAppend(&out, "equal time:  dynamic ", Percent(verdict.dynamic_equal_time), ", fixed ",
                  Percent(verdict.fixed_equal_time), ", difference ",
                  Percent(verdict.difference_equal_time),
                  verdict.equal_time_met ? ": MET" : ": NOT MET", " (dynamic not below fixed)\n");
  return out;
}

}  // namespace sparsebalance::eval
