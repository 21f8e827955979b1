#include "coordinator/planner/timeline.h"

#include <algorithm>

namespace sparsebalance::planner {

std::vector<StageTimeline> TimelineOf(const v1::RankPlan& rank, uint32_t stages,
                                      double forward_fraction) {
  const int count = rank.micro_batches_size();
  const int depth = static_cast<int>(std::max<uint32_t>(1, stages));
  std::vector<StageTimeline> out(depth);
  std::vector<double> clock(depth, 0);
  std::vector<int> begun(depth, 0);
  std::vector<double> forward_end(count, 0);  // on the stage that ran it last
  for (int j = 0; j < count; ++j) {
    for (int s = 0; s < depth; ++s) {
      for (; begun[s] < std::min(depth - s + j, count); ++begun[s]) {
        const int i = begun[s];
        const double begin = std::max(clock[s], forward_end[i]);
        clock[s] = begin + rank.micro_batches(i).predicted_ms() * forward_fraction;
        forward_end[i] = clock[s];
        out[s].operations.push_back({i, false, begin, clock[s]});
      }
    }
    double ready = 0;
    for (int s = depth - 1; s >= 0; --s) {
      const double begin = std::max(clock[s], ready);
      clock[s] = begin + rank.micro_batches(j).predicted_ms() * (1 - forward_fraction);
      ready = clock[s];
      out[s].operations.push_back({j, true, begin, clock[s]});
    }
  }
  return out;
}

}  // namespace sparsebalance::planner
