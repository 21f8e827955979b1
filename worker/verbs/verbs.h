// Verbs of sparsebalance-worker beside training: `sparsebalance-worker VERB [flags]`.
#pragma once

#include <string>
#include <string_view>

#include "absl/types/span.h"

namespace sparsebalance {

struct Verb {
  std::string_view name;
  std::string_view help;  // one line
  // Parses argv[1...] (argv[0] is the verb), runs, and returns the exit code (exit_codes.h).
  int (*run)(int argc, char** argv);
};

absl::Span<const Verb> Verbs();

// nullptr where there is none of that name.
const Verb* FindVerb(std::string_view name);

// A line a verb, for the end of --help.
std::string VerbsHelp();

}  // namespace sparsebalance
