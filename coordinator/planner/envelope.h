// Coverage against time on its upper concave envelope.
//
// Coverage is concave in the budget but not in milliseconds: the longer the budget, the less a
// block more costs, so coverage as a function of time turns convex near all blocks. On the envelope
// the gain a millisecond always falls, so the best use of time is to take segments by falling gain.
// Between two points of a curve coverage is linear in the budget and time concave, hence only
// points of the curve are corners of the envelope.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "coordinator/planner/problem.h"

namespace sparsebalance::planner {

struct EnvelopeSegment {
  int32_t sequence;
  int32_t from, to;  // budgets
  int64_t time;      // ns, what the step from one to the other costs on a rank of factor 1
  int64_t coverage;  // 1e-9, what it gains; > 0
  double gain;       // coverage / time, one correctly rounded division: the same on every machine
};

// More coverage a nanosecond; ties by sequence, then budget. A strict weak order that keeps the
// segments of a sequence in their order.
inline bool SteeperThan(const EnvelopeSegment& a, const EnvelopeSegment& b) {
  if (a.gain != b.gain) return a.gain > b.gain;
  return a.sequence != b.sequence ? a.sequence < b.sequence : a.from < b.from;
}

// Envelopes of all sequences of a problem between their lowest and highest budgets.
class Envelopes {
 public:
  // Of what plans can have, or of what none can exceed: these differ where budgets are dealt over
  // layers.
  enum class Kind { kPlans, kBound };
  explicit Envelopes(const Problem& problem, Kind kind = Kind::kPlans);

  // By falling gain; empty where no budget gains coverage.
  absl::Span<const EnvelopeSegment> Of(int sequence) const {
    return absl::MakeConstSpan(segments_).subspan(begin_[sequence],
                                                  begin_[sequence + 1] - begin_[sequence]);
  }
  // Of all sequences, the steepest first.
  absl::Span<const EnvelopeSegment> BySteepness() const { return by_steepness_; }

  int64_t lowest_coverage_sum() const { return lowest_coverage_sum_; }
  int64_t highest_coverage_sum() const { return highest_coverage_sum_; }

 private:
  std::vector<EnvelopeSegment> segments_;  // by sequence
  std::vector<EnvelopeSegment> by_steepness_;
  std::vector<uint32_t> begin_;
  int64_t lowest_coverage_sum_ = 0;
  int64_t highest_coverage_sum_ = 0;
};

}  // namespace sparsebalance::planner
