#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/device_buffer.h"

namespace sparsebalance::kernels {

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

struct TypeCheck {
  const char* name;
  ElementType have;
  ElementType need;
};

// INVALID_ARGUMENT that names the first view of another type than the op takes.
inline absl::Status CheckTypes(std::string_view op, std::initializer_list<TypeCheck> checks) {
  const auto name = [](ElementType type) {
    const std::string_view text = ElementTypeName(type);
    return absl::string_view(text.data(), text.size());
  };
  for (const TypeCheck& c : checks) {
    if (c.have != c.need) {
      return absl::InvalidArgumentError(absl::StrCat(absl::string_view(op.data(), op.size()), ": ",
                                                     c.name, " is ", name(c.have), ", must be ",
                                                     name(c.need)));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels
