// Values as people write them on a command line or in a configuration file.
#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

namespace sparsebalance {

// "30s", "1.5h", "500ms", "1m30s", or a plain number of seconds. Above zero and finite.
// INVALID_ARGUMENT says what is wrong with it and what is right.
absl::StatusOr<absl::Duration> ParseDurationText(std::string_view text);

// "4096", "64MiB", "1.5GB": bytes, with the prefixes k, M, G, T (1000) and Ki, Mi, Gi, Ti (1024).
// At least 1.
absl::StatusOr<uint64_t> ParseBytesText(std::string_view text);

// A whole number without sign, at least 1.
absl::StatusOr<uint64_t> ParseCountText(std::string_view text);

}  // namespace sparsebalance
