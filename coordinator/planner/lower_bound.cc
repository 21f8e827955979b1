#include "coordinator/planner/lower_bound.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <vector>

namespace sparsebalance::planner {
namespace {

// Sizes of Q that are tried with more than one stage.
constexpr int kSetSizes = 12;

class Bound {
 public:
  Bound(const Problem& problem, const Envelopes& envelopes, int64_t floor_sum)
      : problem_(problem),
        needed_(std::max<int64_t>(0, floor_sum - envelopes.lowest_coverage_sum())),
        segments_(envelopes.BySteepness()),
        c0_(problem.predictor().constant_ns()) {
    const int n = problem.num_sequences();
    low_time_.resize(n);
    for (int i = 0; i < n; ++i) low_time_[i] = problem.TimeNs(i, problem.sequence(i).low);
    for (const int64_t t : low_time_) {
      low_sum_ += t;
      low_most_ = std::max(low_most_, t);
    }
    speeds_.reserve(problem.num_ranks());
    for (int r = 0; r < problem.num_ranks(); ++r) {
      // Work that a rank does in 2^20 ns, rounded up.
      speeds_.push_back((Int128{kFixedOne} * kFixedOne) / problem.rank(r).time_factor + 1);
    }
    std::sort(speeds_.begin(), speeds_.end(), std::greater<>());
    speed_sums_.resize(speeds_.size());
    std::partial_sum(speeds_.begin(), speeds_.end(), speed_sums_.begin());
    // Times are rounded to a nanosecond a micro-batch and, with more stages, split once more.
    slack_ = 4 + 4 * (int64_t{n} + int64_t{problem.fixed_count()} * problem.num_ranks());
  }

  int64_t Serial() const {
    int64_t low = 0;
    int64_t high = 1;
    const Int128 constants = Int128{LeastMicroBatches()} * c0_;
    while (!SerialFeasible(high, constants)) {
      low = high;
      high *= 2;
      if (high > std::numeric_limits<int64_t>::max() / 4) return 0;
    }
    // A millionth of the bound is as good as all of it.
    while (high - low > 1 + (high >> 20)) {
      const int64_t middle = low + (high - low) / 2;
      (SerialFeasible(middle, constants) ? high : low) = middle;
    }
    return std::max<int64_t>(0, low - slack_);
  }

  int64_t Scheduled() const {
    const int n = problem_.num_sequences();
    const int ranks = problem_.num_ranks();
    std::vector<int32_t> longest = problem_.AllSequences();
    std::sort(longest.begin(), longest.end(), [&](int32_t a, int32_t b) {
      return low_time_[a] != low_time_[b] ? low_time_[a] > low_time_[b] : a < b;
    });
    // Alone on the fastest rank.
    int64_t best =
        n == 0 ? 0 : TimeFor(Int128{problem_.stages()} * (c0_ + low_time_[longest[0]]), 1);
    std::vector<bool> in_set(n, false);
    int filled = 0;
    int previous = 0;
    for (int step = 1; step <= kSetSizes; ++step) {
      // From about one sequence a rank to all of them.
      const int64_t span = std::max(0, n - ranks);
      const int m = static_cast<int>(
          std::min<int64_t>(n, ranks + span * step * step / (kSetSizes * kSetSizes)));
      if (m == previous) continue;
      previous = m;
      for (; filled < m; ++filled) in_set[longest[filled]] = true;
      best = std::max(best, WithLongest(longest, in_set, m));
    }
    return std::max<int64_t>(0, best - slack_);
  }

 private:
  // Least time in which the `count` fastest ranks do the work.
  int64_t TimeFor(Int128 work, int count) const {
    return static_cast<int64_t>(work * kFixedOne / speed_sums_[count - 1]);
  }

  // Of sequences longer than half a cap no two share a micro-batch.
  int64_t LeastMicroBatches() const {
    if (problem_.fixed_count() > 0) return int64_t{problem_.fixed_count()} * problem_.num_ranks();
    int64_t cap = 0;
    for (int r = 0; r < problem_.num_ranks(); ++r) cap = std::max(cap, problem_.rank(r).cap_tokens);
    int64_t padded = 0;
    int64_t alone = 0;
    for (int i = 0; i < problem_.num_sequences(); ++i) {
      padded += problem_.padded_tokens(i);
      alone += 2 * problem_.padded_tokens(i) > cap ? 1 : 0;
    }
    return std::max((padded + cap - 1) / cap, alone);
  }

  // Whether the relaxed problem can be done in `limit` ns.
  bool SerialFeasible(int64_t limit, Int128 constants) const {
    Int128 room = Int128{limit} * speed_sums_.back() / kFixedOne + 1 - constants;
    // A sequence runs on one rank, at best the fastest.
    const auto longest = static_cast<int64_t>(Int128{limit} * speeds_[0] / kFixedOne) + 1 - c0_;
    room -= low_sum_;
    if (low_most_ > longest || room < 0) return false;
    int64_t needed = needed_;
    if (needed <= 0) return true;
    used_.assign(low_time_.begin(), low_time_.end());
    for (const EnvelopeSegment& s : segments_) {
      if (needed <= 0) return true;
      if (room <= 0 && s.time > 0) break;
      const int64_t time = std::min(s.time, longest - used_[s.sequence]);
      if (s.time > 0 && time <= 0) continue;
      used_[s.sequence] += time;
      const bool whole = time == s.time && Int128{time} <= room;
      if (whole) {
        room -= time;
        needed -= s.coverage;
        continue;
      }
      const Int128 taken = std::min<Int128>(time, room);
      room -= taken;
      needed -= static_cast<int64_t>(Int128{s.coverage} * taken / s.time) + 1;
    }
    return needed <= 0;
  }

  // Least sum over sequences of weight * time, weight kFixedOne inside the set and `outside` (fixed
  // point) elsewhere, that reaches the coverage. In fixed point nanoseconds.
  Int128 WeightedWork(const std::vector<bool>& in_set, int64_t outside) const {
    const auto weight = [&](int32_t i) { return in_set[i] ? kFixedOne : outside; };
    Int128 work = 0;
    for (size_t i = 0; i < low_time_.size(); ++i) {
      work += Int128{low_time_[i]} * weight(static_cast<int32_t>(i));
    }
    // Both halves are sorted by gain already; merge them by gain over weighted time.
    size_t next[2] = {0, 0};
    int64_t needed = needed_;
    const auto advance = [&](int half) {
      size_t& at = next[half];
      while (at < segments_.size() && in_set[segments_[at].sequence] != (half == 1)) ++at;
      return at < segments_.size() ? &segments_[at] : nullptr;
    };
    while (needed > 0) {
      const EnvelopeSegment* a = advance(0);
      const EnvelopeSegment* b = advance(1);
      if (a == nullptr && b == nullptr) break;
      const bool first =
          b == nullptr || (a != nullptr && Int128{a->coverage} * b->time * kFixedOne >=
                                               Int128{b->coverage} * (Int128{a->time} * outside));
      const EnvelopeSegment& s = first ? *a : *b;
      ++next[first ? 0 : 1];
      if (s.coverage <= needed) {
        work += Int128{s.time} * weight(s.sequence);
        needed -= s.coverage;
      } else {
        work += Int128{s.time} * needed / s.coverage * weight(s.sequence);
        needed = 0;
      }
    }
    return work;
  }

  int64_t WithLongest(const std::vector<int32_t>& longest, const std::vector<bool>& in_set,
                      int m) const {
    const int ranks = problem_.num_ranks();
    const int64_t extra = problem_.stages() - 1;
    const int64_t f = problem_.predictor().forward_fraction();
    const Int128 constants = Int128{problem_.stages()} * c0_;
    // On g ranks that hold some of the set: each pays fill and drain for one of them at least, and
    // the g shortest of the set are the least that this can be. Those g ranks do the set's work;
    // all ranks together do everything.
    Int128 set_work = 0;
    for (int j = 0; j < m; ++j) set_work += low_time_[longest[j]];
    const Int128 all_work = WeightedWork(in_set, std::min(f, kFixedOne - f)) / kFixedOne;
    int64_t bound = std::numeric_limits<int64_t>::max();
    Int128 fill_and_drain = 0;
    for (int g = 1; g <= std::min(ranks, m); ++g) {
      fill_and_drain += low_time_[longest[m - g]];
      const Int128 passing = extra * fill_and_drain + g * constants;
      bound = std::min(
          bound, std::max(TimeFor(set_work + passing, g), TimeFor(all_work + passing, ranks)));
    }
    return bound;
  }

  const Problem& problem_;
  int64_t needed_;                              // coverage above that of the lowest budgets
  absl::Span<const EnvelopeSegment> segments_;  // the steepest first
  int64_t c0_;
  std::vector<int64_t> low_time_;  // [sequence]
  Int128 low_sum_ = 0;
  int64_t low_most_ = INT64_MIN;     // of no sequence: nothing is too long
  std::vector<int64_t> speeds_;      // fixed point, fastest first
  std::vector<int64_t> speed_sums_;  // of the fastest 1, 2, ...
  int64_t slack_ = 0;
  mutable std::vector<int64_t> used_;
};

}  // namespace

int64_t LowerBoundNs(const Problem& problem, const Envelopes& envelopes, int64_t floor_sum) {
  const Bound bound(problem, envelopes, floor_sum);
  return problem.stages() == 1 ? bound.Serial() : std::max(bound.Serial(), bound.Scheduled());
}

}  // namespace sparsebalance::planner
