#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "worker/model/config.h"
#include "worker/model/parameters.h"

namespace sparsebalance::model {

// Final norm, output projection and cross-entropy of a micro-batch.
struct LossHeadInput {
  ConstDeviceBuffer x;  // [tokens, hidden], output of the last layer
  kernels::DeviceSpan<const int32_t> targets;
  ConstDeviceBuffer loss_weights;
  int64_t tokens;
  double loss_scale;
  // Gets all logits, [tokens, vocabulary], where not null; only without a backward pass, which
  // writes gradients in their place.
  std::vector<float>* logits = nullptr;
};

// Events of one pass: the begin of a forward part, the begin of a backward part, and so on in turn;
// the last is the end.
using LossHeadMarks = std::vector<std::unique_ptr<kernels::Event>>;
struct LossHeadTimes {
  kernels::EventInterval forward, backward;
};
// Waits for the device.
absl::StatusOr<LossHeadTimes> TimesOf(kernels::Backend* backend, const LossHeadMarks& marks);

// Rows whose logits exist at a time.
int64_t LossHeadRows(const ModelConfig& config, const kernels::Backend& backend, int64_t tokens);

// Adds the loss to loss_sum[0]. Where x_grad [tokens, hidden] is not empty, writes the gradient of
// x to it and adds to the gradients of the final norm and the output matrix as far as they are
// trained. Logits exist only for
// a few rows at a time, so each piece of rows goes forward and backward before the next.
absl::Status RunLossHead(const ModelConfig& config, kernels::Backend* backend,
                         const ModelWeights& weights, const ModelWeights& weight_grads,
                         const LossHeadInput& input, DeviceBuffer x_grad,
                         kernels::DeviceSpan<double> loss_sum, LossHeadMarks* marks);

}  // namespace sparsebalance::model
