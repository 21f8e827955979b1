#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::kernels::cpu {

struct SizeCheck {
  const char* name;
  int64_t have;
  int64_t need;
};

// INVALID_ARGUMENT that names the first view with fewer elements than the op needs.
inline absl::Status CheckSizes(std::string_view op, std::initializer_list<SizeCheck> checks) {
  for (const SizeCheck& c : checks) {
    if (c.have < c.need) {
      return absl::InvalidArgumentError(absl::StrCat(absl::string_view(op.data(), op.size()), ": ",
                                                     c.name, " has ", c.have, " elements, needs ",
                                                     c.need));
    }
  }
  return absl::OkStatus();
}

// INVALID_ARGUMENT that names the first value below its least one.
inline absl::Status CheckAtLeast(std::string_view op, std::initializer_list<SizeCheck> checks) {
  for (const SizeCheck& c : checks) {
    if (c.have < c.need) {
      return absl::InvalidArgumentError(absl::StrCat(absl::string_view(op.data(), op.size()), ": ",
                                                     c.name, " is ", c.have, ", must be at least ",
                                                     c.need));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::cpu
