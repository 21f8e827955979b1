#include "worker/verbs/eval.h"

#include <algorithm>
#include <cstdint>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/data/indexed_dataset.h"
#include "worker/eval/eval_report.h"
#include "worker/eval/evaluator.h"
#include "worker/eval/load_model.h"
#include "worker/train/exit_codes.h"
#include "worker/train/worker_flags.h"
#include "worker/verbs/recall_flags.h"

namespace sparsebalance {
namespace {

struct EvalFlags {
  std::string checkpoint;
  std::string dataset;
  bool recall = false;
  RecallFlags recall_flags;
  uint64_t recall_sequences = 256;
  model::ModelConfig model;
  std::string budget = "8";
  std::string backend = "auto";
  int threads = 1;
  bool json = false;
  eval::EvalOptions options;
};

void AddFlags(CLI::App& app, EvalFlags& flags) {
  flags.model.vocab_size = 0;
  flags.model.head_dim = 0;
  flags.recall_flags.task.seed = 1000003;  // not the one that recall-data writes by default
  // So that a training job's file describes the model here too.
  app.set_config("--config", "", "TOML file with flags; those of other commands are ignored");
  app.allow_config_extras(CLI::config_extras_mode::ignore_all);
  app.add_option("--checkpoint", flags.checkpoint,
                 "a checkpoint (DIR/step-N), or a folder of them: the newest")
      ->required();
  app.add_option("--dataset", flags.dataset, "prefix of a packed data set: perplexity by length");
  app.add_flag("--recall", flags.recall, "the built-in recall task: accuracy by distance");
  app.add_option("--budget", flags.budget,
                 "blocks a query attends to, its own included, or `dense`")
      ->capture_default_str();
  app.add_option("--block-tokens", flags.model.block_tokens, "tokens in a block of attention")
      ->capture_default_str();
  app.add_option("--length-edges", flags.options.length_edges, "where buckets by length begin")
      ->delimiter(',')
      ->capture_default_str();
  app.add_option("--max-sequences", flags.options.max_sequences,
                 "the first so many of the data set; 0: all")
      ->capture_default_str();
  app.add_option("--recall-sequences", flags.recall_sequences, "sequences of the recall task")
      ->capture_default_str();
  app.add_option("--max-tokens-per-micro-batch", flags.options.max_tokens_per_micro_batch,
                 "tokens in a forward pass")
      ->capture_default_str();
  app.add_option("--backend", flags.backend, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--threads", flags.threads, "CPU threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", flags.json, "JSON instead of tables");
  AddModelFlags(app, flags.model);
  AddRecallFlags(app, flags.recall_flags);
}

absl::Status Finish(EvalFlags& flags) {
  if (flags.dataset.empty() && !flags.recall) {
    return absl::InvalidArgumentError("give --dataset PREFIX, --recall, or both");
  }
  if (flags.budget == "dense") {
    flags.options.budget_blocks = 0;
  } else if (!absl::SimpleAtoi(flags.budget, &flags.options.budget_blocks) ||
             flags.options.budget_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--budget \"", flags.budget, "\" is neither a number of blocks above 0 nor `dense`"));
  }
  flags.recall_flags.task.block_tokens = flags.model.block_tokens;
  if (flags.recall) SB_RETURN_IF_ERROR(FinishRecallFlags(flags.recall_flags));
  if (flags.model.head_dim == 0 && flags.model.num_heads > 0) {
    flags.model.head_dim = flags.model.hidden_size / flags.model.num_heads;
  }
  return absl::OkStatus();
}

// The task's or the data set's vocabulary, unless a flag gives the model's.
absl::Status FillVocabulary(const std::optional<data::IndexedDataset>& dataset, EvalFlags& flags) {
  const int64_t task = flags.recall ? flags.recall_flags.task.VocabularySize() : 0;
  int64_t needed = task;
  if (dataset.has_value() && dataset->metadata().has_value()) {
    needed = std::max(needed, dataset->metadata()->vocabulary_size);
  }
  if (flags.model.vocab_size == 0) flags.model.vocab_size = static_cast<int>(needed);
  if (flags.model.vocab_size == 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(flags.dataset, " does not state its vocabulary (it has no .json file); give ",
                     "--vocabulary-size"));
  }
  if (flags.model.vocab_size < needed) {
    return absl::InvalidArgumentError(
        absl::StrCat("--vocabulary-size ", flags.model.vocab_size,
                     " is less than what is to be evaluated on has: ", needed));
  }
  return absl::OkStatus();
}

absl::Status Run(EvalFlags& flags) {
  SB_RETURN_IF_ERROR(Finish(flags));
  std::optional<data::IndexedDataset> dataset;
  if (!flags.dataset.empty()) {
    SB_ASSIGN_OR_RETURN(dataset, data::IndexedDataset::Open(flags.dataset));
  }
  SB_RETURN_IF_ERROR(FillVocabulary(dataset, flags));
  SB_RETURN_IF_ERROR(flags.model.Validate());
  SB_ASSIGN_OR_RETURN(const eval::LoadedModel loaded,
                      eval::LoadModel(flags.checkpoint, flags.model, flags.backend, flags.threads));
  const eval::Scorer scorer = eval::ScoreBy(*loaded.model);

  eval::EvalReport report;
  report.checkpoint = loaded.folder;
  report.step = loaded.step;
  report.budget = flags.budget;
  if (dataset.has_value()) {
    SB_ASSIGN_OR_RETURN(
        report.perplexity,
        eval::EvaluateDataset(scorer, *dataset, flags.model.block_tokens, flags.options));
  }
  if (flags.recall) {
    SB_ASSIGN_OR_RETURN(report.recall, eval::EvaluateRecall(scorer, flags.recall_flags.task,
                                                            flags.recall_sequences, flags.options));
  }
  std::cout << (flags.json ? eval::FormatJson(report) : eval::FormatTables(report));
  return absl::OkStatus();
}

}  // namespace

int RunEval(int argc, char** argv) {
  CLI::App app("Evaluates a checkpoint: perplexity by length, recall by distance.",
               "sparsebalance-worker eval");
  EvalFlags flags;
  AddFlags(app, flags);
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kExitFinished : kExitUsage;
  }
  const absl::Status status = Run(flags);
  if (!status.ok()) {
    std::cerr << "sparsebalance-worker eval: " << std::string(status.message()) << std::endl;
  }
  return ExitCodeOf(status);
}

}  // namespace sparsebalance
