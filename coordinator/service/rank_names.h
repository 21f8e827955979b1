// Ranks and steps in words, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace sparsebalance {

// "no rank", "rank 3", "ranks 0-3, 7" for ascending ranks; at most eight runs are spelt out.
std::string RankNames(const std::vector<uint32_t>& ranks);
// The same of steps.
std::string StepNames(const std::vector<uint64_t>& steps);

}  // namespace sparsebalance
