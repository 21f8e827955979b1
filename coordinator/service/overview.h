// The coordinator in a page of plain text.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

std::string Overview(const std::string& version, uint64_t leader_epoch, const std::string& store,
                     const std::vector<v1::JobStatus>& jobs);

}  // namespace sparsebalance
