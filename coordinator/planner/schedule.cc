#include "coordinator/planner/schedule.h"

#include <algorithm>
#include <array>

#include "coordinator/planner/latency_model.h"

namespace sparsebalance::planner {
namespace {

// Walks the schedule in an order in which everything an operation waits for has been visited: in
// round j every stage, first to last, runs the forwards that precede its backward of micro-batch j,
// then every stage, last to first, runs that backward.
// `forward_end` needs one slot a micro-batch: stage s - 1 is always ahead of stage s.
template <class Forward, class Backward>
int64_t Walk(int stages, int micro_batches, std::vector<int64_t>& clock, std::vector<int>& done,
             std::vector<int64_t>& forward_end, const Forward& forward, const Backward& backward) {
  std::fill(clock.begin(), clock.end(), 0);
  std::fill(done.begin(), done.end(), 0);
  forward_end.assign(micro_batches, 0);
  for (int j = 0; j < micro_batches; ++j) {
    for (int s = 0; s < stages; ++s) {
      const int upto = std::min(stages - s + j, micro_batches);
      int64_t now = clock[s];
      for (int i = done[s]; i < upto; ++i) {
        now = std::max(now, forward_end[i]) + forward(s, i);
        forward_end[i] = now;
      }
      clock[s] = now;
      done[s] = upto;
    }
    int64_t ready = 0;
    for (int s = stages - 1; s >= 0; --s) {
      ready = std::max(clock[s], ready) + backward(s, j);
      clock[s] = ready;
    }
  }
  return *std::max_element(clock.begin(), clock.end());
}

}  // namespace

ScheduleResult SimulateSchedule(const ScheduleTimes& times) {
  ScheduleResult result;
  const int stages = static_cast<int>(times.forward.size());
  result.stage_busy.assign(stages, 0);
  if (stages == 0) return result;
  const int count = static_cast<int>(times.forward[0].size());
  std::vector<int64_t> clock(stages);
  std::vector<int> done(stages);
  std::vector<int64_t> forward_end;
  result.span = Walk(
      stages, count, clock, done, forward_end, [&](int s, int i) { return times.forward[s][i]; },
      [&](int s, int j) { return times.backward[s][j]; });
  int64_t busy = 0;
  for (int s = 0; s < stages; ++s) {
    for (int i = 0; i < count; ++i) {
      result.stage_busy[s] += times.forward[s][i] + times.backward[s][i];
    }
    busy += result.stage_busy[s];
  }
  if (result.span > 0) {
    const double total = static_cast<double>(result.span) * stages;
    result.bubble_fraction = (total - static_cast<double>(busy)) / total;
  }
  return result;
}

template <int kStages>
int64_t UniformSchedule::SpanOf(int count) {
  // As Walk, with clocks in registers. In round j > 0 stage s runs the forward of micro-batch
  // kStages - 1 - s + j, which stage s - 1 ran a round earlier, so that the stages of a round do
  // not wait for each other.
  std::array<int64_t, kStages> clock{};
  int64_t* const end = forward_end_.data();
  const int64_t* const forward = forward_.data();
  const int64_t* const backward = backward_.data();
  for (int s = 0; s < kStages; ++s) {
    int64_t now = 0;
    for (int i = 0; i < std::min(kStages - s, count); ++i) {
      now = (s == 0 ? now : std::max(now, end[i])) + forward[i];
      end[i] = now;
    }
    clock[s] = now;
  }
  const auto run_backward = [&](int j) {
    int64_t ready = 0;
    for (int s = kStages - 1; s >= 0; --s) {
      ready = std::max(clock[s], ready) + backward[j];
      clock[s] = ready;
    }
  };
  run_backward(0);
  int j = 1;
  for (; j + kStages - 1 < count; ++j) {
    // Stage 0 begins a micro-batch; nobody ran it before.
    clock[0] += forward[kStages - 1 + j];
    end[kStages - 1 + j] = clock[0];
    for (int s = 1; s < kStages; ++s) {
      const int i = kStages - 1 - s + j;
      clock[s] = std::max(clock[s], end[i]) + forward[i];
      end[i] = clock[s];
    }
    run_backward(j);
  }
  for (; j < count; ++j) {
    for (int s = 0; s < kStages; ++s) {
      const int i = kStages - 1 - s + j;
      if (i >= count) continue;
      clock[s] = std::max(clock[s], s == 0 ? 0 : end[i]) + forward[i];
      end[i] = clock[s];
    }
    run_backward(j);
  }
  return *std::max_element(clock.begin(), clock.end());
}

int64_t UniformSchedule::Span(absl::Span<const int64_t> micro_batches) {
  if (micro_batches.empty()) return 0;
  const int count = static_cast<int>(micro_batches.size());
  if (stages_ == 1) {
    int64_t sum = 0;
    for (const int64_t t : micro_batches) sum += t;
    return sum;
  }
  forward_.resize(count);
  backward_.resize(count);
  for (int i = 0; i < count; ++i) {
    forward_[i] = MulFixed(micro_batches[i], forward_fraction_);
    backward_[i] = micro_batches[i] - forward_[i];
  }
  if (stages_ == 2 || stages_ == 4 || stages_ == 8) {
    forward_end_.resize(count);
    if (stages_ == 2) return SpanOf<2>(count);
    return stages_ == 4 ? SpanOf<4>(count) : SpanOf<8>(count);
  }
  return Walk(
      stages_, count, clock_, done_, forward_end_, [this](int, int i) { return forward_[i]; },
      [this](int, int j) { return backward_[j]; });
}

}  // namespace sparsebalance::planner
