#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "worker/model/config.h"

namespace sparsebalance::model {

// What one forward and backward pass runs on. Lives on the host. Sequences are packed one after the
// other and never attend to each other. A micro-batch without sequences is run on a dummy of one
// token and weight 0.
struct MicroBatch {
  std::vector<int32_t> tokens;      // [T], in [0, vocab_size)
  std::vector<int32_t> targets;     // [T], the next token; any value where the weight is 0
  std::vector<float> loss_weights;  // [T], 1 where supervised, else 0
  std::vector<int64_t> cu_seqlens;  // [S + 1], from 0 to T, every sequence of at least 1 token
  std::vector<int32_t> budgets;     // [S], planned blocks per query, >= 1; all blocks = dense
  // [S, layers] where the plan deals budgets over layers, else empty: then `budgets` hold in each.
  std::vector<int32_t> layer_budgets;
  std::vector<int32_t> base_budgets;  // [S], what the coverage guard compares with, >= 1

  // [S], or empty: nothing is dropped. Sets the masks of dropout: the same key drops the same
  // elements of a sequence, wherever it lies in the batch.
  std::vector<uint64_t> dropout_keys;

  // Above 0: true attention mass is measured on so many queries of every sequence.
  int audit_queries = 0;

  // INVALID_ARGUMENT that names the field, and the position where there is one.
  absl::Status Validate(const ModelConfig& config) const;

  // Planned budgets of one layer, [S].
  std::vector<int32_t> LayerBudgets(size_t layer, size_t layers) const;
};

struct SequenceReport {
  // At kernels::CoverageGrid(blocks of the sequence), mean over layers.
  std::vector<float> coverage;
  std::vector<std::vector<float>> layer_coverage;  // [layers], the same of each
  // Per layer, own block included: the planned budget within [1, blocks], raised by the guard.
  std::vector<int32_t> realized_budgets;
  // Share of the past's attention mass that the selected blocks hold, mean over layers; only where
  // audit_queries asked for it.
  std::optional<double> attention_mass;
};

struct MicroBatchReport {
  double loss_sum = 0;                                       // over supervised tokens, not scaled
  double supervised_tokens = 0;                              // sum of the loss weights
  double forward_seconds = 0, backward_seconds = 0;          // device time, without audits
  double forward_cpu_seconds = 0, backward_cpu_seconds = 0;  // of the calling thread
  double audit_seconds = 0;                                  // device time of audits
  std::vector<SequenceReport> sequences;
  // Query-key pairs of tokens attended by one query head, summed over layers.
  double attended_pairs = 0;
};

}  // namespace sparsebalance::model
