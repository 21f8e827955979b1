#include "coordinator/planner/batching_search.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "coordinator/planner/packing.h"

namespace sparsebalance::planner {
namespace {

// Ranks that a slow rank is compared with before it is left as it is.
constexpr int kPartners = 8;

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

class Search {
 public:
  Search(const Problem& problem, const std::vector<int32_t>& budgets, int64_t max_tries,
         Batching& batching)
      : problem_(problem),
        schedule_(problem.stages(), problem.predictor().forward_fraction()),
        tries_left_(max_tries),
        batching_(batching),
        time_(problem.num_sequences()),
        ns_(problem.num_ranks()) {
    for (int i = 0; i < problem.num_sequences(); ++i) time_[i] = problem.TimeNs(i, budgets[i]);
    for (int r = 0; r < problem.num_ranks(); ++r) Refresh(r);
  }

  void Run() {
    const bool scheduled = problem_.stages() > 1;
    bool better = true;
    while (better && tries_left_ > 0) {
      better = false;
      if (scheduled) {
        for (int r = 0; r < problem_.num_ranks(); ++r) better = ImproveRank(r) || better;
      }
      better = ImproveAcross() || better;
    }
  }

 private:
  // ---- one rank ----

  int64_t MicroBatchNs(const MicroBatchItems& mb) const {
    if (mb.empty()) return problem_.zero_weight_ns();
    int64_t sum = problem_.predictor().constant_ns();
    for (const int32_t i : mb) sum += time_[i];
    return sum;
  }

  int64_t TokensOf(const MicroBatchItems& mb) const {
    int64_t sum = 0;
    for (const int32_t i : mb) sum += problem_.sequence(i).padded_tokens;
    return sum;
  }

  bool Fits(int r, const MicroBatchItems& mb) const {
    return TokensOf(mb) <= problem_.rank(r).cap_tokens;
  }

  int64_t Span(int r, const RankItems& items) {
    --tries_left_;
    scratch_.clear();
    for (const MicroBatchItems& mb : items) {
      scratch_.push_back(problem_.OnRank(r, MicroBatchNs(mb)));
    }
    return schedule_.Span(scratch_);
  }

  void Refresh(int r) { ns_[r] = Span(r, batching_[r]); }

  bool TryRank(int r, RankItems&& candidate) {
    const int64_t ns = Span(r, candidate);
    if (ns >= ns_[r]) return false;
    ns_[r] = ns;
    batching_[r] = std::move(candidate);
    return true;
  }

  // Orders, then joins and splits.
  bool ImproveRank(int r) {
    bool any = false;
    for (bool better = true; better && tries_left_ > 0;) {
      better = false;
      for (size_t p = 0; p < batching_[r].size(); ++p) {
        // A join may take a micro-batch away under either index.
        for (size_t q = 0; std::max(p, q) < batching_[r].size() && tries_left_ > 0; ++q) {
          if (p == q) continue;
          better = TryReorder(r, p, q) || better;
          better = TryMove(r, p, q) || better;
        }
      }
      any = any || better;
    }
    return any;
  }

  bool TryReorder(int r, size_t p, size_t q) {
    RankItems moved = batching_[r];
    if (p < q) {
      std::rotate(moved.begin() + p, moved.begin() + p + 1, moved.begin() + q + 1);
    } else {
      std::rotate(moved.begin() + q, moved.begin() + p, moved.begin() + p + 1);
    }
    if (TryRank(r, std::move(moved))) return true;
    if (p >= q) return false;
    RankItems swapped = batching_[r];
    std::swap(swapped[p], swapped[q]);
    return TryRank(r, std::move(swapped));
  }

  // Sequences of micro-batch p go to q, one at a time, or become micro-batches of their own.
  bool TryMove(int r, size_t p, size_t q) {
    for (size_t x = 0; x < batching_[r][p].size(); ++x) {
      const int32_t i = batching_[r][p][x];
      RankItems joined = batching_[r];
      joined[p].erase(joined[p].begin() + static_cast<std::ptrdiff_t>(x));
      joined[q].push_back(i);
      if (Fits(r, joined[q])) {
        DropEmpty(joined);
        if (TryRank(r, std::move(joined))) return true;
      }
      if (batching_[r][p].size() < 2 || problem_.fixed_count() > 0) continue;
      RankItems split = batching_[r];
      split[p].erase(split[p].begin() + static_cast<std::ptrdiff_t>(x));
      split.insert(split.begin() + static_cast<std::ptrdiff_t>(q), MicroBatchItems{i});
      if (TryRank(r, std::move(split))) return true;
    }
    return false;
  }

  void DropEmpty(RankItems& items) const {
    if (problem_.fixed_count() > 0) return;
    items.erase(
        std::remove_if(items.begin(), items.end(), [](const auto& mb) { return mb.empty(); }),
        items.end());
  }

  // ---- two ranks ----

  struct Spot {
    size_t micro_batch, index;
  };

  bool ImproveAcross() {
    const int ranks = problem_.num_ranks();
    bool any = false;
    std::vector<int> order(ranks);
    for (bool better = ranks > 1; better && tries_left_ > 0;) {
      better = false;
      std::iota(order.begin(), order.end(), 0);
      std::sort(order.begin(), order.end(),
                [&](int a, int b) { return ns_[a] != ns_[b] ? ns_[a] > ns_[b] : a < b; });
      // The slowest first; where it is stuck, the next ones may still make room for it.
      const int slow = std::min(kPartners, ranks);
      for (int a = 0; a < slow && !better; ++a) {
        for (int b = ranks - 1; b >= std::max(a + 1, ranks - kPartners) && !better; --b) {
          better = ImprovePair(order[a], order[b]);
          if (tries_left_ <= 0) break;
        }
      }
      any = any || better;
    }
    return any;
  }

  bool TryPair(int a, RankItems&& on_a, int b, RankItems&& on_b) {
    const int64_t x = Span(a, on_a);
    const int64_t y = Span(b, on_b);
    const Int128 before = Int128{ns_[a]} * ns_[a] + Int128{ns_[b]} * ns_[b];
    if (Int128{x} * x + Int128{y} * y >= before) return false;
    ns_[a] = x;
    ns_[b] = y;
    batching_[a] = std::move(on_a);
    batching_[b] = std::move(on_b);
    return true;
  }

  // Where sums decide, most changes can be told to be useless before they are made.
  bool Hopeless(int a, int64_t off_a, int b, int64_t off_b) {
    if (problem_.stages() > 1) return false;
    --tries_left_;
    const int64_t x = ns_[a] - problem_.OnRank(a, off_a) + problem_.OnRank(a, off_b);
    const int64_t y = ns_[b] + problem_.OnRank(b, off_a) - problem_.OnRank(b, off_b);
    const int64_t constant = problem_.predictor().constant_ns();
    const int64_t before = std::max(ns_[a], ns_[b]);
    return std::max(x - problem_.OnRank(a, constant), y - problem_.OnRank(b, constant)) >= before;
  }

  bool ImprovePair(int a, int b) {
    for (size_t p = 0; p < batching_[a].size(); ++p) {
      for (size_t x = 0; x < batching_[a][p].size(); ++x) {
        if (tries_left_ <= 0) return false;
        if (TryGive(a, {p, x}, b)) return true;
        for (size_t q = 0; q < batching_[b].size(); ++q) {
          for (size_t y = 0; y < batching_[b][q].size(); ++y) {
            if (TrySwap(a, {p, x}, b, {q, y})) return true;
          }
        }
      }
    }
    return false;
  }

  bool TryGive(int a, Spot from, int b) {
    const int32_t i = batching_[a][from.micro_batch][from.index];
    if (problem_.sequence(i).padded_tokens > problem_.rank(b).cap_tokens) return false;
    if (Hopeless(a, time_[i], b, 0)) return false;
    RankItems without = batching_[a];
    MicroBatchItems& left = without[from.micro_batch];
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(from.index));
    DropEmpty(without);
    const size_t count = batching_[b].size();
    for (size_t q = 0; q < count; ++q) {
      RankItems with = batching_[b];
      with[q].push_back(i);
      if (!Fits(b, with[q])) continue;
      if (TryPair(a, RankItems(without), b, std::move(with))) return true;
      if (problem_.stages() == 1) return false;  // any other place costs the same
    }
    if (problem_.fixed_count() > 0) return false;
    for (size_t q = 0; q <= count; q += std::max<size_t>(1, count)) {
      RankItems with = batching_[b];
      with.insert(with.begin() + static_cast<std::ptrdiff_t>(q), MicroBatchItems{i});
      if (TryPair(a, RankItems(without), b, std::move(with))) return true;
    }
    return false;
  }

  bool TrySwap(int a, Spot p, int b, Spot q) {
    const int32_t i = batching_[a][p.micro_batch][p.index];
    const int32_t j = batching_[b][q.micro_batch][q.index];
    if (time_[i] == time_[j] || Hopeless(a, time_[i], b, time_[j])) return false;
    RankItems on_a = batching_[a];
    RankItems on_b = batching_[b];
    on_a[p.micro_batch][p.index] = j;
    on_b[q.micro_batch][q.index] = i;
    if (!Fits(a, on_a[p.micro_batch]) || !Fits(b, on_b[q.micro_batch])) return false;
    return TryPair(a, std::move(on_a), b, std::move(on_b));
  }

  const Problem& problem_;
  UniformSchedule schedule_;
  int64_t tries_left_;
  Batching& batching_;
  std::vector<int64_t> time_;  // [sequence] on a rank of factor 1
  std::vector<int64_t> ns_;    // [rank]
  std::vector<int64_t> scratch_;
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

void ImproveBatching(const Problem& problem, const std::vector<int32_t>& budgets, int64_t max_tries,
                     Batching& batching) {
  // Equal but free counts are settled after the search.
  if (problem.equal_count() && problem.fixed_count() == 0) {
    for (RankItems& rank : batching) {
      rank.erase(
          std::remove_if(rank.begin(), rank.end(), [](const auto& mb) { return mb.empty(); }),
          rank.end());
    }
  }
  Search(problem, budgets, max_tries, batching).Run();
  FinishCounts(problem, batching);
}

}  // namespace sparsebalance::planner
