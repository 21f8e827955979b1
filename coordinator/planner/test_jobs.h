// Plan requests for tests: small ones by hand, random ones by seed.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::planner {

// c0 = 1 ms, 0.001 ms a token, no other cost: t = 1 + tokens / 1000 a micro-batch.
v1::PlanRequest LinearRequest(uint32_t ranks, const std::vector<uint64_t>& tokens);

// A job of any shape: ranks, stages, caps, guards, floors, speeds, lengths and curves.
v1::PlanRequest RandomRequest(uint64_t seed);

// The folder with data from the field beside the source tree; nothing where it is absent.
std::optional<std::string> SharedData();

}  // namespace sparsebalance::planner
