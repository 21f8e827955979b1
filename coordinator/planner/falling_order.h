// Indices by falling weight, ties by rising index: the order in which LPT takes sequences.
#pragma once

#include <cstdint>
#include <vector>

namespace sparsebalance::planner {

// All indices of `weights`, each >= 0. Linear in their number for large batches (radix sort).
std::vector<int32_t> ByFallingWeight(const std::vector<int64_t>& weights);

// The given indices only.
void SortByFallingWeight(std::vector<int32_t>& items, const std::vector<int64_t>& weights);

}  // namespace sparsebalance::planner
