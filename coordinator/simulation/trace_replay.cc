#include "coordinator/simulation/trace_replay.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/schedule.h"
#include "coordinator/planner/slow_rank.h"
#include "coordinator/simulation/csv.h"

namespace sparsebalance::simulation {
namespace {

const std::vector<std::string>& Columns() {
  static const auto* const columns = new std::vector<std::string>{
      "step",       "dp_rank",           "stage",      "micro_batch", "forward_start_ms",
      "forward_ms", "backward_start_ms", "backward_ms"};
  return *columns;
}

// Factors below this are not worth a name, however sure they are.
constexpr double kLeastFactor = planner::kSlowRankTimeFactor;
// Standard errors by which a factor must exceed 1.
constexpr double kSureErrors = 3;
// Median absolute deviation to standard error of a median, normal distribution.
constexpr double kErrorOfMedian = 1.4826 * 1.2533;
// Part of the step time that a cause must be worth.
constexpr double kLeastSaving = 0.02;

struct Cell {
  double forward_start = 0, forward = 0, backward_start = 0, backward = 0;
  double total() const { return forward + backward; }
};

// [rank][stage][micro_batch]
using Step = std::vector<std::vector<std::vector<Cell>>>;

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t n = values.size();
  return n % 2 == 1 ? values[n / 2] : (values[n / 2 - 1] + values[n / 2]) / 2;
}

absl::StatusOr<std::vector<Step>> ReadSteps(const std::string& path) {
  absl::StatusOr<NumberTable> table = ReadNumberTable(path);
  if (!table.ok()) return table.status();
  const std::vector<std::string>& columns = Columns();
  if (table->header != columns) {
    std::string wanted;
    for (const std::string& c : columns) {
      absl::StrAppend(&wanted, wanted.empty() ? "" : ",", c);
    }
    return absl::InvalidArgumentError(absl::StrCat(path, ":1: expected the header ", wanted));
  }
  using Key = std::tuple<int64_t, int64_t, int64_t>;
  std::map<int64_t, std::map<Key, Cell>> steps;
  for (size_t r = 0; r < table->rows.size(); ++r) {
    const std::vector<double>& row = table->rows[r];
    for (size_t c = 0; c < columns.size(); ++c) {
      const bool whole = c < 4;
      // Starts may lie a little before the first forward's; durations and indices may not.
      const bool may_be_negative = c == 4 || c == 6;
      if ((whole && row[c] != std::floor(row[c])) || (!may_be_negative && row[c] < 0) ||
          std::fabs(row[c]) > 1e12) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ":", table->lines[r], ": ", columns[c], " is ", row[c],
                         whole ? ", must be a whole number of at least 0"
                               : ", must be milliseconds of at least 0"));
      }
    }
    const Key key{static_cast<int64_t>(row[1]), static_cast<int64_t>(row[2]),
                  static_cast<int64_t>(row[3])};
    const bool fresh = steps[static_cast<int64_t>(row[0])]
                           .insert({key, Cell{row[4], row[5], row[6], row[7]}})
                           .second;
    if (!fresh) {
      return absl::InvalidArgumentError(absl::StrCat(path, ":", table->lines[r],
                                                     ": the micro-batch of this line was there "
                                                     "before"));
    }
  }
  std::set<int64_t> ranks;
  std::set<int64_t> stages;
  for (const auto& [number, cells] : steps) {
    for (const auto& [key, cell] : cells) {
      ranks.insert(std::get<0>(key));
      stages.insert(std::get<1>(key));
    }
  }
  if (*ranks.rbegin() + 1 != static_cast<int64_t>(ranks.size()) ||
      *stages.rbegin() + 1 != static_cast<int64_t>(stages.size())) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": ranks and stages must be numbered from 0 without gaps; there are ",
                     ranks.size(), " ranks up to ", *ranks.rbegin(), " and ", stages.size(),
                     " stages up to ", *stages.rbegin()));
  }
  std::vector<Step> out;
  for (const auto& [number, cells] : steps) {
    Step& step = out.emplace_back(ranks.size());
    for (auto& rank : step) rank.resize(stages.size());
    for (const auto& [key, cell] : cells) {
      auto& row = step[std::get<0>(key)][std::get<1>(key)];
      if (std::get<2>(key) != static_cast<int64_t>(row.size())) {
        return absl::InvalidArgumentError(
            absl::StrCat(path, ": step ", number, ", rank ", std::get<0>(key), ", stage ",
                         std::get<1>(key), " lacks micro-batch ", row.size()));
      }
      row.push_back(cell);
    }
    for (size_t r = 0; r < ranks.size(); ++r) {
      for (size_t s = 0; s < stages.size(); ++s) {
        if (step[r][s].empty() || step[r][s].size() != step[r][0].size()) {
          return absl::InvalidArgumentError(
              absl::StrCat(path, ": step ", number, ", rank ", r, ": stage ", s, " has ",
                           step[r][s].size(), " micro-batches, stage 0 has ", step[r][0].size()));
        }
      }
    }
  }
  return out;
}

// Slowest rank's span, with durations as `scale(rank, stage, micro_batch, cell)` changes them.
using Scale = std::function<Cell(size_t, size_t, size_t, const Cell&)>;
double SpanMs(const Step& step, const Scale& scale) {
  int64_t span = 0;
  for (size_t r = 0; r < step.size(); ++r) {
    planner::ScheduleTimes times;
    for (size_t s = 0; s < step[r].size(); ++s) {
      auto& forward = times.forward.emplace_back();
      auto& backward = times.backward.emplace_back();
      for (size_t m = 0; m < step[r][s].size(); ++m) {
        const Cell cell = scale(r, s, m, step[r][s][m]);
        forward.push_back(std::llround(cell.forward * 1e6));
        backward.push_back(std::llround(cell.backward * 1e6));
      }
    }
    span = std::max(span, planner::SimulateSchedule(times).span);
  }
  return static_cast<double>(span) / 1e6;
}

double ActualMs(const Step& step) {
  double first = step[0][0][0].forward_start;
  double last = 0;
  for (const auto& rank : step) {
    for (const auto& stage : rank) {
      for (const Cell& cell : stage) {
        first = std::min(first, cell.forward_start);
        last = std::max(last, cell.backward_start + cell.backward);
      }
    }
  }
  return last - first;
}

double TotalOf(const std::vector<Cell>& cells) {
  double sum = 0;
  for (const Cell& cell : cells) sum += cell.total();
  return sum;
}

// What is surely above 1, by its samples.
void Judge(uint32_t index, std::vector<double> samples, double& factor,
           std::vector<SlowPart>& slow) {
  const double middle = Median(samples);
  std::vector<double> deviations;
  for (const double v : samples) deviations.push_back(std::fabs(v - middle));
  const double error =
      kErrorOfMedian * Median(deviations) / std::sqrt(static_cast<double>(samples.size()));
  if (middle < kLeastFactor || middle < 1 + kSureErrors * error) return;
  factor = middle;
  slow.push_back({index, middle});
}

struct Factors {
  std::vector<double> rank, stage;  // 1 where not slow
};

Factors FindSlow(const std::vector<Step>& steps, TraceReport& report) {
  const size_t ranks = steps[0].size();
  const size_t stages = steps[0][0].size();
  Factors factors{std::vector<double>(ranks, 1), std::vector<double>(stages, 1)};
  // All stages of a rank run the same sequences: what differs between them is the stage.
  std::vector<std::vector<double>> of_stage(stages);
  std::vector<std::vector<double>> of_rank(ranks);
  for (const Step& step : steps) {
    std::vector<double> totals;
    for (const auto& rank : step) {
      std::vector<double> by_stage;
      double total = 0;
      for (const auto& stage : rank) {
        by_stage.push_back(TotalOf(stage));
        total += by_stage.back();
      }
      totals.push_back(total);
      const double middle = Median(by_stage);
      for (size_t s = 0; s < stages && middle > 0; ++s) of_stage[s].push_back(by_stage[s] / middle);
    }
    const double middle = Median(totals);
    for (size_t r = 0; r < ranks && middle > 0; ++r) of_rank[r].push_back(totals[r] / middle);
  }
  for (size_t s = 0; s < stages; ++s) {
    Judge(static_cast<uint32_t>(s), of_stage[s], factors.stage[s], report.slow_stages);
  }
  // Sequences change ranks from step to step, a slow rank stays slow.
  for (size_t r = 0; r < ranks; ++r) {
    Judge(static_cast<uint32_t>(r), of_rank[r], factors.rank[r], report.slow_ranks);
  }
  for (auto* slow : {&report.slow_ranks, &report.slow_stages}) {
    std::stable_sort(slow->begin(), slow->end(),
                     [](const SlowPart& a, const SlowPart& b) { return a.factor > b.factor; });
  }
  return factors;
}

Cell Divided(const Cell& cell, double factor) {
  return {0, cell.forward / factor, 0, cell.backward / factor};
}

// A micro-batch like the mean one of the step, where ranks and stages are as fast as they are.
Scale Evened(const Step& step, const Factors& factors) {
  Cell mean;
  double count = 0;
  for (size_t r = 0; r < step.size(); ++r) {
    for (size_t s = 0; s < step[r].size(); ++s) {
      for (const Cell& cell : step[r][s]) {
        mean.forward += cell.forward / (factors.rank[r] * factors.stage[s]);
        mean.backward += cell.backward / (factors.rank[r] * factors.stage[s]);
        ++count;
      }
    }
  }
  mean = Divided(mean, count);
  return [mean, &factors](size_t r, size_t s, size_t, const Cell&) {
    return Divided(mean, 1 / (factors.rank[r] * factors.stage[s]));
  };
}

}  // namespace

std::string CauseName(Cause cause) {
  switch (cause) {
    case Cause::kSlowRank:
      return "slow_rank";
    case Cause::kSlowStage:
      return "slow_stage";
    case Cause::kUnevenSequences:
      return "uneven_sequences";
    case Cause::kNone:
      break;
  }
  return "none";
}

absl::StatusOr<TraceReport> ReplayTrace(const std::string& path) {
  absl::StatusOr<std::vector<Step>> steps = ReadSteps(path);
  if (!steps.ok()) return steps.status();
  TraceReport report;
  report.steps = steps->size();
  report.ranks = static_cast<uint32_t>((*steps)[0].size());
  report.stages = static_cast<uint32_t>((*steps)[0][0].size());
  const Factors factors = FindSlow(*steps, report);
  const Factors alike{std::vector<double>(report.ranks, 1), std::vector<double>(report.stages, 1)};
  const auto n = static_cast<double>(report.steps);
  for (const Step& step : *steps) {
    const double actual = ActualMs(step);
    const double predicted =
        SpanMs(step, [](size_t, size_t, size_t, const Cell& cell) { return cell; });
    const double error = actual > 0 ? std::fabs(predicted - actual) / actual : 0;
    report.actual_ms_mean += actual / n;
    report.predicted_ms_mean += predicted / n;
    report.error_mean += error / n;
    report.error_max_abs = std::max(report.error_max_abs, error);
    double sum = 0;
    double most = 0;
    for (const auto& rank : step) {
      double total = 0;
      for (const auto& stage : rank) total += TotalOf(stage);
      sum += total;
      most = std::max(most, total);
    }
    if (sum > 0) report.imbalance_mean += most * static_cast<double>(step.size()) / sum / n;
    report.balanced_ms_mean += SpanMs(step, Evened(step, alike)) / n;
    report.without_slow_ranks_ms +=
        SpanMs(step, [&](size_t r, size_t, size_t,
                         const Cell& cell) { return Divided(cell, factors.rank[r]); }) /
        n;
    report.without_slow_stages_ms +=
        SpanMs(step, [&](size_t, size_t s, size_t,
                         const Cell& cell) { return Divided(cell, factors.stage[s]); }) /
        n;
    report.without_uneven_ms += SpanMs(step, Evened(step, factors)) / n;
  }
  const std::pair<Cause, double> causes[] = {{Cause::kSlowRank, report.without_slow_ranks_ms},
                                             {Cause::kSlowStage, report.without_slow_stages_ms},
                                             {Cause::kUnevenSequences, report.without_uneven_ms}};
  double best = report.predicted_ms_mean * (1 - kLeastSaving);
  for (const auto& [cause, without] : causes) {
    if (without >= best) continue;
    best = without;
    report.cause = cause;
  }
  return report;
}

}  // namespace sparsebalance::simulation
