// Lengths of training sequences: generated after published descriptions, or from a file.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/simulation/random.h"

namespace sparsebalance::simulation {

struct Workload {
  std::string name;
  // Where the lengths come from; says of a generated workload that it is an approximation.
  std::string description;
  // Tokens of the next sequence, >= 1.
  std::function<uint64_t(Random&)> sample;
};

// Names that LoadWorkload knows without a file.
std::vector<std::string> BuiltInWorkloads();

// A built-in name, or a file:
//   PATH.idx           index of a packed dataset (the .bin beside it is not read)
//   quantile,tokens    a quantile table with this header, rising in both columns, sampled by its
//                      inverse, linear between points
//   one column         a list of lengths, with or without the header `tokens`; sampled without
//                      replacement, in epochs
// NOT_FOUND or INVALID_ARGUMENT name what is wrong, with line and column in text files.
absl::StatusOr<Workload> LoadWorkload(const std::string& name_or_path);

}  // namespace sparsebalance::simulation
