#include "coordinator/planner/packing.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/falling_order.h"
#include "coordinator/planner/least_loaded.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

// Tries of the exhaustive packing before it gives up.
constexpr int kMaxPackingSteps = 200'000;

int64_t CeilDiv(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Of groups whose loads are sums of these weights.
using NarrowHeap = LeastLoaded<uint64_t>;
using WideHeap = LeastLoaded<UInt128>;

bool FitsNarrowHeap(const std::vector<int64_t>& weights, int groups) {
  Int128 sum = 0;
  for (const int64_t w : weights) sum += w;
  return sum < NarrowHeap::MostLoad(groups);
}

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
  WideHeap ranks(problem.num_ranks());
  for (const int32_t i : by_size) {
    const int64_t size = problem.padded_tokens(i);
    const auto roomiest = [&](int r) {
      const auto begin = bins.begin() + int64_t{r} * count;
      return std::max_element(begin, begin + count,
                              [](const Bin& a, const Bin& b) { return a.free < b.free; });
    };
    const auto rank = ranks.Take([&](int r) { return roomiest(r)->free >= size; });
    if (!rank.has_value()) return false;
    Bin& bin = *roomiest(rank->group);
    bin.items.push_back(i);
    bin.free -= size;
    ranks.Add(rank->load + weights[i], rank->group);
  }
  return true;
}

bool BestFit(const Problem& problem, const std::vector<int32_t>& by_size, std::vector<Bin>& bins) {
  for (const int32_t i : by_size) {
    const int64_t size = problem.padded_tokens(i);
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
    const int64_t size = problem.padded_tokens(i);
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

namespace {

template <class Heap>
class RankAssigner {
 public:
  RankAssigner(const Problem& problem, const std::vector<int64_t>& weights, int most,
               bool use_speed)
      : problem_(problem),
        weights_(weights),
        most_(most),
        use_speed_(use_speed),
        count_(problem.fixed_count()),
        heap_(problem.num_ranks()),
        out_(problem.num_ranks()),
        tokens_(problem.num_ranks(), 0),
        load_(problem.num_ranks(), 0) {
    int64_t least_cap = problem.rank(0).cap_tokens;
    for (int r = 0; r < problem.num_ranks(); ++r) {
      least_cap = std::min(least_cap, problem.rank(r).cap_tokens);
      equal_speed_ = equal_speed_ && problem.rank(r).time_factor == problem.rank(0).time_factor;
      out_[r].reserve(2 * static_cast<size_t>(problem.num_sequences() / problem.num_ranks()) + 1);
    }
    const std::vector<int64_t>& padded = problem.padded_tokens();
    any_rank_may_ = count_ == 0 && (padded.empty() ||
                                    *std::max_element(padded.begin(), padded.end()) <= least_cap);
  }

  std::vector<std::vector<int32_t>> Run() {
    // With ranks of different speed the least finishing time is not the least load.
    const bool by_end = use_speed_ && !equal_speed_;
    for (const int32_t i : ByFallingWeight(weights_)) {
      int chosen = -1;
      if (by_end) {
        chosen = FirstToEnd(i, true);
      } else if (const auto taken = heap_.Take([&](int r) { return MayTake(r, i); })) {
        chosen = taken->group;
        if (most_ == 0 || static_cast<int>(out_[chosen].size()) + 1 < most_) {
          heap_.Add(taken->load + weights_[i], chosen);
        }
      }
      // Ranks with a smaller cap leave more than their even share to the others.
      if (chosen < 0) chosen = FirstToEnd(i, false);
      if (chosen < 0) continue;
      load_[chosen] += weights_[i];
      out_[chosen].push_back(i);
      if (!any_rank_may_) tokens_[chosen] += problem_.padded_tokens(i);
    }
    return std::move(out_);
  }

 private:
  bool MayTake(int r, int32_t i) const {
    if (any_rank_may_) return true;
    const int64_t size = problem_.padded_tokens(i);
    return size <= problem_.rank(r).cap_tokens &&
           (count_ == 0 || tokens_[r] + size <= problem_.rank(r).cap_tokens * count_);
  }

  int FirstToEnd(int32_t i, bool respect_most) const {
    int chosen = -1;
    int64_t best = 0;
    for (int r = 0; r < problem_.num_ranks(); ++r) {
      const bool full = most_ > 0 && static_cast<int>(out_[r].size()) >= most_;
      if ((full && respect_most) || !MayTake(r, i)) continue;
      const int64_t end = use_speed_ ? problem_.OnRank(r, load_[r] + weights_[i]) : load_[r];
      if (chosen < 0 || end < best) {
        chosen = r;
        best = end;
      }
    }
    return chosen;
  }

  const Problem& problem_;
  const std::vector<int64_t>& weights_;
  const int most_;
  const bool use_speed_;
  const int count_;
  bool equal_speed_ = true;
  bool any_rank_may_ = false;  // no cap can be in the way
  Heap heap_;
  std::vector<std::vector<int32_t>> out_;
  std::vector<int64_t> tokens_, load_;  // [rank]
};

}  // namespace

std::vector<std::vector<int32_t>> AssignToRanks(const Problem& problem,
                                                const std::vector<int64_t>& weights, int most,
                                                bool use_speed) {
  if (FitsNarrowHeap(weights, problem.num_ranks())) {
    return RankAssigner<NarrowHeap>(problem, weights, most, use_speed).Run();
  }
  return RankAssigner<WideHeap>(problem, weights, most, use_speed).Run();
}

std::optional<RankItems> PackRank(const Problem& problem, int rank, std::vector<int32_t> items,
                                  const std::vector<int64_t>& weights, int count, int most,
                                  bool fixed) {
  const int64_t cap = problem.rank(rank).cap_tokens;
  SortByFallingWeight(items, weights);
  RankItems out(count);
  for (MicroBatchItems& mb : out) mb.reserve(2 * items.size() / static_cast<size_t>(count) + 1);
  std::vector<int64_t> tokens(count, 0);
  WideHeap heap(count);
  for (const int32_t i : items) {
    const int64_t size = problem.padded_tokens(i);
    if (size > cap) return std::nullopt;
    auto taken = heap.Take([&](int g) { return tokens[g] + size <= cap; });
    if (!taken.has_value()) {
      if (fixed) return std::nullopt;
      out.emplace_back();
      tokens.push_back(0);
      taken = WideHeap::Taken{0, static_cast<int>(out.size()) - 1};
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
  SortByFallingWeight(items, problem.padded_tokens());
  RankItems out;
  std::vector<int64_t> free;
  const int64_t cap = problem.rank(rank).cap_tokens;
  int64_t tokens = 0;
  for (const int32_t i : items) tokens += problem.padded_tokens(i);
  const size_t even_share = items.size() / static_cast<size_t>(1 + tokens / cap);
  for (const int32_t i : items) {
    const int64_t size = problem.padded_tokens(i);
    int best = -1;
    for (int g = 0; g < static_cast<int>(out.size()); ++g) {
      if (free[g] >= size && (best < 0 || free[g] < free[best])) best = g;
    }
    if (best < 0) {
      best = static_cast<int>(out.size());
      out.emplace_back().reserve(2 * even_share + 1);
      free.push_back(cap);
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
      for (const int32_t i : ranks[r]) tokens += problem.padded_tokens(i);
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
  SortByFallingWeight(by_size, problem.padded_tokens());
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
    for (const int32_t i : by_size) need += problem.padded_tokens(i);
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
