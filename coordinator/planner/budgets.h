// Budgets for a given batching: the least step time that keeps the coverage floor, and the most
// coverage within that time.
//
// Every rank gets a path: budgets start at their lowest and rise one envelope segment at a time, by
// coverage gained over time. Time is the segment's own, which with one stage is all there is to it
// and makes the path optimal up to its granularity. With more stages there is a second path, where
// time is what the schedule makes of it, so that a segment in the shadow of a longer micro-batch
// costs nothing. The step time is the least T at which all ranks, each as far along its better path
// as T allows, have the coverage that is asked for.
#pragma once

#include <cstdint>
#include <vector>

#include "coordinator/planner/envelope.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"

namespace sparsebalance::planner {

struct BudgetResult {
  bool reached = false;  // the floor; budgets are the highest where not
  int64_t step_ns = 0;   // slowest rank
  int64_t coverage_sum = 0;
  std::vector<int32_t> budgets;
};

class BudgetOptimizer {
 public:
  BudgetOptimizer(const Problem& problem, const Envelopes& envelopes);

  BudgetResult Optimize(const Batching& batching);

 private:
  struct PathStep {
    int32_t sequence;
    int32_t to;        // budget
    int64_t rank_ns;   // of the rank after the step; never falls along a path
    int64_t coverage;  // gained since the start
  };
  struct Path {
    int64_t start_ns = 0;
    std::vector<PathStep> steps;
  };
  struct RankPaths {
    Path by_own_time;
    Path by_schedule;  // empty with one stage, and where the batch is large
    std::vector<int32_t> sequences;
    // While paths are built: times of micro-batches, their sum, coverage gained.
    std::vector<int64_t> raw, scaled;
    int64_t total = 0;
    int64_t gained = 0;
  };

  // Of all ranks, in one walk over the segments by steepness.
  void BuildPathsByOwnTime(const Batching& batching);
  void BuildPathBySchedule(int rank, const RankItems& items, RankPaths& paths);
  // Gain of the path's steps that end within `limit_ns`.
  static int64_t GainWithin(const Path& path, int64_t limit_ns);
  // Sets the budgets of a rank to what its path and then parts of the next `most_partial` steps
  // allow within the limit; returns the coverage of its sequences.
  int64_t FillWithin(int rank, const RankItems& items, const Path& path,
                     const std::vector<int32_t>& sequences, int64_t limit_ns, int most_partial,
                     std::vector<int32_t>& budgets);
  int64_t FillAll(const Batching& batching, int64_t limit_ns, int most_partial,
                  std::vector<int32_t>& budgets);
  void Scale(int rank, const std::vector<int64_t>& raw, std::vector<int64_t>& scaled) const;

  // Micro-batch times at the lowest budgets, rank's speed left out, and every sequence's place.
  void LowestTimes(const RankItems& items, std::vector<int64_t>& raw);

  const Problem& problem_;
  const Envelopes& envelopes_;
  Evaluator evaluator_;
  std::vector<RankPaths> paths_;
  std::vector<int32_t> other_;  // budgets of the path not taken
  std::vector<int32_t> trial_;  // budgets of a limit that is tried
  std::vector<int32_t> rank_;   // [sequence] its rank
  std::vector<int32_t> place_;  // [sequence] its micro-batch on its rank
  // Scratch of FillWithin.
  std::vector<char> blocked_;  // [sequence]
  std::vector<int64_t> raw_, scaled_;
};

// Budgets at a common price of time for the whole batch, at which its coverage reaches the floor:
// what sequences will cost, near enough to batch by, before there is a batching. The highest
// budgets where the floor cannot be reached.
std::vector<int32_t> PricedBudgets(const Problem& problem, const Envelopes& envelopes);

}  // namespace sparsebalance::planner
