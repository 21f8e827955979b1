#pragma once

#include <cstdint>
#include <vector>

namespace sparsebalance::model {

// The coverage guard in one layer: the least budget from `planned` up to `base` at which coverage
// is at least (1 - loss) times that of `base`. `curve` holds this layer's coverage at
// kernels::CoverageGrid(blocks). Budgets are cut to [1, blocks]; a planned budget at or above the
// base one is not touched.
int32_t RealizedBudget(int64_t blocks, const std::vector<double>& curve, int32_t planned,
                       int32_t base, double loss);

}  // namespace sparsebalance::model
