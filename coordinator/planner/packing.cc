#include "coordinator/planner/packing.h"

#include <algorithm>
#include <numeric>
#include <queue>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

// Tries of the exhaustive packing before it gives up.
constexpr int kMaxPackingSteps = 200'000;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

void SortByFallingWeight(std::vector<int32_t>& items, const std::vector<int64_t>& weights) {
  std::sort(items.begin(), items.end(), [&](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  });
}

std::vector<int64_t> PaddedTokens(const Problem& problem) {
  std::vector<int64_t> padded(problem.num_sequences());
  for (int i = 0; i < problem.num_sequences(); ++i) padded[i] = problem.sequence(i).padded_tokens;
  return padded;
}

// Groups by least load. Groups that are full leave for good; those that only cannot take the
// current item are put back.
class LeastLoaded {
 public:
  explicit LeastLoaded(int groups) {
    for (int g = 0; g < groups; ++g) heap_.emplace(0, g);
  }

  void Add(int64_t load, int group) { heap_.emplace(load, group); }

  // The least loaded group that `fits` accepts; nothing if none does.
  template <class Fits>
  std::optional<std::pair<int64_t, int>> Take(const Fits& fits) {
    std::optional<std::pair<int64_t, int>> found;
    passed_.clear();
    while (!heap_.empty()) {
      const auto top = heap_.top();
      heap_.pop();
      if (fits(top.second)) {
        found = top;
        break;
      }
      passed_.push_back(top);
    }
    for (const auto& entry : passed_) heap_.push(entry);
    return found;
  }

 private:
  using Entry = std::pair<int64_t, int>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> heap_;
  std::vector<Entry> passed_;
};

absl::Status Infeasible(const std::string& problem) {
  absl::Status status = absl::FailedPreconditionError(absl::StrCat("INFEASIBLE: ", problem));
  v1::InfeasiblePlan detail;
  detail.set_problem(problem);
  AttachDetail(status, detail);
  return status;
}

struct Bin {
  int rank;
  int slot;
  int64_t free;
  std::vector<int32_t> items;
};

std::vector<Bin> AllBins(const Problem& problem, int count) {
  std::vector<Bin> bins;
  for (int r = 0; r < problem.num_ranks(); ++r) {
    for (int slot = 0; slot < count; ++slot) {
      bins.push_back({r, slot, problem.rank(r).cap_tokens, {}});
    }
  }
  return bins;
}

// Longest first, each to the least loaded rank that has a micro-batch with room, there to the
// micro-batch with the most room.
bool SpreadOverBins(const Problem& problem, const std::vector<int64_t>& weights, int count,
                    const std::vector<int32_t>& by_size, std::vector<Bin>& bins) {
  LeastLoaded ranks(problem.num_ranks());
  for (const int32_t i : by_size) {
    const int64_t size = problem.sequence(i).padded_tokens;
    const auto roomiest = [&](int r) {
      const auto begin = bins.begin() + int64_t{r} * count;
      return std::max_element(begin, begin + count,
                              [](const Bin& a, const Bin& b) { return a.free < b.free; });
    };
    const auto rank = ranks.Take([&](int r) { return roomiest(r)->free >= size; });
    if (!rank.has_value()) return false;
    Bin& bin = *roomiest(rank->second);
    bin.items.push_back(i);
    bin.free -= size;
    ranks.Add(rank->first + weights[i], rank->second);
  }
  return true;
}

bool BestFit(const Problem& problem, const std::vector<int32_t>& by_size, std::vector<Bin>& bins) {
  for (const int32_t i : by_size) {
    const int64_t size = problem.sequence(i).padded_tokens;
    Bin* best = nullptr;
    for (Bin& bin : bins) {
      if (bin.free >= size && (best == nullptr || bin.free < best->free)) best = &bin;
    }
    if (best == nullptr) return false;
    best->items.push_back(i);
    best->free -= size;
  }
  return true;
}

// Depth-first over bins with different room; stops after kMaxPackingSteps. `exhausted` tells a
// proof that there is no packing from giving up.
bool Exhaustive(const Problem& problem, const std::vector<int32_t>& by_size, std::vector<Bin>& bins,
                bool& exhausted) {
  const int n = static_cast<int>(by_size.size());
  std::vector<int> choice(n, -1);  // bin of the item, -1: not placed
  int depth = 0;
  for (int steps = 0; steps < kMaxPackingSteps; ++steps) {
    if (depth == n) return true;
    if (depth < 0) {
      exhausted = true;
      return false;
    }
    const int32_t i = by_size[depth];
    const int64_t size = problem.sequence(i).padded_tokens;
    int b = choice[depth];
    if (b >= 0) {
      bins[b].items.pop_back();
      bins[b].free += size;
    }
    const auto tried = [&](int candidate) {
      for (int earlier = 0; earlier < candidate; ++earlier) {
        if (bins[earlier].free == bins[candidate].free) return true;
      }
      return false;
    };
    for (++b; b < static_cast<int>(bins.size()); ++b) {
      if (bins[b].free >= size && !tried(b)) break;
    }
    if (b == static_cast<int>(bins.size())) {
      choice[depth--] = -1;
      continue;
    }
    bins[b].items.push_back(i);
    bins[b].free -= size;
    choice[depth++] = b;
  }
  exhausted = false;
  return false;
}

}  // namespace

int ReferenceCount(const Problem& problem, int sequences, int ranks) {
  if (problem.fixed_count() > 0) return problem.fixed_count();
  if (problem.micro_batch_size() == 0) return 0;
  const int64_t share = int64_t{ranks} * problem.micro_batch_size();
  return static_cast<int>(std::max<int64_t>(1, CeilDiv(sequences, share)));
}

std::vector<std::vector<int32_t>> AssignToRanks(const Problem& problem,
                                                const std::vector<int64_t>& weights, int most,
                                                bool use_speed) {
  const int ranks = problem.num_ranks();
  std::vector<std::vector<int32_t>> out(ranks);
  std::vector<int64_t> tokens(ranks, 0);
  LeastLoaded heap(ranks);
  std::vector<int32_t> items = problem.AllSequences();
  SortByFallingWeight(items, weights);
  const int count = problem.fixed_count();
  const auto may_take = [&](int r, int32_t i) {
    const ProblemSequence& s = problem.sequence(i);
    return s.padded_tokens <= problem.rank(r).cap_tokens &&
           (count == 0 || tokens[r] + s.padded_tokens <= problem.rank(r).cap_tokens * count);
  };
  // With ranks of different speed the least finishing time is not the least load.
  bool equal = true;
  for (int r = 0; r < ranks; ++r) {
    equal = equal && problem.rank(r).time_factor == problem.rank(0).time_factor;
  }
  std::vector<int64_t> load(ranks, 0);
  const auto first_to_end = [&](int32_t i, bool respect_most) {
    int chosen = -1;
    int64_t best = 0;
    for (int r = 0; r < ranks; ++r) {
      const bool full = most > 0 && static_cast<int>(out[r].size()) >= most;
      if ((full && respect_most) || !may_take(r, i)) continue;
      const int64_t end = use_speed ? problem.OnRank(r, load[r] + weights[i]) : load[r];
      if (chosen < 0 || end < best) {
        chosen = r;
        best = end;
      }
    }
    return chosen;
  };
  for (const int32_t i : items) {
    int chosen = -1;
    if (use_speed && !equal) {
      chosen = first_to_end(i, true);
    } else if (const auto taken = heap.Take([&](int r) { return may_take(r, i); })) {
      chosen = taken->second;
      if (most == 0 || static_cast<int>(out[chosen].size()) + 1 < most) {
        heap.Add(taken->first + weights[i], chosen);
      }
    }
    // Ranks with a smaller cap leave more than their even share to the others.
    if (chosen < 0) chosen = first_to_end(i, false);
    if (chosen < 0) continue;
    load[chosen] += weights[i];
    out[chosen].push_back(i);
    tokens[chosen] += problem.sequence(i).padded_tokens;
  }
  return out;
}

std::optional<RankItems> PackRank(const Problem& problem, int rank, std::vector<int32_t> items,
                                  const std::vector<int64_t>& weights, int count, int most,
                                  bool fixed) {
  const int64_t cap = problem.rank(rank).cap_tokens;
  SortByFallingWeight(items, weights);
  RankItems out(count);
  std::vector<int64_t> tokens(count, 0);
  LeastLoaded heap(count);
  for (const int32_t i : items) {
    const int64_t size = problem.sequence(i).padded_tokens;
    if (size > cap) return std::nullopt;
    auto taken = heap.Take([&](int g) { return tokens[g] + size <= cap; });
    if (!taken.has_value()) {
      if (fixed) return std::nullopt;
      out.emplace_back();
      tokens.push_back(0);
      taken = {0, static_cast<int>(out.size()) - 1};
    }
    const auto [load, g] = *taken;
    out[g].push_back(i);
    tokens[g] += size;
    if (most == 0 || static_cast<int>(out[g].size()) < most) heap.Add(load + weights[i], g);
  }
  if (!fixed) {
    out.erase(std::remove_if(out.begin(), out.end(), [](const auto& mb) { return mb.empty(); }),
              out.end());
  }
  return out;
}

RankItems PackTightly(const Problem& problem, int rank, std::vector<int32_t> items) {
  std::sort(items.begin(), items.end(), [&](int32_t a, int32_t b) {
    const int64_t x = problem.sequence(a).padded_tokens;
    const int64_t y = problem.sequence(b).padded_tokens;
    return x != y ? x > y : a < b;
  });
  RankItems out;
  std::vector<int64_t> free;
  for (const int32_t i : items) {
    const int64_t size = problem.sequence(i).padded_tokens;
    int best = -1;
    for (int g = 0; g < static_cast<int>(out.size()); ++g) {
      if (free[g] >= size && (best < 0 || free[g] < free[best])) best = g;
    }
    if (best < 0) {
      best = static_cast<int>(out.size());
      out.emplace_back();
      free.push_back(problem.rank(rank).cap_tokens);
    }
    out[best].push_back(i);
    free[best] -= size;
  }
  return out;
}

absl::StatusOr<Batching> PackBatching(const Problem& problem,
                                      const std::vector<std::vector<int32_t>>& ranks,
                                      const std::vector<int64_t>& weights) {
  const bool fixed = problem.fixed_count() > 0;
  Batching batching(ranks.size());
  size_t placed = 0;
  bool fits = true;
  for (int r = 0; r < problem.num_ranks() && fits; ++r) {
    const int size = static_cast<int>(ranks[r].size());
    placed += ranks[r].size();
    int count = ReferenceCount(problem, size, 1);
    int most = problem.micro_batch_size();
    if (fixed && most > 0) most = std::max<int>(most, static_cast<int>(CeilDiv(size, count)));
    if (count == 0) {
      int64_t tokens = 0;
      for (const int32_t i : ranks[r]) tokens += problem.sequence(i).padded_tokens;
      count = static_cast<int>(CeilDiv(tokens, problem.rank(r).cap_tokens));
    }
    if (size == 0 && !fixed) continue;
    auto packed = PackRank(problem, r, ranks[r], weights, count, most, fixed);
    if (!packed.has_value() && fixed) {
      RankItems tight = PackTightly(problem, r, ranks[r]);
      if (static_cast<int>(tight.size()) <= count) packed = std::move(tight);
    }
    fits = packed.has_value();
    if (fits) batching[r] = *std::move(packed);
  }
  if (!fits || placed != static_cast<size_t>(problem.num_sequences())) {
    if (!fixed) {
      // Only a rank's smaller cap can be in the way: every sequence fits some rank alone.
      return absl::InternalError("a sequence was given to a rank whose cap it exceeds");
    }
    return PackFixedCounts(problem, weights, problem.fixed_count());
  }
  FinishCounts(problem, batching);
  return batching;
}

absl::StatusOr<Batching> PackFixedCounts(const Problem& problem,
                                         const std::vector<int64_t>& weights, int count) {
  std::vector<int32_t> by_size = problem.AllSequences();
  SortByFallingWeight(by_size, PaddedTokens(problem));
  std::vector<Bin> bins = AllBins(problem, count);
  bool found = SpreadOverBins(problem, weights, count, by_size, bins);
  if (!found) {
    bins = AllBins(problem, count);
    found = BestFit(problem, by_size, bins);
  }
  bool proved = false;
  if (!found) {
    bins = AllBins(problem, count);
    int64_t room = 0;
    for (const Bin& bin : bins) room += bin.free;
    int64_t need = 0;
    for (const int32_t i : by_size) need += problem.sequence(i).padded_tokens;
    const std::string where =
        absl::StrCat(problem.num_ranks(), " ranks of ", count, " micro-batches have room for ",
                     room, " padded tokens, the batch has ", need);
    if (need > room) {
      return Infeasible(absl::StrCat(where,
                                     "; raise max_tokens_per_micro_batch or "
                                     "micro_batches_per_rank, or make the batch smaller"));
    }
    found = Exhaustive(problem, by_size, bins, proved);
    if (!found) {
      return Infeasible(absl::StrCat(
          where,
          proved ? ", but the sequences cannot be split into micro-batches within the cap"
                 : ", but no way to split the sequences within the cap was found",
          "; raise max_tokens_per_micro_batch or micro_batches_per_rank"));
    }
  }
  Batching batching(problem.num_ranks(), RankItems(count));
  for (Bin& bin : bins) batching[bin.rank][bin.slot] = std::move(bin.items);
  FinishCounts(problem, batching);
  return batching;
}

void FinishCounts(const Problem& problem, Batching& batching) {
  size_t most = static_cast<size_t>(problem.fixed_count());
  for (RankItems& rank : batching) {
    // A search may have put the zero-weight micro-batches of a fixed count where they hurt least.
    if (most == 0 || rank.size() > most) {
      rank.erase(
          std::remove_if(rank.begin(), rank.end(), [](const auto& mb) { return mb.empty(); }),
          rank.end());
    }
  }
  if (!problem.equal_count()) return;
  for (const RankItems& rank : batching) most = std::max(most, rank.size());
  for (RankItems& rank : batching) rank.resize(most);
}

}  // namespace sparsebalance::planner
