#include "worker/verbs/recall_data_verb.h"

#include <cstdint>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/status/status.h"
#include "kernels/status_macros.h"
#include "worker/eval/recall_task.h"
#include "worker/verbs/recall_flags.h"
#include "worker/verbs/verb_main.h"

namespace sparsebalance {

int RunRecallDataVerb(int argc, char** argv) {
  CLI::App app("Writes the built-in recall task as a data set for sparsebalance-worker.",
               "sparsebalance-worker recall-data");
  RecallFlags flags;
  std::string output;
  uint64_t sequences = 16000;
  bool overwrite = false;
  app.add_option("--output", output, "prefix of the data set's files")->required();
  app.add_option("--sequences", sequences, "sequences to write")->capture_default_str();
  app.add_option("--block-tokens", flags.task.block_tokens, "tokens in a block of attention")
      ->capture_default_str();
  app.add_flag("--overwrite", overwrite, "replace a data set of this prefix");
  AddRecallFlags(app, flags);
  return RunVerb(app, argc, argv, [&]() -> absl::Status {
    SB_RETURN_IF_ERROR(FinishRecallFlags(flags));
    SB_RETURN_IF_ERROR(eval::WriteRecallDataset(flags.task, sequences, output, overwrite));
    std::cout << "wrote " << sequences << " sequences, vocabulary " << flags.task.VocabularySize()
              << ": " << output << "\n";
    return absl::OkStatus();
  });
}

}  // namespace sparsebalance
