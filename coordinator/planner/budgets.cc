#include "coordinator/planner/budgets.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <queue>

namespace sparsebalance::planner {
namespace {

// Halvings of the interval in which the step time is refined below the paths' granularity.
constexpr int kRefinements = 10;
constexpr int kFewRefinements = 5;
// Steps that are looked at for parts that fit, while the step time is refined.
constexpr int kPartialSteps = 8;
constexpr int kFewPartialSteps = 2;
// Paths by schedule take a simulation for every segment of every sequence, several times.
constexpr int kMostSequencesBySchedule = 128;
// Above as many, a rank's path goes through the schedule only at so many of its steps.
constexpr int kMostSpansOfPath = 64;

struct Candidate {
  int64_t coverage;
  int64_t cost;  // time added to the rank when it was last looked at
  int32_t sequence;
  int32_t segment;  // of the sequence's envelope
  uint32_t seen;    // number of steps taken when the cost was computed

  bool operator<(const Candidate& other) const {
    const Int128 mine = Int128{coverage} * other.cost;
    const Int128 theirs = Int128{other.coverage} * cost;
    if (mine != theirs) return mine < theirs;
    if (cost != other.cost) return cost > other.cost;
    return sequence > other.sequence;
  }
};

}  // namespace

BudgetOptimizer::BudgetOptimizer(const Problem& problem, const Envelopes& envelopes)
    : problem_(problem),
      envelopes_(envelopes),
      evaluator_(problem),
      paths_(problem.num_ranks()),
      other_(problem.num_sequences()),
      trial_(problem.num_sequences()),
      rank_(problem.num_sequences()),
      place_(problem.num_sequences()),
      blocked_(problem.num_sequences(), 0) {}

void BudgetOptimizer::LowestTimes(const RankItems& items, std::vector<int64_t>& raw) {
  raw.resize(items.size());
  for (size_t m = 0; m < items.size(); ++m) {
    raw[m] = items[m].empty() ? problem_.zero_weight_ns() : problem_.predictor().constant_ns();
    for (const int32_t i : items[m]) {
      raw[m] += problem_.TimeNs(i, problem_.sequence(i).low);
      place_[i] = static_cast<int32_t>(m);
    }
  }
}

void BudgetOptimizer::BuildPathsByOwnTime(const Batching& batching) {
  const bool serial = problem_.stages() == 1;
  for (int r = 0; r < problem_.num_ranks(); ++r) {
    RankPaths& paths = paths_[r];
    LowestTimes(batching[r], paths.raw);
    paths.sequences.clear();
    for (const MicroBatchItems& mb : batching[r]) {
      paths.sequences.insert(paths.sequences.end(), mb.begin(), mb.end());
      for (const int32_t i : mb) rank_[i] = r;
    }
    paths.total = std::accumulate(paths.raw.begin(), paths.raw.end(), int64_t{0});
    paths.gained = 0;
    paths.by_own_time.steps.clear();
    Scale(r, paths.raw, paths.scaled);
    paths.by_own_time.start_ns =
        serial ? problem_.OnRank(r, paths.total) : evaluator_.SpanNs(paths.scaled);
  }
  const auto segments = static_cast<int>(envelopes_.BySteepness().size());
  const int stride = problem_.num_sequences() <= kMostSequencesBySchedule
                         ? 1
                         : std::max(1, segments / problem_.num_ranks() / kMostSpansOfPath);
  // Steps in between end when the next one that is looked at does; later than they would.
  const auto close = [](Path& path, int64_t now) {
    for (auto step = path.steps.rbegin(); step != path.steps.rend() && step->rank_ns < 0; ++step) {
      step->rank_ns = now;
    }
  };
  for (const EnvelopeSegment& s : envelopes_.BySteepness()) {
    const int r = rank_[s.sequence];
    RankPaths& paths = paths_[r];
    paths.gained += s.coverage;
    int64_t now = 0;
    if (serial) {
      paths.total += s.time;
      now = problem_.OnRank(r, paths.total);
    } else {
      const int32_t m = place_[s.sequence];
      paths.raw[m] += s.time;
      paths.scaled[m] = problem_.OnRank(r, paths.raw[m]);
      const auto taken = static_cast<int>(paths.by_own_time.steps.size()) + 1;
      now = taken % stride == 0 ? evaluator_.SpanNs(paths.scaled) : -1;
      if (now >= 0) close(paths.by_own_time, now);
    }
    paths.by_own_time.steps.push_back({s.sequence, s.to, now, paths.gained});
  }
  if (serial || stride == 1) return;
  for (RankPaths& paths : paths_) close(paths.by_own_time, evaluator_.SpanNs(paths.scaled));
}

void BudgetOptimizer::Scale(int rank, const std::vector<int64_t>& raw,
                            std::vector<int64_t>& scaled) const {
  scaled.resize(raw.size());
  for (size_t m = 0; m < raw.size(); ++m) scaled[m] = problem_.OnRank(rank, raw[m]);
}

void BudgetOptimizer::BuildPathBySchedule(int rank, const RankItems& items, RankPaths& paths) {
  std::vector<int64_t> raw;
  LowestTimes(items, raw);
  std::vector<int64_t> scaled;
  Scale(rank, raw, scaled);
  int64_t span = evaluator_.SpanNs(scaled);
  Path& path = paths.by_schedule;
  path.steps.clear();
  path.start_ns = span;
  const auto cost_of = [&](int32_t i, int32_t segment) {
    const int32_t m = place_[i];
    const int64_t before = scaled[m];
    scaled[m] = problem_.OnRank(rank, raw[m] + envelopes_.Of(i)[segment].time);
    const int64_t after = evaluator_.SpanNs(scaled);
    scaled[m] = before;
    return std::max<int64_t>(0, after - span);
  };

  std::priority_queue<Candidate> queue;
  for (const int32_t i : paths.sequences) {
    const auto of = envelopes_.Of(i);
    if (!of.empty()) queue.push({of[0].coverage, cost_of(i, 0), i, 0, 0});
  }
  uint32_t taken = 0;
  int64_t gained = 0;
  while (!queue.empty()) {
    Candidate best = queue.top();
    queue.pop();
    if (best.seen != taken) {
      // The critical path may have moved since; look again before taking it.
      best.cost = cost_of(best.sequence, best.segment);
      best.seen = taken;
      queue.push(best);
      continue;
    }
    const auto of = envelopes_.Of(best.sequence);
    const int32_t m = place_[best.sequence];
    raw[m] += of[best.segment].time;
    scaled[m] = problem_.OnRank(rank, raw[m]);
    span += best.cost;
    gained += best.coverage;
    ++taken;
    path.steps.push_back({best.sequence, of[best.segment].to, span, gained});
    const int32_t next = best.segment + 1;
    if (next < static_cast<int32_t>(of.size())) {
      queue.push({of[next].coverage, cost_of(best.sequence, next), best.sequence, next, taken});
    }
  }
}

int64_t BudgetOptimizer::GainWithin(const Path& path, int64_t limit_ns) {
  const auto end =
      std::upper_bound(path.steps.begin(), path.steps.end(), limit_ns,
                       [](int64_t limit, const PathStep& step) { return limit < step.rank_ns; });
  return end == path.steps.begin() ? 0 : (end - 1)->coverage;
}

int64_t BudgetOptimizer::FillWithin(int rank, const RankItems& items, const Path& path,
                                    const std::vector<int32_t>& sequences, int64_t limit_ns,
                                    int most_partial, std::vector<int32_t>& budgets) {
  for (const int32_t i : sequences) {
    budgets[i] = problem_.sequence(i).low;
    blocked_[i] = 0;
  }
  const auto end =
      std::upper_bound(path.steps.begin(), path.steps.end(), limit_ns,
                       [](int64_t limit, const PathStep& step) { return limit < step.rank_ns; });
  for (auto step = path.steps.begin(); step != end; ++step) budgets[step->sequence] = step->to;
  int64_t coverage = end == path.steps.begin() ? 0 : (end - 1)->coverage;
  for (const int32_t i : sequences) coverage += problem_.Coverage(i, problem_.sequence(i).low);

  // What is left goes to the next steps in order, as many blocks of each as fit.
  const bool serial = problem_.stages() == 1;
  raw_.resize(items.size());
  for (size_t m = 0; m < items.size(); ++m) {
    raw_[m] = items[m].empty() ? problem_.zero_weight_ns() : problem_.predictor().constant_ns();
    for (const int32_t i : items[m]) {
      raw_[m] += problem_.TimeNs(i, budgets[i]);
      place_[i] = static_cast<int32_t>(m);
    }
  }
  Scale(rank, raw_, scaled_);
  int64_t now = std::accumulate(scaled_.begin(), scaled_.end(), int64_t{0});
  for (auto step = end; step != path.steps.end() && most_partial > 0; ++step) {
    const int32_t i = step->sequence;
    if (blocked_[i]) continue;
    const int32_t from = budgets[i];
    const int64_t at_from = problem_.TimeNs(i, from);
    const int32_t m = place_[i];
    const auto fits = [&](int32_t budget) {
      const int64_t before = scaled_[m];
      const int64_t after = problem_.OnRank(rank, raw_[m] + problem_.TimeNs(i, budget) - at_from);
      if (serial) return now + after - before <= limit_ns;
      scaled_[m] = after;
      const bool ok = evaluator_.SpanNs(scaled_) <= limit_ns;
      scaled_[m] = before;
      return ok;
    };
    --most_partial;
    int32_t low = from;
    int32_t high = fits(from + 1) ? step->to + 1 : from + 1;
    while (high - low > 1) {
      const int32_t middle = low + (high - low) / 2;
      (fits(middle) ? low : high) = middle;
    }
    // A sequence that did not get its whole step gets nothing of its later ones.
    blocked_[i] = low < step->to;
    if (low == from) continue;
    coverage += problem_.Coverage(i, low) - problem_.Coverage(i, from);
    budgets[i] = low;
    raw_[m] += problem_.TimeNs(i, low) - at_from;
    now -= scaled_[m];
    scaled_[m] = problem_.OnRank(rank, raw_[m]);
    now += scaled_[m];
  }
  return coverage;
}

int64_t BudgetOptimizer::FillAll(const Batching& batching, int64_t limit_ns, int most_partial,
                                 std::vector<int32_t>& budgets) {
  int64_t sum = 0;
  for (int r = 0; r < problem_.num_ranks(); ++r) {
    const RankPaths& paths = paths_[r];
    const auto fill = [&](const Path& path, std::vector<int32_t>& out) {
      return FillWithin(r, batching[r], path, paths.sequences, limit_ns, most_partial, out);
    };
    int64_t coverage = fill(paths.by_own_time, budgets);
    if (!paths.by_schedule.steps.empty()) {
      const int64_t other = fill(paths.by_schedule, other_);
      if (other > coverage) {
        coverage = other;
        for (const int32_t i : paths.sequences) budgets[i] = other_[i];
      }
    }
    sum += coverage;
  }
  return sum;
}

BudgetResult BudgetOptimizer::Optimize(const Batching& batching) {
  BuildPathsByOwnTime(batching);
  const bool by_schedule =
      problem_.stages() > 1 && problem_.num_sequences() <= kMostSequencesBySchedule;
  int64_t least = 0;
  int64_t most = 0;
  for (int r = 0; r < problem_.num_ranks(); ++r) {
    RankPaths& paths = paths_[r];
    paths.by_schedule.steps.clear();
    if (by_schedule) BuildPathBySchedule(r, batching[r], paths);
    const Path& path = paths.by_own_time;
    least = std::max(least, path.start_ns);
    most = std::max(most, path.steps.empty() ? path.start_ns : path.steps.back().rank_ns);
  }

  BudgetResult result;
  result.budgets.resize(problem_.num_sequences());
  const int64_t needed = problem_.floor_sum() - envelopes_.lowest_coverage_sum();
  const auto reached_within = [&](int64_t limit_ns) {
    int64_t gain = 0;
    for (const RankPaths& paths : paths_) {
      gain += std::max(GainWithin(paths.by_own_time, limit_ns),
                       GainWithin(paths.by_schedule, limit_ns));
    }
    return gain >= needed;
  };
  result.reached = reached_within(most);
  int64_t below = least - 1;  // the floor is not reached, or a rank cannot be so fast
  int64_t limit = most;
  while (result.reached && limit - below > 1) {
    const int64_t middle = below + (limit - below) / 2;
    (middle >= least && reached_within(middle) ? limit : below) = middle;
  }
  // Parts of steps reach the floor a little earlier than whole ones.
  if (result.reached && limit > least) {
    int64_t low = std::max(least - 1, limit - limit / 64);
    // A part is a simulation or several, and with many sequences a rank whole steps are fine
    // enough.
    const bool coarse =
        problem_.stages() > 1 && problem_.num_sequences() > kMostSequencesBySchedule;
    const int rounds = coarse ? kFewRefinements : kRefinements;
    const int partial = coarse ? kFewPartialSteps : kPartialSteps;
    for (int round = 0; round < rounds && limit - low > 1; ++round) {
      const int64_t middle = low + (limit - low) / 2;
      (FillAll(batching, middle, partial, trial_) >= problem_.floor_sum() ? limit : low) = middle;
    }
  }
  result.coverage_sum = FillAll(batching, limit, std::numeric_limits<int>::max(), result.budgets);
  result.step_ns = evaluator_.StepNs(batching, result.budgets);
  return result;
}

std::vector<int32_t> PricedBudgets(const Problem& problem, const Envelopes& envelopes) {
  std::vector<int32_t> budgets(problem.num_sequences());
  for (int i = 0; i < problem.num_sequences(); ++i) budgets[i] = problem.sequence(i).low;
  int64_t coverage = envelopes.lowest_coverage_sum();
  for (const EnvelopeSegment& s : envelopes.BySteepness()) {
    if (coverage >= problem.floor_sum()) break;
    budgets[s.sequence] = s.to;
    coverage += s.coverage;
  }
  return budgets;
}

}  // namespace sparsebalance::planner
