// A step time that no plan within the same constraints can beat.
//
// One stage: budgets relaxed to the envelopes, batching relaxed to one pool of work shared by all
// ranks according to their speed; each sequence's own time still has to fit the step, and each
// micro-batch of the least possible number costs its constant.
//
// More stages, f = min(share of forward, share of backward). Let Q be any set of sequences of a
// rank, a the one whose forward comes first and c the one whose backward comes last. Before a's
// forward reaches the last stage, the first has run the forwards before it, and (P - 1) more stages
// run a's; the last stage then runs forward and backward of all from a to c; c's backward climbs
// (P - 1) stages, and the first stage still has to run the backwards after it. So
//
//   T >= P*c0 + f * (work of the others) + (work of Q) + (P - 1) * (forward of a + backward of c),
//
// also where sequences share a micro-batch. With Q the rank's part of the m longest sequences, this
// is summed over ranks.
#pragma once

#include <cstdint>

#include "coordinator/planner/envelope.h"
#include "coordinator/planner/problem.h"

namespace sparsebalance::planner {

// Nanoseconds, without the step's constant; >= 0. `floor_sum` as in Problem::floor_sum.
int64_t LowerBoundNs(const Problem& problem, const Envelopes& envelopes, int64_t floor_sum);

}  // namespace sparsebalance::planner
