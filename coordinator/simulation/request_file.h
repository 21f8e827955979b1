// Plan requests from a text file, one JSON object a line.
//
//   {"job": {"data_parallel_size": 2, "pipeline_parallel_size": 4, "block_tokens": 256,
//            "base_budget_blocks": 32, "max_tokens_per_micro_batch": 65536, ...},
//    "latency": {"constant_ms": 0.4, "per_token_ms": 0.0016, "per_pair_ms": 4.5e-7,
//                "router_ms_per_token_block": 0.0, "forward_fraction": 0.333, ...},
//    "step": 0,
//    "sequences": [{"id": 1, "tokens": 19567, "coverage": {"family": "power", "alpha": 1.77}},
//    ...], "rank_factors": [{"rank": 1, "time_factor": 1.3}]}
//
// Keys are the fields of PlanSettings, LatencyModel, Sequence, RankFactor and UpcomingBatch
// (plan.proto). Two are written shorter: `coverage_floor` is "baseline", "guard", "fixed" or a
// number; `coverage`, and each entry of `layer_coverage`, is {"family": "power", "alpha": A}, which
// means C(k) = H(k-1) / H(N-1) with H(m) = sum over j <= m of j^-A, or {"budget_blocks": [...],
// "coverage": [...]}. An id may be a number or a string of digits. `latency`, `step`, `coverage`,
// `layer_coverage`, `rank_factors` and `upcoming` may be left out; a key that is not known is an
// error, so that a misspelt one is not passed over.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::simulation {

// One line, checked by planner::ValidateRequest. INVALID_ARGUMENT names the column of malformed
// JSON, else the field, its value and what is wrong with it.
absl::StatusOr<v1::PlanRequest> ParsePlanRequest(std::string_view line);

// All lines that are not blank. Errors start with "PATH:LINE: "; NOT_FOUND where the file cannot be
// opened, INVALID_ARGUMENT where it holds no request.
absl::StatusOr<std::vector<v1::PlanRequest>> ReadPlanRequests(const std::string& path);

}  // namespace sparsebalance::simulation
