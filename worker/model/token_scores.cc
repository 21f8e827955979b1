#include "worker/model/token_scores.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "kernels/status_macros.h"
#include "worker/model/loss_head.h"

namespace sparsebalance::model {
namespace {

// In double, against the largest logit, so that nothing overflows.
TokenScore Score(std::span<const float> logits, int64_t position, int32_t target) {
  const auto best = std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += std::exp(static_cast<double>(logit) - *best);
  return {.position = position,
          .loss = std::log(sum) + *best - logits[static_cast<size_t>(target)],
          .correct = best - logits.begin() == target};
}

}  // namespace

absl::Status ScoreTokens(const ModelConfig& config, kernels::Backend* backend,
                         const ModelWeights& weights, const MicroBatch& batch, ConstDeviceBuffer x,
                         std::vector<TokenScore>* scores) {
  const int64_t hidden = config.hidden_size;
  const int64_t vocabulary = config.vocab_size;
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const int64_t piece = LossHeadRows(config, *backend, tokens);
  SB_ASSIGN_OR_RETURN(kernels::DeviceTensor normed, backend->AllocateActivations(tokens * hidden));
  SB_ASSIGN_OR_RETURN(kernels::DeviceArray<float> inverse_rms, backend->Allocate<float>(tokens));
  SB_ASSIGN_OR_RETURN(kernels::DeviceTensor logits,
                      backend->AllocateActivations(piece * vocabulary));
  SB_RETURN_IF_ERROR(backend->RmsNormForward({tokens, hidden, config.rms_norm_eps}, x,
                                             weights.final_norm, normed.span(),
                                             inverse_rms.span()));
  std::vector<float> host(static_cast<size_t>(piece * vocabulary));
  for (int64_t begin = 0; begin < tokens; begin += piece) {
    const int64_t rows = std::min(piece, tokens - begin);
    const DeviceBuffer some_logits = logits.span().Slice(0, rows * vocabulary);
    SB_RETURN_IF_ERROR(backend->Matmul(
        {.m = rows, .n = vocabulary, .k = hidden, .transpose_b = true},
        normed.span().Slice(begin * hidden, rows * hidden), weights.output, {}, some_logits));
    SB_RETURN_IF_ERROR(backend->CopyToHost(ConstDeviceBuffer(some_logits), host.data()));
    for (int64_t row = 0; row < rows; ++row) {
      const auto t = static_cast<size_t>(begin + row);
      if (batch.loss_weights[t] == 0) continue;
      scores->push_back(
          Score(std::span<const float>(host).subspan(static_cast<size_t>(row * vocabulary),
                                                     static_cast<size_t>(vocabulary)),
                begin + row, batch.targets[t]));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::model
