// The policy of arXiv 2604.13847: SAB, then DST.
//
// SAB: LPT on predicted latency at base budgets, over ranks, then over each rank's micro-batches.
// DST: an anchor latency over all micro-batches. One above the anchor lowers budgets, always the
// block that frees most time for the coverage it loses, until it is at the anchor or the guard
// holds every sequence; one below raises budgets, always the block that wins most coverage for its
// time, as long as it stays within the anchor.

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/planner/packing.h"
#include "coordinator/planner/policies/registry.h"

namespace sparsebalance::planner {
namespace {

// One block more or less for one sequence: |time| and |coverage| that it moves.
struct Move {
  bool possible = false;
  int64_t time = 0;
  int64_t coverage = 0;
};

class SparsityTuner {
 public:
  SparsityTuner(const Problem& problem, std::vector<int32_t>& budgets)
      : problem_(problem), budgets_(budgets) {}

  int64_t Latency(const MicroBatchItems& items) const {
    if (items.empty()) return problem_.zero_weight_ns();
    int64_t sum = problem_.predictor().constant_ns();
    for (const int32_t i : items) sum += problem_.TimeNs(i, budgets_[i]);
    return sum;
  }

  // Returns false where the micro-batch stays above the anchor.
  bool Tune(const MicroBatchItems& items, int64_t anchor) {
    int64_t total = Latency(items);
    const bool down = total > anchor;
    std::vector<Move> moves(items.size());
    for (size_t m = 0; m < items.size(); ++m) moves[m] = Next(items[m], down);
    while (!down || total > anchor) {
      int best = -1;
      for (int m = 0; m < static_cast<int>(moves.size()); ++m) {
        // The total only grows, so what does not fit now never will.
        if (!down && total + moves[m].time > anchor) moves[m].possible = false;
        if (moves[m].possible && (best < 0 || Better(moves[m], moves[best], down))) best = m;
      }
      if (best < 0) break;
      const int32_t i = items[best];
      budgets_[i] += down ? -1 : 1;
      total += down ? -moves[best].time : moves[best].time;
      moves[best] = Next(i, down);
    }
    return total <= anchor;
  }

 private:
  Move Next(int32_t i, bool down) const {
    const ProblemSequence& s = problem_.sequence(i);
    const int32_t now = budgets_[i];
    if (down ? now <= s.low : now >= s.high) return {};
    const int32_t next = down ? now - 1 : now + 1;
    const int64_t time = problem_.TimeNs(i, next) - problem_.TimeNs(i, now);
    const int64_t coverage = problem_.Coverage(i, next) - problem_.Coverage(i, now);
    return {true, down ? -time : time, down ? -coverage : coverage};
  }

  static bool Better(const Move& a, const Move& b, bool down) {
    return down ? Int128{a.time} * b.coverage > Int128{b.time} * a.coverage
                : Int128{a.coverage} * b.time > Int128{b.coverage} * a.time;
  }

  const Problem& problem_;
  std::vector<int32_t>& budgets_;
};

int64_t Anchor(v1::PaperAnchor kind, const std::vector<int64_t>& latencies) {
  if (kind == v1::PAPER_ANCHOR_MIN) return *std::min_element(latencies.begin(), latencies.end());
  if (kind == v1::PAPER_ANCHOR_MAX) return *std::max_element(latencies.begin(), latencies.end());
  int64_t sum = 0;
  for (const int64_t t : latencies) sum += t;
  return sum / static_cast<int64_t>(latencies.size());
}

}  // namespace

absl::StatusOr<Solution> SolvePaper(const Problem& problem) {
  Solution solution;
  solution.budgets = problem.BaseBudgets();
  std::vector<int64_t> weights(problem.num_sequences());
  for (int i = 0; i < problem.num_sequences(); ++i) {
    weights[i] = problem.TimeNs(i, solution.budgets[i]);
  }
  const int most = ReferenceCount(problem, problem.num_sequences(), problem.num_ranks()) *
                   problem.micro_batch_size();
  auto batching =
      PackBatching(problem, AssignToRanks(problem, weights, most, /*use_speed=*/false), weights);
  if (!batching.ok()) return batching.status();
  solution.batching = *std::move(batching);

  SparsityTuner tuner(problem, solution.budgets);
  std::vector<int64_t> latencies;
  for (const RankItems& rank : solution.batching) {
    for (const MicroBatchItems& mb : rank) {
      if (!mb.empty()) latencies.push_back(tuner.Latency(mb));
    }
  }
  if (latencies.empty()) return solution;
  const int64_t anchor = Anchor(problem.paper_anchor(), latencies);
  int above = 0;
  for (const RankItems& rank : solution.batching) {
    for (const MicroBatchItems& mb : rank) above += !mb.empty() && !tuner.Tune(mb, anchor) ? 1 : 0;
  }
  if (above > 0) {
    solution.fallback = v1::FALLBACK_REASON_ANCHOR_UNREACHABLE;
    solution.fallback_detail =
        absl::StrCat(above, " of ", latencies.size(), " micro-batches stay above the anchor of ",
                     absl::StrFormat("%.3f", MsFromNs(anchor)),
                     " ms: their sequences have the lowest budgets that the coverage guard allows");
  }
  return solution;
}

}  // namespace sparsebalance::planner
