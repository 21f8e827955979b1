// Small whole-file helpers over worker/data/file_io.h.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance {

// The file is there whole or not at all. Errors carry the system's reason.
absl::Status WriteFile(const std::string& path, std::string_view bytes);

// NOT_FOUND or the system's error.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// From the root, without looking whether it is there; empty stays empty.
std::string AbsolutePath(const std::string& path);

// SHA-256 in hexadecimal.
std::string Sha256Hex(std::string_view bytes);

}  // namespace sparsebalance
