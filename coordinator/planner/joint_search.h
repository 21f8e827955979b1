// Batching, order and budgets searched together.
//
// Threshold annealing on plans: a random change of one or two ranks (a budget, two budgets against
// each other, a micro-batch's place, a sequence's place, two sequences' places) is kept where the
// cost rises by less than a random amount that shrinks over the search. The cost is
//
//   sum over ranks of T_r^4 / (4 * T0^3)  +  price * (coverage that the floor misses)
//
// with T_r the rank's time through the schedule: the fourth power makes the slowest rank count most
// and still lets the others give way, because budgets can even ranks out afterwards. The price of
// coverage rises while the floor is missed and falls while it is kept, so that the search moves
// along the floor. Only the ranks that a change touches are evaluated again.
//
// The generator is seeded by a constant, all decisions are on integers, and the number of changes
// is given: the result depends on nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/envelope.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"

namespace sparsebalance::planner {

class JointSearch {
 public:
  // Hot climbs out of where it starts and forgets it; cold stays near.
  enum class Heat { kHot, kCold };

  JointSearch(const Problem& problem, const Envelopes& envelopes);

  // Looks at `tries` changes of the plan. Caps and fixed counts hold throughout; equal but free
  // counts are the caller's to settle. Ends at the fastest plan it met that keeps the floor; where
  // it met none, batching and budgets are as they were and false is returned.
  bool Improve(int64_t tries, Heat heat, Batching& batching, std::vector<int32_t>& budgets);

 private:
  struct MicroBatch {
    MicroBatchItems items;
    int64_t tokens = 0;  // padded
  };
  struct Rank {
    std::vector<MicroBatch> micro_batches;
    std::vector<int64_t> raw;  // [micro_batch] ns at factor 1
    int64_t span = 0;
    int64_t cost = 0;
  };
  struct Place {
    int32_t rank = 0;
    int32_t micro_batch = 0;
  };
  struct Level {
    int32_t budget;
    int64_t time, coverage;
  };
  struct Snapshot {
    int64_t step_ns = 0;
    int64_t coverage = 0;
    std::vector<Rank> ranks;
    std::vector<int32_t> level;
  };

  void AddLevels(int32_t i, const Envelopes& envelopes);
  void Load(const Batching& batching, const std::vector<int32_t>& budgets);
  void Store(const Snapshot& snapshot, Batching& batching, std::vector<int32_t>& budgets) const;
  void Remember();

  uint64_t Random();
  // In [0, bound).
  int32_t Pick(int32_t bound);
  // Mostly 0, with an exponential tail: -log2 of a uniform number, fixed point.
  int64_t RandomTail();

  const Level& LevelOf(int32_t i) const { return levels_[level_begin_[i] + level_[i]]; }
  int32_t LevelCount(int32_t i) const { return level_begin_[i + 1] - level_begin_[i]; }
  int64_t EmptyNs() const { return problem_.zero_weight_ns(); }
  int64_t SpanOf(int32_t rank, const std::vector<int64_t>& raw);
  int64_t CostOf(int64_t span) const;
  int64_t Missing(int64_t coverage) const;
  int64_t PriceOf(int64_t missing) const;
  // Whether a change of cost is kept.
  bool Keep(int64_t cost_change);
  int32_t PickSequence();
  void FindSlowest();

  void TryBudget(int32_t i);
  void TryBudgetExchange();
  void TryReorder(int32_t rank);
  void TryMove(int32_t i);
  void TrySwap(int32_t i, int32_t j);
  void Renumber(int32_t rank);

  // Prices the change of one or two ranks whose new micro-batch times are in raw_a_ and raw_b_ and
  // takes it, spans included, where it is kept. `rank_b` is -1 for one rank.
  bool Decide(int32_t rank_a, int32_t rank_b, int64_t coverage_change);

  const Problem& problem_;
  UniformSchedule schedule_;
  std::vector<Level> levels_;         // by sequence, rising
  std::vector<int32_t> level_begin_;  // [sequence], one more at the end
  // ns of cost for a unit of coverage, fixed point.
  int64_t first_price_ = 0;
  int64_t price_ = 0;

  std::vector<Rank> ranks_;
  std::vector<Place> place_;    // [sequence]
  std::vector<int32_t> level_;  // [sequence]
  int64_t coverage_ = 0;
  int64_t reference_ns_ = 1;  // T0
  int64_t threshold_ = 0;
  uint64_t random_ = 0;
  int32_t slowest_ = 0;
  Snapshot best_;
  bool found_ = false;
  bool changed_ = false;  // since the last Remember
  std::vector<int64_t> raw_a_, raw_b_, scaled_;
};

}  // namespace sparsebalance::planner
