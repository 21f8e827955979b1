#include "worker/verbs/verbs.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "worker/verbs/eval.h"
#include "worker/verbs/recall_data.h"

namespace sparsebalance {

absl::Span<const Verb> Verbs() {
  static const auto* const verbs = new std::vector<Verb>{
      {"eval", "perplexity by length, recall by distance, of a checkpoint", RunEval},
      {"recall-data", "write the built-in recall task as a data set", RunRecallData},
  };
  return *verbs;
}

const Verb* FindVerb(std::string_view name) {
  for (const Verb& verb : Verbs()) {
    if (verb.name == name) return &verb;
  }
  return nullptr;
}

std::string VerbsHelp() {
  std::string out = "Verbs beside training (each has a --help):\n";
  for (const Verb& verb : Verbs()) {
    absl::StrAppendFormat(&out, "  %-28s%s\n", verb.name, verb.help);
  }
  return out;
}

}  // namespace sparsebalance
