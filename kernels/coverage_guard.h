#pragma once

// Coverage curves and what is decided by them, for host and device alike. `Curve` is anything with
// operator[]: the coverage of a sequence at the budgets of CoverageGrid(its blocks).

#include <cstdint>

#include "kernels/host_device.h"

namespace sparsebalance::kernels {

// The i-th budget of CoverageGrid, but for the last, which is the number of blocks; and its size.
SB_HOST_DEVICE inline int64_t CoverageGridPoint(int i) {
  if (i == 0) return 1;
  return i % 2 == 1 ? int64_t{1} << ((i + 1) / 2) : int64_t{3} << (i / 2 - 1);
}
SB_HOST_DEVICE inline int CoverageGridSize(int64_t blocks) {
  int size = 1;
  while (CoverageGridPoint(size - 1) < blocks) ++size;
  return size;
}

// Coverage at `budget` by linear interpolation.
template <typename Curve>
SB_HOST_DEVICE inline double CoverageAt(int64_t blocks, const Curve& curve, int64_t budget) {
  const int size = CoverageGridSize(blocks);
  if (budget <= 1) return curve[0];
  if (budget >= blocks) return curve[size - 1];
  int right = 1;
  while (right < size - 1 && CoverageGridPoint(right) <= budget) ++right;
  const int64_t left_budget = CoverageGridPoint(right - 1);
  const int64_t right_budget = right == size - 1 ? blocks : CoverageGridPoint(right);
  const double share =
      static_cast<double>(budget - left_budget) / static_cast<double>(right_budget - left_budget);
  const double left = curve[right - 1];
  return left + share * (curve[right] - left);
}

// The coverage guard: the least budget from `planned` up to `base` at which coverage is at least
// (1 - loss) times that of `base`. Budgets are cut to [1, blocks]; a planned budget at or above the
// base one is not touched. Coverage does not fall with the budget.
template <typename Curve>
SB_HOST_DEVICE inline int32_t RealizedBudget(int64_t blocks, const Curve& curve, int32_t planned,
                                             int32_t base, double loss) {
  const auto within = [blocks](int64_t budget) {
    return budget < 1 ? 1 : budget > blocks ? blocks : budget;
  };
  int64_t low = within(planned);
  int64_t high = within(base);
  if (low >= high) return static_cast<int32_t>(low);
  const double floor = (1.0 - loss) * CoverageAt(blocks, curve, high);
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (CoverageAt(blocks, curve, middle) >= floor) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return static_cast<int32_t>(low);
}

}  // namespace sparsebalance::kernels
