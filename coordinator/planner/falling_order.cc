#include "coordinator/planner/falling_order.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

namespace sparsebalance::planner {
namespace {

// Below this a comparison sort is as fast.
constexpr size_t kRadixFrom = 512;
constexpr int kDigitBits = 11;
constexpr uint64_t kDigits = uint64_t{1} << kDigitBits;

struct Keyed {
  uint64_t key;  // how far below the largest weight
  int32_t index;
};

}  // namespace

void SortByFallingWeight(std::vector<int32_t>& items, const std::vector<int64_t>& weights) {
  const auto before = [&](int32_t a, int32_t b) {
    return weights[a] != weights[b] ? weights[a] > weights[b] : a < b;
  };
  if (!std::is_sorted(items.begin(), items.end(), before)) {
    std::sort(items.begin(), items.end(), before);
  }
}

std::vector<int32_t> ByFallingWeight(const std::vector<int64_t>& weights) {
  std::vector<int32_t> order(weights.size());
  if (weights.size() < kRadixFrom) {
    std::iota(order.begin(), order.end(), 0);
    SortByFallingWeight(order, weights);
    return order;
  }
  const auto [least, most] = std::minmax_element(weights.begin(), weights.end());
  const int64_t largest = *most;
  const auto range = static_cast<uint64_t>(largest - *least);
  std::vector<Keyed> from(weights.size());
  std::vector<Keyed> to(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    from[i] = {static_cast<uint64_t>(largest - weights[i]), static_cast<int32_t>(i)};
  }
  // Each pass keeps the order of equal digits, so ties stay by index.
  for (int shift = 0; shift < 64 && range >> shift != 0; shift += kDigitBits) {
    std::array<uint32_t, kDigits + 1> begin{};
    for (const Keyed& k : from) ++begin[(k.key >> shift & (kDigits - 1)) + 1];
    std::partial_sum(begin.begin(), begin.end(), begin.begin());
    for (const Keyed& k : from) to[begin[k.key >> shift & (kDigits - 1)]++] = k;
    std::swap(from, to);
  }
  for (size_t i = 0; i < order.size(); ++i) order[i] = from[i].index;
  return order;
}

}  // namespace sparsebalance::planner
