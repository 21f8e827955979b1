// Exchanging sequences with the global batches that follow.
//
// A step that one long sequence decides wastes the other ranks, and two such steps waste twice what
// one step with both sequences would. With look-ahead a sequence may change places with one of the
// next batches of the epoch, one for one, so that every batch keeps its size and every sequence is
// still trained exactly once an epoch. What changes is only when: by at most lookahead_steps - 1
// steps from where the sampler put it.
//
// Exchanges are looked for between the batch that is planned and each of the following ones, by
// what they promise on a simple model of a step (its longest sequence, its work over all ranks, the
// pipeline's fill and drain), and made where plans of both batches together get faster by more than
// a little: moving data for nothing helps nobody.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

struct Lookahead {
  std::vector<v1::SequenceExchange> exchanges;  // by later_step, then now_id
  // Step times of all batches that take part, without the exchanges less with them; > 0 where there
  // are any.
  int64_t saved_ns = 0;
};

// For the policy `sparsebalance`. The request must have passed ValidateRequest. Errors of planning
// the step's own batch.
absl::StatusOr<Lookahead> ChooseExchanges(const v1::PlanRequest& request);

// The step's request once exchanges are done: sequences that are trained in this step, and no
// upcoming batches. INVALID_ARGUMENT where an exchange names a sequence that is not where it says.
absl::StatusOr<v1::PlanRequest> AfterExchanges(
    const v1::PlanRequest& request,
    const google::protobuf::RepeatedPtrField<v1::SequenceExchange>& exchanges);

// See Plan.max_displacement_steps; the exchanges fit the request.
uint64_t MaxDisplacement(const v1::PlanRequest& request,
                         const google::protobuf::RepeatedPtrField<v1::SequenceExchange>& exchanges);

}  // namespace sparsebalance::planner
