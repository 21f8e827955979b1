#include "worker/verbs/eval_verb.h"

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
#include "worker/verbs/recall_flags.h"
#include "worker/verbs/verb_main.h"

namespace sparsebalance {
namespace {

struct EvalFlags {
  std::string model;
  std::string dataset;
  bool recall = false;
  RecallFlags recall_flags;
  uint64_t recall_sequences = 256;
  std::string budget = "8";
  eval::LoadOptions load = {.backend = "auto"};
  bool json = false;
  eval::EvalOptions options;
};

void AddFlags(CLI::App& app, EvalFlags& flags) {
  flags.recall_flags.task.seed = 1000003;  // not the one that recall-data writes by default
  app.add_option("model", flags.model,
                 "a checkpoint (DIR/step-N), a folder of them (the newest is taken), or a folder "
                 "of a Hugging Face model or PEFT adapter")
      ->required();
  app.add_option("--base", flags.load.base_model,
                 "folder of the model that adapters are for; empty: the one that they name");
  app.add_option("--dataset", flags.dataset, "prefix of a packed data set: perplexity by length");
  app.add_flag("--recall", flags.recall, "the built-in recall task: accuracy by distance");
  app.add_option("--budget", flags.budget,
                 "blocks a query attends to, its own included, or `dense`")
      ->capture_default_str();
  app.add_option("--block-tokens", flags.load.block_tokens,
                 "tokens in a block of attention; 0: as the model states")
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
  app.add_option("--backend", flags.load.backend, "auto, cpu or cuda")->capture_default_str();
  app.add_option("--precision", flags.load.precision, "of activations: auto, fp32 or bf16")
      ->capture_default_str();
  app.add_option("--threads", flags.load.threads, "CPU threads")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_flag("--json", flags.json, "JSON instead of tables");
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
  return absl::OkStatus();
}

// What is evaluated on must not have tokens that the model does not know.
absl::Status CheckVocabulary(const std::optional<data::IndexedDataset>& dataset,
                             const EvalFlags& flags, const model::ModelConfig& config) {
  int64_t needed = flags.recall ? flags.recall_flags.task.VocabularySize() : 0;
  if (dataset.has_value() && dataset->metadata().has_value()) {
    needed = std::max(needed, dataset->metadata()->vocabulary_size);
  }
  if (needed <= config.vocab_size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the model in ", flags.model, " has a vocabulary of ", config.vocab_size,
                   " tokens, what it is to be evaluated on has ", needed));
}

absl::Status Run(EvalFlags& flags) {
  SB_RETURN_IF_ERROR(Finish(flags));
  std::optional<data::IndexedDataset> dataset;
  if (!flags.dataset.empty()) {
    SB_ASSIGN_OR_RETURN(dataset, data::IndexedDataset::Open(flags.dataset));
  }
  SB_ASSIGN_OR_RETURN(const eval::LoadedModel loaded, eval::LoadModel(flags.model, flags.load));
  const int block_tokens = loaded.model->config().block_tokens;
  flags.recall_flags.task.block_tokens = block_tokens;
  if (flags.recall) SB_RETURN_IF_ERROR(FinishRecallFlags(flags.recall_flags));
  SB_RETURN_IF_ERROR(CheckVocabulary(dataset, flags, loaded.model->config()));
  const eval::Scorer scorer = eval::ScoreBy(*loaded.model);

  eval::EvalReport report;
  report.model = loaded.folder;
  report.step = loaded.step;
  report.budget = flags.budget;
  if (dataset.has_value()) {
    SB_ASSIGN_OR_RETURN(report.perplexity,
                        eval::EvaluateDataset(scorer, *dataset, block_tokens, flags.options));
  }
  if (flags.recall) {
    SB_ASSIGN_OR_RETURN(report.recall, eval::EvaluateRecall(scorer, flags.recall_flags.task,
                                                            flags.recall_sequences, flags.options));
  }
  std::cout << (flags.json ? eval::FormatJson(report) : eval::FormatTables(report));
  return absl::OkStatus();
}

}  // namespace

int RunEvalVerb(int argc, char** argv) {
  CLI::App app("Evaluates a model: perplexity by length, recall by distance.",
               "sparsebalance-worker eval");
  EvalFlags flags;
  AddFlags(app, flags);
  return RunVerb(app, argc, argv, [&flags] { return Run(flags); });
}

}  // namespace sparsebalance
