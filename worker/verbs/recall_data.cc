#include "worker/verbs/recall_data.h"

#include <cstdint>
#include <iostream>
#include <string>

#include "CLI/CLI.hpp"
#include "worker/train/exit_codes.h"
#include "worker/verbs/recall_flags.h"

namespace sparsebalance {

int RunRecallData(int argc, char** argv) {
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitFinished : kExitUsage;
  }
  absl::Status status = FinishRecallFlags(flags);
  if (status.ok()) status = eval::WriteRecallDataset(flags.task, sequences, output, overwrite);
  if (!status.ok()) {
    std::cerr << "sparsebalance-worker recall-data: " << std::string(status.message()) << std::endl;
    // A prefix that is taken is the user's to mend, not a coordinator's refusal.
    return absl::IsAlreadyExists(status) ? kExitUsage : ExitCodeOf(status);
  }
  std::cout << "wrote " << sequences << " sequences, vocabulary " << flags.task.VocabularySize()
            << ": " << output << "\n";
  return kExitFinished;
}

}  // namespace sparsebalance
