// Shell completion, made from the program's own flags and verbs so that it cannot fall behind.
#pragma once

#include <string>

#include "absl/status/statusor.h"

namespace CLI {
class App;
}

namespace sparsebalance {

// A script for bash, zsh or fish that completes verbs, flags and, by asking the coordinator, names
// of jobs. INVALID_ARGUMENT names the shells.
absl::StatusOr<std::string> CompletionScript(const CLI::App& app, const std::string& shell);

}  // namespace sparsebalance
