// Coverage curves for simulated sequences: a parametric family, or curves that were recorded.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "coordinator/simulation/random.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::simulation {

struct CoverageSource {
  std::string description;
  // Of a sequence of so many blocks, >= 1; on the grid of planner::CoverageGrid.
  std::function<v1::CoverageCurve(uint32_t blocks, Random&)> sample;
};

// "family": C(k) = H(k-1) / H(N-1), H(m) = sum over j <= m of j^-alpha, alpha uniform in 0.6..1.8
// for every sequence. "family:LOW:HIGH" gives another range. Anything else is a file of recorded
// curves, one JSON object a line:
//   {"sequence_id": 7, "tokens": 8191, "budget_blocks": [1, 2, ...], "coverage": [0, 0.41, ...]}
// as a worker with --output writes them to coverage/POLICY/NODE.jsonl (id and tokens are for people
// and may be missing). A sequence gets a curve of one of about its number
// of blocks, stretched to it. Errors name the line.
absl::StatusOr<CoverageSource> LoadCoverage(const std::string& family_or_path);

}  // namespace sparsebalance::simulation
