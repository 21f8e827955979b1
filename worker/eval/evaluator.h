// Runs a model over held-out sequences and says how well it predicts: perplexity by length, and on
// the recall task accuracy by the distance between a query and its answer.
//
//   EvalOptions options{.budget_blocks = 8};
//   auto by_length = EvaluateDataset(ScoreBy(model), *dataset, options);
//   auto by_distance = EvaluateRecall(ScoreBy(model), task, /*sequences=*/256, options);
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/data/indexed_dataset.h"
#include "worker/eval/recall_task.h"
#include "worker/eval/tally.h"
#include "worker/model/micro_batch.h"
#include "worker/model/token_scores.h"
#include "worker/model/transformer.h"

namespace sparsebalance::eval {

struct EvalOptions {
  int64_t budget_blocks = 0;  // a query attends to, its own block included; 0: all (dense)
  int64_t max_tokens_per_micro_batch = 8192;  // a longer sequence is a micro-batch of its own
  // Of buckets by length: each ends below the next edge; a first one holds what is shorter.
  std::vector<int64_t> length_edges = {128, 512, 2048, 8192, 32768};
  uint64_t max_sequences = 0;  // the first so many of a data set; 0: all
};

struct Bucket {
  std::string name;
  Tally tally;
};

struct EvalResult {
  std::vector<Bucket> buckets;  // empty ones included
  Tally total;
};

struct RecallResult {
  std::vector<Bucket> buckets;  // by distance
  Tally total;
  Tally beyond_own_block;
};

// Scores of the supervised positions of a micro-batch, ascending.
using Scorer =
    std::function<absl::StatusOr<std::vector<model::TokenScore>>(const model::MicroBatch&)>;
// The model outlives it. Budgets are taken as they are: the coverage guard is not used.
Scorer ScoreBy(model::Transformer& model);

// INVALID_ARGUMENT for bad options, or where the data set has no supervised token.
absl::StatusOr<EvalResult> EvaluateDataset(const Scorer& scorer,
                                           const data::IndexedDataset& dataset,
                                           int64_t block_tokens, const EvalOptions& options);

// On `sequences` sequences of the task, numbers 0 and up.
absl::StatusOr<RecallResult> EvaluateRecall(const Scorer& scorer, const RecallTaskOptions& task,
                                            uint64_t sequences, const EvalOptions& options);

}  // namespace sparsebalance::eval
