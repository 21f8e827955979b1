// Where the program's log goes: one line an event on stderr, as text or as JSON.
#pragma once

#include <string>

#include "absl/status/status.h"

namespace sparsebalance {

// `format` is text or json; `level` trace, debug, info, warn, error or off. INVALID_ARGUMENT names
// the choices. Also sends gRPC's own messages there, at level debug.
absl::Status SetUpLogging(const std::string& format, const std::string& level);

}  // namespace sparsebalance
