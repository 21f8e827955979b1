// The 1F1B pipeline schedule.
//
// Stage s of P runs min(P - s - 1, M) forwards, then one forward and one backward in turn, then the
// remaining backwards. A forward waits for the same micro-batch's forward one stage earlier, a
// backward for its backward one stage later. Example, P = 2, M = 3:
//
//   stage 0:  F0 F1 B0 F2 B1 B2
//   stage 1:     F0 B0 F1 B1 F2 B2
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace sparsebalance::planner {

struct ScheduleTimes {
  // [stage][micro_batch], any unit, >= 0; all rows have the same length.
  std::vector<std::vector<int64_t>> forward;
  std::vector<std::vector<int64_t>> backward;
};

struct ScheduleResult {
  int64_t span = 0;                 // from 0 to the end of the last backward
  std::vector<int64_t> stage_busy;  // [stage]
  // Idle over total stage time, in [0, 1); 0 for an empty schedule.
  double bubble_fraction = 0;
};

ScheduleResult SimulateSchedule(const ScheduleTimes& times);

// Span where a micro-batch takes the same time on every stage; O(stages * micro-batches). Keeps its
// buffers, so that a search can call it many thousand times. Not thread-safe.
class UniformSchedule {
 public:
  // stages >= 1; forward_fraction in fixed point (latency_model.h).
  UniformSchedule(int stages, int64_t forward_fraction)
      : stages_(stages), forward_fraction_(forward_fraction), clock_(stages), done_(stages) {}

  // Times of whole micro-batches on one stage, forward and backward.
  int64_t Span(absl::Span<const int64_t> micro_batches);

 private:
  // The usual depths, unrolled.
  template <int kStages>
  int64_t SpanOf(int count);

  int stages_;
  int64_t forward_fraction_;
  std::vector<int64_t> clock_;  // [stage]
  std::vector<int> done_;       // [stage] forwards run
  // [micro_batch] end of its forward on the stage that ran it last, and its split.
  std::vector<int64_t> forward_end_, forward_, backward_;
};

}  // namespace sparsebalance::planner
