#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/micro_batch.h"
#include "worker/model/parameters.h"

namespace sparsebalance::model {

// How well one supervised token was predicted.
struct TokenScore {
  int64_t position = 0;  // in the micro-batch, of the token before it: where it was predicted
  double loss = 0;       // nats
  bool correct = false;  // the most likely token is the target; ties go to the lower id
};

// Scores every position whose loss weight is not 0, in ascending order. x [tokens, hidden] is the
// output of the last layer. Logits go to the host a few rows at a time, and only rows that are
// wanted are looked at: this is for evaluation, not for training.
absl::Status ScoreTokens(const ModelConfig& config, kernels::Backend* backend,
                         const ModelWeights& weights, const MicroBatch& batch, ConstDeviceBuffer x,
                         std::vector<TokenScore>* scores);

}  // namespace sparsebalance::model
