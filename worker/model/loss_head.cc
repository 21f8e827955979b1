#include "worker/model/loss_head.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "kernels/status_macros.h"

namespace sparsebalance::model {
namespace {

using kernels::DeviceArray;
using kernels::DeviceTensor;
using kernels::Event;

void AddInterval(const kernels::EventInterval& from, kernels::EventInterval* to) {
  to->seconds += from.seconds;
  to->cpu_seconds += from.cpu_seconds;
}

}  // namespace

int64_t LossHeadRows(const ModelConfig& config, const kernels::Backend& backend, int64_t tokens) {
  return std::clamp<int64_t>(backend.WorkingElements() / config.vocab_size, 1, tokens);
}

absl::StatusOr<LossHeadTimes> TimesOf(kernels::Backend* backend, const LossHeadMarks& marks) {
  LossHeadTimes times;
  for (size_t i = 0; i + 1 < marks.size(); ++i) {
    SB_ASSIGN_OR_RETURN(const kernels::EventInterval interval,
                        backend->Elapsed(*marks[i], *marks[i + 1]));
    AddInterval(interval, i % 2 == 0 ? &times.forward : &times.backward);
  }
  return times;
}

absl::Status RunLossHead(const ModelConfig& config, kernels::Backend* backend,
                         const ModelWeights& weights, const ModelWeights& weight_grads,
                         const LossHeadInput& input, DeviceBuffer x_grad,
                         kernels::DeviceSpan<double> loss_sum, LossHeadMarks* marks) {
  const int64_t hidden = config.hidden_size;
  const int64_t vocabulary = config.vocab_size;
  const int64_t tokens = input.tokens;
  const int64_t piece = LossHeadRows(config, *backend, tokens);
  const kernels::NormShape norm_shape{tokens, hidden, config.rms_norm_eps};
  const bool backward = !x_grad.empty();

  const auto mark = [&]() -> absl::Status {
    SB_ASSIGN_OR_RETURN(std::unique_ptr<Event> event, backend->RecordEvent());
    marks->push_back(std::move(event));
    return absl::OkStatus();
  };

  SB_RETURN_IF_ERROR(mark());
  SB_ASSIGN_OR_RETURN(DeviceTensor normed, backend->AllocateActivations(tokens * hidden));
  SB_ASSIGN_OR_RETURN(DeviceArray<float> inverse_rms, backend->Allocate<float>(tokens));
  SB_ASSIGN_OR_RETURN(DeviceTensor logits, backend->AllocateActivations(piece * vocabulary));
  SB_ASSIGN_OR_RETURN(DeviceTensor normed_grad,
                      backend->AllocateActivations(backward ? tokens * hidden : 0));
  SB_RETURN_IF_ERROR(backend->RmsNormForward(norm_shape, input.x, weights.final_norm, normed.span(),
                                             inverse_rms.span()));
  for (int64_t begin = 0; begin < tokens; begin += piece) {
    const int64_t rows = std::min(piece, tokens - begin);
    const DeviceBuffer some_logits = logits.span().Slice(0, rows * vocabulary);
    const DeviceBuffer some_normed = normed.span().Slice(begin * hidden, rows * hidden);
    if (begin > 0) SB_RETURN_IF_ERROR(mark());
    SB_RETURN_IF_ERROR(
        backend->Matmul({.m = rows, .n = vocabulary, .k = hidden, .transpose_b = true}, some_normed,
                        weights.output, {}, some_logits));
    SB_RETURN_IF_ERROR(backend->CrossEntropy(
        {rows, vocabulary, input.loss_scale}, some_logits, input.targets.Slice(begin, rows),
        input.loss_weights.Slice(begin, rows), backward ? some_logits : DeviceBuffer(), loss_sum));
    SB_RETURN_IF_ERROR(mark());
    if (!backward && input.logits != nullptr) {
      input.logits->resize(static_cast<size_t>((begin + rows) * vocabulary));
      SB_RETURN_IF_ERROR(backend->CopyToHost(kernels::ConstDeviceBuffer(some_logits),
                                             input.logits->data() + begin * vocabulary));
    }
    if (!backward) continue;
    if (!weight_grads.output.empty()) {
      SB_RETURN_IF_ERROR(backend->Matmul(
          {.m = vocabulary, .n = hidden, .k = rows, .transpose_a = true, .accumulate = true},
          some_logits, some_normed, {}, weight_grads.output));
    }
    SB_RETURN_IF_ERROR(backend->Matmul({.m = rows, .n = hidden, .k = vocabulary}, some_logits,
                                       weights.output, {},
                                       normed_grad.span().Slice(begin * hidden, rows * hidden)));
  }
  if (backward) {
    SB_RETURN_IF_ERROR(backend->Fill(x_grad, 0.0F));
    SB_RETURN_IF_ERROR(backend->RmsNormBackward(norm_shape, input.x, weights.final_norm,
                                                inverse_rms.span(), normed_grad.span(), x_grad,
                                                weight_grads.final_norm));
  }
  return mark();
}

}  // namespace sparsebalance::model
