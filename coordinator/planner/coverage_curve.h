// Coverage of a sequence as a function of its budget.
//
// A curve is a list of points (budget, coverage), linear in between. It starts at (1, 0) and ends
// at (N, 1), where N is the number of blocks of the sequence; a curve whose last budget is below N
// is continued linearly to (N, 1). A sequence of one block has coverage 1 at every budget.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// ceil(tokens / block_tokens).
uint64_t BlocksOf(uint64_t tokens, uint64_t block_tokens);

// 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, ... (powers of two and one and a half times them) below
// `blocks`, then `blocks` itself.
std::vector<uint32_t> CoverageGrid(uint32_t blocks);

// INVALID_ARGUMENT says which point is wrong. `blocks` is N of the sequence, >= 1.
absl::Status CheckCurve(const v1::CoverageCurve& curve, uint32_t blocks);

// Coverage at a budget >= 1, in [0, 1]; `curve` has passed CheckCurve. An empty curve is read as
// the default family.
double CoverageAt(const v1::CoverageCurve& curve, uint32_t blocks, uint32_t budget);

// H_a(k-1) / H_a(N-1) on the grid, with H_a(m) = sum_{j=1..m} j^-alpha. Routing scores fall off
// roughly so; a larger alpha is a sequence that tolerates more sparsity.
v1::CoverageCurve PowerCurve(uint32_t blocks, double alpha);

// The same at every budget 1..N instead of the grid.
v1::CoverageCurve DensePowerCurve(uint32_t blocks, double alpha);

// PowerCurve with alpha = 1: what is assumed of a sequence that was never measured. Needs no libm.
v1::CoverageCurve DefaultCurve(uint32_t blocks);

}  // namespace sparsebalance::planner
