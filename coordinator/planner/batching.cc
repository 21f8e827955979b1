#include "coordinator/planner/batching.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "coordinator/planner/packing.h"

namespace sparsebalance::planner {
namespace {

// Ranks that the slowest rank is compared with before it is left as it is.
constexpr int kPartners = 8;
// Exchanges in all: a few a rank and a few more.
constexpr int kExchanges = 8;
constexpr int kFewExchanges = 64;
// A slowest rank that is above the mean by one part in so many is even enough.
constexpr int64_t kEvenEnough = 10'000;
// Sequences looked at on either side of the one that would fit best.
constexpr int kNeighbours = 3;

// Lets the short ones begin and end: 1 3 5 ... 6 4 2 by size.
RankItems ShortAtBothEnds(std::vector<int32_t> items, const std::vector<int64_t>& time) {
  std::sort(items.begin(), items.end(),
            [&](int32_t a, int32_t b) { return time[a] != time[b] ? time[a] < time[b] : a < b; });
  RankItems out(items.size());
  size_t front = 0;
  size_t back = items.size();
  for (size_t j = 0; j < items.size(); ++j) out[j % 2 == 0 ? front++ : --back] = {items[j]};
  return out;
}

// Evens out ranks whose time is a sum: the slowest rank gives a sequence to one of the fastest, or
// swaps one with it, whichever leaves the slower of the two fastest, while that helps.
class Balancer {
 public:
  Balancer(const Problem& problem, const std::vector<int32_t>& budgets, Batching& batching)
      : problem_(problem),
        batching_(batching),
        time_(problem.num_sequences()),
        place_(problem.num_sequences()),
        ranks_(problem.num_ranks()) {
    for (int i = 0; i < problem.num_sequences(); ++i) time_[i] = problem.TimeNs(i, budgets[i]);
    for (int r = 0; r < problem.num_ranks(); ++r) {
      Rank& rank = ranks_[r];
      for (size_t m = 0; m < batching[r].size(); ++m) {
        rank.raw +=
            batching[r][m].empty() ? problem.zero_weight_ns() : problem.predictor().constant_ns();
        for (const int32_t i : batching[r][m]) rank.raw += time_[i];
      }
      order_.emplace(problem.OnRank(r, rank.raw), r);
    }
  }

  void Run() {
    if (problem_.num_ranks() < 2) return;
    const int64_t most = kExchanges * int64_t{problem_.num_ranks()} + kFewExchanges;
    Int128 work = 0;
    Int128 speed = 0;
    for (int r = 0; r < problem_.num_ranks(); ++r) {
      work += ranks_[r].raw;
      speed += (Int128{kFixedOne} * kFixedOne) / problem_.rank(r).time_factor;
    }
    const auto mean = static_cast<int64_t>(work * kFixedOne / std::max<Int128>(1, speed));
    const int64_t even = mean + mean / kEvenEnough;
    for (int64_t n = 0; n < most && std::prev(order_.end())->first > even && Step(); ++n) {
    }
    // Empty ones that are not asked for are dropped by FinishCounts.
    for (size_t r = 0; r < batching_.size(); ++r) {
      if (!ranks_[r].looked_at) continue;
      for (MicroBatchItems& mb : batching_[r]) std::sort(mb.begin(), mb.end());
    }
  }

 private:
  struct Rank {
    int64_t raw = 0;  // ns at factor 1
    // Most ranks are never looked at; the rest is known of those that are.
    bool looked_at = false;
    std::vector<int64_t> tokens;   // [micro_batch] padded
    std::vector<int32_t> by_time;  // sequences, shortest first
  };
  struct Exchange {
    int64_t slower_ns = 0;  // of the two ranks afterwards
    int32_t give = -1;
    int32_t take = -1;  // -1: nothing comes back
    int32_t into = -1;  // micro-batch that takes what is given
  };

  struct ShorterThan {
    const std::vector<int64_t>& time;
    bool operator()(int32_t a, int32_t b) const {
      return time[a] != time[b] ? time[a] < time[b] : a < b;
    }
  };
  ShorterThan Shorter() const { return {time_}; }

  bool Step() {
    const auto slowest = std::prev(order_.end());
    const int a = slowest->second;
    int partners = 0;
    for (auto fast = order_.begin(); fast != slowest && partners < kPartners; ++fast, ++partners) {
      LookAt(a);
      LookAt(fast->second);
      const Exchange best = BestExchange(a, fast->second, slowest->first, fast->first);
      if (best.give < 0) continue;
      Apply(a, fast->second, best);
      return true;
    }
    return false;
  }

  void LookAt(int r) {
    Rank& rank = ranks_[r];
    if (rank.looked_at) return;
    rank.looked_at = true;
    for (size_t m = 0; m < batching_[r].size(); ++m) {
      int64_t tokens = 0;
      for (const int32_t i : batching_[r][m]) {
        tokens += problem_.padded_tokens(i);
        place_[i] = static_cast<int32_t>(m);
        rank.by_time.push_back(i);
      }
      rank.tokens.push_back(tokens);
    }
    std::sort(rank.by_time.begin(), rank.by_time.end(), Shorter());
  }

  Exchange BestExchange(int a, int b, int64_t slow_ns, int64_t fast_ns) const {
    // What would make both equal, in ns at factor 1.
    const int64_t ideal =
        static_cast<int64_t>(Int128{slow_ns - fast_ns} * kFixedOne /
                             (problem_.rank(a).time_factor + problem_.rank(b).time_factor));
    Exchange best;
    best.slower_ns = slow_ns;
    const std::vector<int32_t>& there = ranks_[b].by_time;
    for (const int32_t i : ranks_[a].by_time) {
      if (time_[i] <= 2 * ideal) Consider(a, b, {0, i, -1, -1}, best);
      const auto at = static_cast<int64_t>(
          std::lower_bound(there.begin(), there.end(), time_[i] - ideal,
                           [this](int32_t j, int64_t time) { return time_[j] < time; }) -
          there.begin());
      // The best fit may not fit into the caps.
      const int64_t from = std::max<int64_t>(0, at - kNeighbours);
      const int64_t to = std::min<int64_t>(static_cast<int64_t>(there.size()), at + kNeighbours);
      for (int64_t j = from; j < to; ++j) Consider(a, b, {0, i, there[j], -1}, best);
    }
    return best;
  }

  void Consider(int a, int b, Exchange exchange, Exchange& best) const {
    const int32_t i = exchange.give;
    const int32_t j = exchange.take;
    int64_t off = time_[i];
    int64_t on = off;
    if (j >= 0) {
      off -= time_[j];
      on = off;
    } else if (batching_[a][place_[i]].size() == 1 && problem_.fixed_count() == 0) {
      off += problem_.predictor().constant_ns();
    }
    if (off <= 0) return;
    exchange.slower_ns =
        std::max(problem_.OnRank(a, ranks_[a].raw - off), problem_.OnRank(b, ranks_[b].raw + on));
    if (exchange.slower_ns >= best.slower_ns) return;
    const int64_t size = problem_.padded_tokens(i);
    if (j >= 0) {
      const int64_t more = size - problem_.padded_tokens(j);
      if (ranks_[b].tokens[place_[j]] + more > problem_.rank(b).cap_tokens ||
          ranks_[a].tokens[place_[i]] - more > problem_.rank(a).cap_tokens) {
        return;
      }
    } else {
      for (size_t m = 0; m < batching_[b].size() && exchange.into < 0; ++m) {
        if (!batching_[b][m].empty() && ranks_[b].tokens[m] + size <= problem_.rank(b).cap_tokens) {
          exchange.into = static_cast<int32_t>(m);
        }
      }
      if (exchange.into < 0) return;
    }
    best = exchange;
  }

  void Apply(int a, int b, const Exchange& exchange) {
    for (const int r : {a, b}) order_.erase({problem_.OnRank(r, ranks_[r].raw), r});
    const int32_t from = place_[exchange.give];
    if (exchange.take >= 0) {
      const int32_t to = place_[exchange.take];
      Remove(b, exchange.take);
      Remove(a, exchange.give);
      Add(a, from, exchange.take);
      Add(b, to, exchange.give);
    } else {
      Remove(a, exchange.give);
      Add(b, exchange.into, exchange.give);
    }
    for (const int r : {a, b}) order_.emplace(problem_.OnRank(r, ranks_[r].raw), r);
  }

  void Remove(int r, int32_t i) {
    Rank& rank = ranks_[r];
    MicroBatchItems& mb = batching_[r][place_[i]];
    mb.erase(std::find(mb.begin(), mb.end(), i));
    rank.tokens[place_[i]] -= problem_.padded_tokens(i);
    rank.by_time.erase(std::lower_bound(rank.by_time.begin(), rank.by_time.end(), i, Shorter()));
    rank.raw -= time_[i];
    if (mb.empty()) rank.raw -= problem_.predictor().constant_ns() - EmptyNs();
  }

  void Add(int r, int32_t m, int32_t i) {
    Rank& rank = ranks_[r];
    MicroBatchItems& mb = batching_[r][m];
    if (mb.empty()) rank.raw += problem_.predictor().constant_ns() - EmptyNs();
    mb.push_back(i);
    rank.tokens[m] += problem_.padded_tokens(i);
    rank.by_time.insert(std::lower_bound(rank.by_time.begin(), rank.by_time.end(), i, Shorter()),
                        i);
    rank.raw += time_[i];
    place_[i] = m;
  }

  int64_t EmptyNs() const { return problem_.fixed_count() > 0 ? problem_.zero_weight_ns() : 0; }

  const Problem& problem_;
  Batching& batching_;
  std::vector<int64_t> time_;   // [sequence] at factor 1
  std::vector<int32_t> place_;  // [sequence] its micro-batch on its rank
  std::vector<Rank> ranks_;
  std::set<std::pair<int64_t, int>> order_;  // ranks by time
};

}  // namespace

absl::StatusOr<Batching> BuildBatching(const Problem& problem,
                                       const std::vector<int32_t>& budgets) {
  std::vector<int64_t> time(problem.num_sequences());
  for (int i = 0; i < problem.num_sequences(); ++i) time[i] = problem.TimeNs(i, budgets[i]);
  const auto ranks = AssignToRanks(problem, time, /*most=*/0, /*use_speed=*/true);
  const int fixed = problem.fixed_count();
  Batching batching(ranks.size());
  size_t placed = 0;
  for (int r = 0; r < problem.num_ranks(); ++r) {
    placed += ranks[r].size();
    if (problem.stages() > 1) {
      batching[r] = ShortAtBothEnds(ranks[r], time);
    } else {
      batching[r] = PackTightly(problem, r, ranks[r]);
    }
    if (fixed > 0 && static_cast<int>(batching[r].size()) > fixed) {
      auto packed = PackRank(problem, r, ranks[r], time, fixed, 0, /*fixed=*/true);
      batching[r] = packed.has_value() ? *std::move(packed) : PackTightly(problem, r, ranks[r]);
    }
    if (fixed > 0 && static_cast<int>(batching[r].size()) > fixed) {
      return PackFixedCounts(problem, time, fixed);
    }
  }
  if (placed != static_cast<size_t>(problem.num_sequences())) {
    return PackFixedCounts(problem, time, fixed);
  }
  FinishCounts(problem, batching);
  return batching;
}

void BalanceRanks(const Problem& problem, const std::vector<int32_t>& budgets, Batching& batching) {
  Balancer(problem, budgets, batching).Run();
  FinishCounts(problem, batching);
}

}  // namespace sparsebalance::planner
