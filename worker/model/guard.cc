#include "worker/model/guard.h"

#include <algorithm>

#include "kernels/packed_blocks.h"

namespace sparsebalance::model {

int32_t RealizedBudget(int64_t blocks, const std::vector<double>& curve, int32_t planned,
                       int32_t base, double loss) {
  int64_t low = std::clamp<int64_t>(planned, 1, blocks);
  int64_t high = std::clamp<int64_t>(base, 1, blocks);
  if (low >= high) return static_cast<int32_t>(low);
  const double floor = (1.0 - loss) * kernels::InterpolateCoverage(blocks, curve, high);
  // Coverage does not fall with the budget, and `high` meets the floor.
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (kernels::InterpolateCoverage(blocks, curve, middle) >= floor) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<int32_t>(low);
}

}  // namespace sparsebalance::model
