// `sbctl simulate` and `sbctl replay`: what can be known without a cluster.
#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparsebalance {

struct SimulateFlags {
  std::string workload = "chatqa2-like";
  uint32_t data_parallel = 2;
  uint32_t pipeline_parallel = 4;
  uint32_t micro_batch_size = 2;
  uint64_t global_batch_size = 16;
  uint64_t max_tokens = 131072;
  uint64_t steps = 50;
  uint64_t seed = 1;
  std::vector<std::string> policies = {"none", "length", "karmarkar-karp", "paper",
                                       "sparsebalance"};
  std::string profile;  // v1.LatencyProfile as JSON; empty: the modelled one
  std::string coverage = "family";
  double guard = 0.1;
  std::string floor = "baseline";  // or guard, fixed, or a number
  uint32_t block_tokens = 256;
  uint32_t base_budget = 32;
  uint32_t max_budget = 128;
  std::string effort = "normal";
  uint32_t lookahead_steps = 1;
  uint32_t layers = 0;
  std::string html;  // also write a page to this file
  bool json = false;
};

// JSON is one object a line and policy. Errors name the flag or the file.
absl::Status RunSimulate(const SimulateFlags& flags, std::ostream& out);

absl::Status RunReplay(const std::string& trace, bool json, std::ostream& out);

}  // namespace sparsebalance
