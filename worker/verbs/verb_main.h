// What every verb's main does around its work: parsing, messages and exit codes.
#pragma once

#include <functional>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"

namespace sparsebalance {

// Parses and runs. Returns 0, or the code of exit_codes.h after one line on standard error. A full
// disk counts as a thing to mend first, like a wrong flag.
int RunVerb(CLI::App& app, int argc, char** argv, const std::function<absl::Status()>& run);

}  // namespace sparsebalance
