#include "worker/model/transformer.h"

#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/dropout_mask.h"
#include "kernels/status_macros.h"
#include "worker/model/layer.h"
#include "worker/model/loss_head.h"

namespace sparsebalance::model {
namespace {

using kernels::DeviceArray;
using kernels::DeviceTensor;
using kernels::Event;
using kernels::EventInterval;

// A micro-batch on the device.
struct DeviceBatch {
  DeviceArray<int32_t> tokens, targets;
  DeviceArray<float> loss_weights;
  DeviceArray<float> rope_table;
  DeviceArray<uint64_t> dropout_keys;  // [tokens]
  std::unique_ptr<kernels::AttentionLayout> layout;
};

// Of each token, from its sequence's key and its position there.
std::vector<uint64_t> TokenDropoutKeys(const MicroBatch& batch) {
  std::vector<uint64_t> keys;
  keys.reserve(batch.tokens.size());
  for (size_t s = 0; s < batch.dropout_keys.size(); ++s) {
    const auto tokens = static_cast<uint64_t>(batch.cu_seqlens[s + 1] - batch.cu_seqlens[s]);
    for (uint64_t position = 0; position < tokens; ++position) {
      keys.push_back(kernels::MixBits(batch.dropout_keys[s] ^ kernels::MixBits(position)));
    }
  }
  return keys;
}

absl::StatusOr<DeviceBatch> Upload(const MicroBatch& batch, const ModelConfig& config,
                                   kernels::Backend* backend) {
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  std::vector<int32_t> positions;
  positions.reserve(batch.tokens.size());
  for (size_t s = 0; s + 1 < batch.cu_seqlens.size(); ++s) {
    for (int64_t t = batch.cu_seqlens[s]; t < batch.cu_seqlens[s + 1]; ++t) {
      positions.push_back(static_cast<int32_t>(t - batch.cu_seqlens[s]));
    }
  }
  DeviceBatch out;
  SB_ASSIGN_OR_RETURN(kernels::PackedBlocks blocks,
                      kernels::MakePackedBlocks(batch.cu_seqlens, config.block_tokens));
  SB_ASSIGN_OR_RETURN(out.layout, backend->CreateLayout(std::move(blocks)));
  SB_ASSIGN_OR_RETURN(out.tokens, backend->Allocate<int32_t>(tokens));
  SB_ASSIGN_OR_RETURN(out.targets, backend->Allocate<int32_t>(tokens));
  SB_ASSIGN_OR_RETURN(out.loss_weights, backend->Allocate<float>(tokens));
  SB_ASSIGN_OR_RETURN(out.rope_table, backend->Allocate<float>(tokens * config.HeadDim()));
  SB_ASSIGN_OR_RETURN(DeviceArray<int32_t> device_positions, backend->Allocate<int32_t>(tokens));
  SB_RETURN_IF_ERROR(backend->CopyToDevice(batch.tokens, out.tokens.span()));
  SB_RETURN_IF_ERROR(backend->CopyToDevice(batch.targets, out.targets.span()));
  SB_RETURN_IF_ERROR(backend->CopyToDevice(batch.loss_weights, out.loss_weights.span()));
  SB_RETURN_IF_ERROR(backend->CopyToDevice(positions, device_positions.span()));
  SB_RETURN_IF_ERROR(backend->RopeTable(config.HeadDim(), config.rope_theta,
                                        device_positions.span(), out.rope_table.span()));
  if (!batch.dropout_keys.empty()) {
    SB_ASSIGN_OR_RETURN(out.dropout_keys, backend->Allocate<uint64_t>(tokens));
    SB_RETURN_IF_ERROR(backend->CopyToDevice(TokenDropoutKeys(batch), out.dropout_keys.span()));
  }
  return out;
}

// Mean coverage over layers, budgets by layer, and the pairs attended.
void FillRoutingReport(const kernels::PackedBlocks& blocks,
                       const std::vector<LayerRouting>& routing,
                       const std::vector<kernels::RoutingFacts>& facts, MicroBatchReport* report) {
  const auto layers = static_cast<double>(routing.size());
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    SequenceReport sequence;
    std::vector<double> mean(facts.front().coverage[s].size(), 0.0);
    double mass = 0;
    for (size_t l = 0; l < routing.size(); ++l) {
      const kernels::RoutingFacts& layer = facts[l];
      std::vector<float>& curve =
          sequence.layer_coverage.emplace_back(layer.coverage[s].begin(), layer.coverage[s].end());
      curve.back() = 1.0F;
      if (!routing[l].attention_mass.empty()) mass += routing[l].attention_mass[s] / layers;
      for (size_t g = 0; g < mean.size(); ++g) mean[g] += layer.coverage[s][g] / layers;
      sequence.realized_budgets.push_back(layer.realized_budgets[s]);
      report->attended_pairs += kernels::AttendedPairs(
          blocks.SequenceTokens(s), blocks.block_tokens, layer.realized_budgets[s]);
    }
    // The full budget covers everything: no rounding there.
    mean.back() = 1.0;
    sequence.coverage.assign(mean.begin(), mean.end());
    if (!routing.front().attention_mass.empty()) sequence.attention_mass = mass;
    report->sequences.push_back(std::move(sequence));
  }
}

// What a report is made of once the device has come so far.
struct PendingPass final : Transformer::Pending {
  kernels::PackedBlocks blocks;
  DeviceArray<double> loss_sum;
  std::vector<LayerRouting> routing;  // of each layer
  LossHeadMarks head_marks;
  std::unique_ptr<Event> begin, layers_done, head_done, end;
  double supervised_tokens = 0;
  bool backward = false;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Transformer>> Transformer::Create(const ModelConfig& config,
                                                                 kernels::Backend* backend,
                                                                 uint64_t seed) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<ParameterStore> store,
                      ParameterStore::Create(config, backend, seed));
  return std::unique_ptr<Transformer>(new Transformer(config, backend, std::move(store)));
}

absl::Status Transformer::ZeroGrads() { return backend_->Fill(store_->grads(), 0.0F); }

absl::StatusOr<MicroBatchReport> Transformer::ForwardBackward(const MicroBatch& batch,
                                                              double loss_scale,
                                                              double coverage_guard,
                                                              const GradsReady& ready) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Pending> pending,
                      Enqueue(batch, loss_scale, coverage_guard, ready));
  return Collect(std::move(pending));
}

absl::StatusOr<std::unique_ptr<Transformer::Pending>> Transformer::Enqueue(
    const MicroBatch& batch, double loss_scale, double coverage_guard, const GradsReady& ready) {
  return Run(batch, loss_scale, coverage_guard, true, ready);
}

absl::StatusOr<MicroBatchReport> Transformer::Loss(const MicroBatch& batch, double coverage_guard) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Pending> pending, Run(batch, 1.0, coverage_guard, false));
  return Collect(std::move(pending));
}

absl::StatusOr<std::vector<float>> Transformer::Logits(const MicroBatch& batch,
                                                       double coverage_guard) {
  std::vector<float> logits;
  SB_RETURN_IF_ERROR(Run(batch, 1.0, coverage_guard, false, nullptr, &logits).status());
  return logits;
}

absl::StatusOr<std::vector<TokenScore>> Transformer::Scores(const MicroBatch& batch,
                                                            double coverage_guard) {
  std::vector<TokenScore> scores;
  SB_RETURN_IF_ERROR(Run(batch, 1.0, coverage_guard, false, nullptr, nullptr, &scores).status());
  return scores;
}

absl::StatusOr<std::unique_ptr<Transformer::Pending>> Transformer::Run(
    const MicroBatch& batch, double loss_scale, double coverage_guard, bool backward,
    const GradsReady& ready, std::vector<float>* logits, std::vector<TokenScore>* scores) {
  SB_RETURN_IF_ERROR(batch.Validate(config_));
  if (!std::isfinite(loss_scale) || !(coverage_guard >= 0 && coverage_guard <= 1)) {
    return absl::InvalidArgumentError(absl::StrCat("loss scale ", loss_scale,
                                                   " must be finite and coverage guard ",
                                                   coverage_guard, " within [0, 1]"));
  }
  if (backward && batch.dropout_keys.empty() && config_.Drops()) {
    return absl::InvalidArgumentError("a model with dropout is trained with a key a sequence");
  }
  const auto tokens = static_cast<int64_t>(batch.tokens.size());
  const int64_t width = config_.hidden_size;
  SB_RETURN_IF_ERROR(store_->RefreshCompute());
  const ModelWeights& weights = store_->compute_views();
  const ModelWeights& weight_grads = store_->grad_views();

  auto pending = std::make_unique<PendingPass>();
  pending->backward = backward;
  for (const float w : batch.loss_weights) pending->supervised_tokens += w;
  SB_ASSIGN_OR_RETURN(pending->begin, backend_->RecordEvent());
  SB_ASSIGN_OR_RETURN(DeviceBatch device, Upload(batch, config_, backend_));
  SB_ASSIGN_OR_RETURN(pending->loss_sum, backend_->Allocate<double>(1));
  SB_RETURN_IF_ERROR(backend_->FillZero(pending->loss_sum.span()));
  const PassContext context{config_,
                            backend_,
                            *device.layout,
                            device.rope_table.span(),
                            batch.base_budgets,
                            coverage_guard,
                            device.dropout_keys.span()};
  const Dropout embedding_dropout = EmbeddingDropout(context);

  const size_t layers = weights.layers.size();
  std::vector<DeviceTensor> inputs(layers + 1);  // of each layer; then the last one's output
  std::vector<LayerActivations> saved(layers);
  std::vector<LayerRouting>& routing = pending->routing;
  routing.resize(layers);
  SB_ASSIGN_OR_RETURN(inputs[0], backend_->AllocateActivations(tokens * width));
  SB_RETURN_IF_ERROR(
      backend_->EmbeddingForward(width, device.tokens.span(), weights.embedding, inputs[0].span()));
  SB_RETURN_IF_ERROR(DropInPlace(backend_, embedding_dropout, tokens, width, inputs[0].span()));
  for (size_t l = 0; l < layers; ++l) {
    SB_ASSIGN_OR_RETURN(inputs[l + 1], backend_->AllocateActivations(tokens * width));
    routing[l].planned_budgets = batch.LayerBudgets(l, layers);
    routing[l].audit_queries = batch.audit_queries;
    SB_RETURN_IF_ERROR(LayerForward(context, static_cast<int>(l), weights.layers[l],
                                    inputs[l].span(), inputs[l + 1].span(), &saved[l],
                                    &routing[l]));
    if (!backward) {
      inputs[l] = {};
      saved[l] = {};
    } else if (config_.activation_checkpointing) {
      saved[l] = LayerActivations{.lists = std::move(saved[l].lists)};
    }
  }
  SB_ASSIGN_OR_RETURN(pending->layers_done, backend_->RecordEvent());

  DeviceTensor grad;
  if (backward) {
    SB_ASSIGN_OR_RETURN(grad, backend_->AllocateActivations(tokens * width));
  }
  SB_RETURN_IF_ERROR(RunLossHead(config_, backend_, weights, weight_grads,
                                 {inputs[layers].span(), device.targets.span(),
                                  device.loss_weights.span(), tokens, loss_scale, logits},
                                 grad.span(), pending->loss_sum.span(), &pending->head_marks));
  if (scores != nullptr) {
    SB_RETURN_IF_ERROR(
        ScoreTokens(config_, backend_, weights, batch, inputs[layers].span(), scores));
  }
  inputs[layers] = {};
  SB_ASSIGN_OR_RETURN(pending->head_done, backend_->RecordEvent());

  const std::vector<int64_t>& bounds = store_->grad_bounds();
  const auto part_is_ready = [&](size_t part) {
    return ready == nullptr ? absl::OkStatus() : ready(bounds[part], bounds[part + 1]);
  };
  if (backward) {
    SB_RETURN_IF_ERROR(part_is_ready(layers + 1));
    for (size_t l = layers; l-- > 0;) {
      if (config_.activation_checkpointing) {
        SB_RETURN_IF_ERROR(LayerForward(context, static_cast<int>(l), weights.layers[l],
                                        inputs[l].span(), {}, &saved[l], /*routing=*/nullptr));
      }
      SB_RETURN_IF_ERROR(LayerBackward(context, static_cast<int>(l), weights.layers[l],
                                       weight_grads.layers[l], inputs[l].span(),
                                       std::move(saved[l]), grad.span()));
      inputs[l] = {};
      SB_RETURN_IF_ERROR(part_is_ready(l + 1));
    }
    if (!weight_grads.embedding.empty()) {
      SB_RETURN_IF_ERROR(DropInPlace(backend_, embedding_dropout, tokens, width, grad.span()));
      SB_RETURN_IF_ERROR(backend_->EmbeddingBackward(width, device.tokens.span(), grad.span(),
                                                     weight_grads.embedding));
    }
    SB_RETURN_IF_ERROR(part_is_ready(0));
  }
  SB_ASSIGN_OR_RETURN(pending->end, backend_->RecordEvent());
  pending->blocks = device.layout->blocks();
  return std::unique_ptr<Pending>(std::move(pending));
}

absl::StatusOr<MicroBatchReport> Transformer::Collect(std::unique_ptr<Pending> enqueued) {
  const auto* pending = static_cast<const PendingPass*>(enqueued.get());
  MicroBatchReport report;
  report.supervised_tokens = pending->supervised_tokens;
  SB_RETURN_IF_ERROR(backend_->CopyToHost(pending->loss_sum.span(), &report.loss_sum));
  SB_ASSIGN_OR_RETURN(const LossHeadTimes head_times, TimesOf(backend_, pending->head_marks));
  SB_ASSIGN_OR_RETURN(const EventInterval forward,
                      backend_->Elapsed(*pending->begin, *pending->layers_done));
  report.forward_seconds = forward.seconds + head_times.forward.seconds;
  report.forward_cpu_seconds = forward.cpu_seconds + head_times.forward.cpu_seconds;
  // Audits are no part of a step as the latency model knows it.
  std::vector<kernels::RoutingFacts> facts;
  for (const LayerRouting& layer : pending->routing) {
    SB_ASSIGN_OR_RETURN(facts.emplace_back(), layer.facts->Read());
    if (layer.audit_begin == nullptr) continue;
    SB_ASSIGN_OR_RETURN(const EventInterval audit,
                        backend_->Elapsed(*layer.audit_begin, *layer.audit_end));
    report.audit_seconds += audit.seconds;
    report.forward_seconds -= audit.seconds;
    report.forward_cpu_seconds -= audit.cpu_seconds;
  }
  if (pending->backward) {
    SB_ASSIGN_OR_RETURN(const EventInterval back,
                        backend_->Elapsed(*pending->head_done, *pending->end));
    report.backward_seconds = back.seconds + head_times.backward.seconds;
    report.backward_cpu_seconds = back.cpu_seconds + head_times.backward.cpu_seconds;
  }
  FillRoutingReport(pending->blocks, pending->routing, facts, &report);
  return report;
}

}  // namespace sparsebalance::model
