#include "worker/verbs/verbs.h"

#include <vector>

#include "absl/strings/str_format.h"
#include "worker/verbs/convert_verb.h"
#include "worker/verbs/eval_verb.h"
#include "worker/verbs/inspect_verb.h"
#include "worker/verbs/profile_verb.h"
#include "worker/verbs/recall_data_verb.h"

namespace sparsebalance {

absl::Span<const Verb> Verbs() {
  static const auto* const verbs = new std::vector<Verb>{
      {"convert", "writes a model as a Hugging Face folder", RunConvertVerb},
      {"inspect", "shows what a model on disk consists of", RunInspectVerb},
      {"profile", "measures and fits this machine's latency by length and budget", RunProfileVerb},
      {"eval", "perplexity by length and recall by distance of a model", RunEvalVerb},
      {"recall-data", "writes the built-in recall task as a data set", RunRecallDataVerb},
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
