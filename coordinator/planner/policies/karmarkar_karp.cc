// Largest differencing (Karmarkar and Karp) for many ranks: keep partial partitions into R groups,
// always join the two with the largest spread, largest group of one with smallest of the other.

#include <algorithm>
#include <queue>
#include <utility>
#include <vector>

#include "coordinator/planner/packing.h"
#include "coordinator/planner/policies/registry.h"

namespace sparsebalance::planner {
namespace {

// A set of sequences as a chain through `next`, so that two join in constant time.
struct Group {
  int64_t sum;
  int32_t head, tail;
};

// Only groups that hold something, by falling sum; the rest of the R groups are empty.
struct Partition {
  std::vector<Group> groups;
  int32_t least_index = 0;  // of its sequences, to break ties
};

class Differencing {
 public:
  Differencing(const std::vector<int64_t>& weights, int ranks)
      : weights_(weights), ranks_(static_cast<size_t>(ranks)), next_(weights.size(), -1) {}

  std::vector<std::vector<int32_t>> Run() {
    std::vector<std::vector<int32_t>> out(ranks_);
    const int n = static_cast<int>(weights_.size());
    if (n == 0) return out;
    pool_.resize(n);
    for (int32_t i = 0; i < n; ++i) {
      pool_[i] = {{{weights_[i], i, i}}, i};
      heap_.push({Spread(pool_[i]), i, i});
    }
    while (heap_.size() > 1) {
      const int a = heap_.top().slot;
      heap_.pop();
      const int b = heap_.top().slot;
      heap_.pop();
      Join(pool_[a], pool_[b]);
      heap_.push({Spread(pool_[a]), pool_[a].least_index, a});
    }
    const Partition& last = pool_[heap_.top().slot];
    for (size_t g = 0; g < last.groups.size(); ++g) {
      for (int32_t i = last.groups[g].head; i >= 0; i = next_[i]) out[g].push_back(i);
    }
    return out;
  }

 private:
  struct Entry {
    int64_t spread;
    int32_t least_index;
    int slot;
    bool operator<(const Entry& other) const {
      return spread != other.spread ? spread < other.spread : least_index > other.least_index;
    }
  };

  int64_t Spread(const Partition& p) const {
    return p.groups.size() < ranks_ ? p.groups.front().sum
                                    : p.groups.front().sum - p.groups.back().sum;
  }

  // The largest group of `a` takes the smallest of `b`, which may be an empty one, and so on.
  void Join(Partition& a, Partition& b) {
    const size_t x = a.groups.size();
    const size_t y = b.groups.size();
    // With x + y <= R no two meet. Else b's j-th largest meets a's (R - 1 - j)-th largest.
    for (size_t j = 0; j < y; ++j) {
      const size_t partner = ranks_ - 1 - j;
      if (partner >= x) {
        a.groups.push_back(b.groups[j]);
        continue;
      }
      Group& into = a.groups[partner];
      into.sum += b.groups[j].sum;
      next_[into.tail] = b.groups[j].head;
      into.tail = b.groups[j].tail;
    }
    std::sort(a.groups.begin(), a.groups.end(), [](const Group& u, const Group& v) {
      return u.sum != v.sum ? u.sum > v.sum : u.head < v.head;
    });
    a.least_index = std::min(a.least_index, b.least_index);
    b.groups = {};
  }

  const std::vector<int64_t>& weights_;
  size_t ranks_;
  std::vector<int32_t> next_;
  std::vector<Partition> pool_;
  std::priority_queue<Entry> heap_;
};

}  // namespace

absl::StatusOr<Solution> SolveKarmarkarKarp(const Problem& problem) {
  std::vector<int64_t> weights(problem.num_sequences());
  for (int i = 0; i < problem.num_sequences(); ++i) {
    weights[i] = problem.TimeNs(i, problem.sequence(i).base);
  }
  auto ranks = Differencing(weights, problem.num_ranks()).Run();

  // Where ranks have caps of their own, what does not fit goes to the least loaded rank it fits.
  std::vector<int64_t> load(ranks.size(), 0);
  std::vector<int32_t> misfits;
  for (int r = 0; r < problem.num_ranks(); ++r) {
    std::vector<int32_t> kept;
    std::sort(ranks[r].begin(), ranks[r].end());
    for (const int32_t i : ranks[r]) {
      if (problem.padded_tokens(i) > problem.rank(r).cap_tokens) {
        misfits.push_back(i);
      } else {
        kept.push_back(i);
        load[r] += weights[i];
      }
    }
    ranks[r] = std::move(kept);
  }
  std::sort(misfits.begin(), misfits.end(), [&](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  });
  for (const int32_t i : misfits) {
    int best = -1;
    for (int r = 0; r < problem.num_ranks(); ++r) {
      if (problem.padded_tokens(i) > problem.rank(r).cap_tokens) continue;
      if (best < 0 || load[r] < load[best]) best = r;
    }
    ranks[best].push_back(i);
    load[best] += weights[i];
  }

  auto batching = PackBatching(problem, ranks, weights);
  if (!batching.ok()) return batching.status();
  Solution solution;
  solution.batching = *std::move(batching);
  solution.budgets = problem.BaseBudgets();
  return solution;
}

}  // namespace sparsebalance::planner
