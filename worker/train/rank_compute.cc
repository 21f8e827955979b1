#include "worker/train/rank_compute.h"

#include <algorithm>
#include <functional>
#include <map>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/create_backend.h"
#include "kernels/dropout_mask.h"
#include "kernels/packed_blocks.h"
#include "kernels/status_macros.h"
#include "worker/gpu_info/peak_flops.h"
#include "worker/model/useful_flops.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/peft_adapter.h"
#include "worker/train/device_choice.h"
#include "worker/train/file_util.h"

namespace sparsebalance {
namespace {

// What the filler of an explicit zero-weight micro-batch runs on: one token that counts for
// nothing.
model::MicroBatch Filler() {
  model::MicroBatch batch;
  batch.tokens = {0};
  batch.targets = {0};
  batch.loss_weights = {0};
  batch.cu_seqlens = {0, 1};
  batch.budgets = {1};
  batch.base_budgets = {1};
  return batch;
}

// Mean over layers of each layer's curve at the budget that it used.
double RealizedCoverage(int64_t blocks, const model::SequenceReport& report) {
  double sum = 0;
  for (size_t l = 0; l < report.realized_budgets.size(); ++l) {
    const std::vector<double> curve(report.layer_coverage[l].begin(),
                                    report.layer_coverage[l].end());
    sum += kernels::InterpolateCoverage(blocks, curve, report.realized_budgets[l]);
  }
  return report.realized_budgets.empty()
             ? 1.0
             : sum / static_cast<double>(report.realized_budgets.size());
}

void FillCurve(int64_t blocks, const std::vector<float>& coverage, v1::CoverageCurve& out) {
  const std::vector<int64_t> grid = kernels::CoverageGrid(blocks);
  for (size_t i = 0; i < grid.size() && i < coverage.size(); ++i) {
    out.add_budget_blocks(static_cast<uint32_t>(grid[i]));
    out.add_coverage(coverage[i]);
  }
}

void FillSequence(const v1::Slice& slice, int64_t blocks, const model::SequenceReport& report,
                  bool by_layer, v1::SequenceTelemetry& out) {
  out.set_sequence_id(slice.sequence_id());
  out.set_tokens(slice.token_end() - slice.token_begin());
  out.set_planned_budget_blocks(slice.budget_blocks());
  for (const int32_t budget : report.realized_budgets) {
    out.add_realized_budget_blocks(static_cast<uint32_t>(budget));
  }
  FillCurve(blocks, report.coverage, *out.mutable_coverage());
  if (!by_layer) return;
  for (const std::vector<float>& layer : report.layer_coverage) {
    FillCurve(blocks, layer, *out.add_layer_coverage());
  }
}

double PeakFlops(const TrainOptions& options, const kernels::Backend& backend,
                 kernels::ElementType type) {
  if (options.peak_tflops > 0) return options.peak_tflops * 1e12;
  if (type != kernels::ElementType::kBfloat16) return 0;
  return PeakBf16Flops(backend.device_name()).value_or(0);
}

// Whether the guard gave sequence `index` more than planned in some layer.
bool Raised(int32_t budget, const std::vector<int32_t>& layer_budgets, size_t index, int64_t blocks,
            const model::SequenceReport& report) {
  const size_t layers = report.realized_budgets.size();
  for (size_t layer = 0; layer < layers; ++layer) {
    const int64_t planned = layer_budgets.empty() ? budget : layer_budgets[index * layers + layer];
    if (report.realized_budgets[layer] > std::min(planned, blocks)) return true;
  }
  return false;
}

model::AdamWOptions AdamWOptionsOf(const TrainOptions& options) {
  const OptimizerOptions& optimizer = options.optimizer;
  return {.beta1 = static_cast<float>(optimizer.beta1),
          .beta2 = static_cast<float>(optimizer.beta2),
          .epsilon = static_cast<float>(optimizer.epsilon),
          .weight_decay = static_cast<float>(optimizer.weight_decay),
          .weight_decay_groups = optimizer.weight_decay_groups};
}

}  // namespace

absl::StatusOr<std::unique_ptr<RankCompute>> RankCompute::Create(
    const TrainOptions& options, const data::IndexedDataset* dataset, int device) {
  std::unique_ptr<RankCompute> compute(new RankCompute(options, dataset));
  SB_ASSIGN_OR_RETURN(const kernels::BackendChoice choice, kernels::ChooseBackend(options.backend));
  SB_ASSIGN_OR_RETURN(const kernels::ElementType type,
                      ChoosePrecision(options.precision, choice.name));
  SB_ASSIGN_OR_RETURN(
      compute->backend_,
      kernels::CreateBackend(choice.name, {.threads = options.threads_per_rank,
                                           .device = device,
                                           .memory_limit_bytes = options.memory_limit_bytes,
                                           .activation_type = type}));
  compute->peak_flops_ = PeakFlops(options, *compute->backend_, type);
  SB_ASSIGN_OR_RETURN(compute->model_, model::Transformer::Create(
                                           options.model, compute->backend_.get(), options.seed));
  SB_ASSIGN_OR_RETURN(compute->optimizer_,
                      model::AdamW::Create(AdamWOptionsOf(options), compute->model_->store(),
                                           compute->backend_.get()));
  return compute;
}

absl::Status RankCompute::Connect(Communicator* comm) {
  if (comm->size() == 1) return absl::OkStatus();
  SB_ASSIGN_OR_RETURN(reducer_, GradientReducer::Create(comm, backend_.get(), model_->grads()));
  return absl::OkStatus();
}

absl::StatusOr<model::MicroBatch> RankCompute::BuildMicroBatch(const v1::MicroBatch& planned,
                                                               uint64_t step) const {
  model::MicroBatch batch;
  if (planned.slices().empty()) {
    batch = Filler();
    if (options_.model.Drops()) batch.dropout_keys = {0};
    return batch;
  }
  // The same on any rank and in any micro-batch; another one in the next epoch.
  const uint64_t step_key = kernels::MixBits(options_.seed ^ kernels::MixBits(step));
  batch.cu_seqlens.push_back(0);
  const uint32_t base = options_.plan.base_budget_blocks();
  const bool by_layer =
      std::any_of(planned.slices().begin(), planned.slices().end(),
                  [](const v1::Slice& slice) { return slice.layer_budget_blocks_size() > 0; });
  for (const v1::Slice& slice : planned.slices()) {
    SB_ASSIGN_OR_RETURN(const data::TrainingExample example,
                        dataset_->MakeTrainingExample(slice.sequence_id()));
    batch.tokens.insert(batch.tokens.end(), example.tokens.begin(), example.tokens.end());
    batch.targets.insert(batch.targets.end(), example.targets.begin(), example.targets.end());
    batch.loss_weights.insert(batch.loss_weights.end(), example.loss_weights.begin(),
                              example.loss_weights.end());
    batch.cu_seqlens.push_back(static_cast<int64_t>(batch.tokens.size()));
    batch.budgets.push_back(static_cast<int32_t>(slice.budget_blocks()));
    batch.base_budgets.push_back(static_cast<int32_t>(base));
    if (options_.model.Drops()) {
      batch.dropout_keys.push_back(kernels::MixBits(step_key ^ slice.sequence_id()));
    }
    if (!by_layer) continue;
    const int layers = options_.model.num_layers;
    if (slice.layer_budget_blocks_size() != 0 && slice.layer_budget_blocks_size() != layers) {
      return absl::InvalidArgumentError(
          absl::StrCat("the plan has budgets of ", slice.layer_budget_blocks_size(),
                       " layers for sequence ", slice.sequence_id(), ", the model has ", layers));
    }
    for (int l = 0; l < layers; ++l) {
      batch.layer_budgets.push_back(static_cast<int32_t>(slice.layer_budget_blocks_size() == 0
                                                             ? slice.budget_blocks()
                                                             : slice.layer_budget_blocks(l)));
    }
  }
  return batch;
}

absl::Status RankCompute::Run(const v1::RankPlan& plan, uint64_t step,
                              uint64_t global_supervised_tokens, bool audit,
                              v1::RankTelemetry& telemetry, RankStepStats& stats) {
  SB_RETURN_IF_ERROR(model_->ZeroGrads());
  backend_->ResetPeakMemory();
  // A batch without a supervised token has no loss to divide.
  const double loss_scale =
      global_supervised_tokens > 0 ? 1.0 / static_cast<double>(global_supervised_tokens) : 0.0;
  const model::Transformer::GradsReady mark_ready = [this](int64_t begin, int64_t end) {
    return reducer_->MarkReady(begin, end);
  };
  // Micro-batches run one behind the other on the device; only then it is waited for.
  struct Enqueued {
    std::vector<int64_t> cu_seqlens;
    std::vector<int32_t> budgets;        // [S]
    std::vector<int32_t> layer_budgets;  // [S, layers], or empty
    std::unique_ptr<model::Transformer::Pending> pending;
  };
  std::vector<Enqueued> enqueued;
  const bool reduces = reducer_ != nullptr;
  if (reduces && plan.micro_batches().empty()) SB_RETURN_IF_ERROR(reducer_->Begin());
  for (int m = 0; m < plan.micro_batches_size(); ++m) {
    const v1::MicroBatch& planned = plan.micro_batches(m);
    SB_ASSIGN_OR_RETURN(model::MicroBatch batch, BuildMicroBatch(planned, step));
    if (audit) batch.audit_queries = options_.audit_queries;
    // Only the last one's backward pass leaves gradients that are final.
    const bool last = reduces && m + 1 == plan.micro_batches_size();
    if (last) SB_RETURN_IF_ERROR(reducer_->Begin());
    SB_ASSIGN_OR_RETURN(std::unique_ptr<model::Transformer::Pending> pending,
                        model_->Enqueue(batch, loss_scale, options_.plan.coverage_guard(),
                                        last ? mark_ready : model::Transformer::GradsReady()));
    enqueued.push_back({std::move(batch.cu_seqlens), std::move(batch.budgets),
                        std::move(batch.layer_budgets), std::move(pending)});
  }
  SB_ASSIGN_OR_RETURN(computed_, backend_->RecordEvent());

  for (int m = 0; m < plan.micro_batches_size(); ++m) {
    const v1::MicroBatch& planned = plan.micro_batches(m);
    const Enqueued& given = enqueued[static_cast<size_t>(m)];
    const std::vector<int64_t>& cu_seqlens = given.cu_seqlens;
    SB_ASSIGN_OR_RETURN(const model::MicroBatchReport report,
                        model_->Collect(std::move(enqueued[static_cast<size_t>(m)].pending)));
    v1::MicroBatchTelemetry& out = *telemetry.add_micro_batches();
    out.set_index(static_cast<uint32_t>(m));
    out.set_forward_ms(report.forward_seconds * 1e3);
    out.set_backward_ms(report.backward_seconds * 1e3);
    out.set_forward_cpu_ms(report.forward_cpu_seconds * 1e3);
    out.set_backward_cpu_ms(report.backward_cpu_seconds * 1e3);
    stats.compute_ms += (report.forward_seconds + report.backward_seconds) * 1e3;
    if (!planned.slices().empty()) {
      stats.attended_flops += model::UsefulFlops(
          options_.model, static_cast<double>(cu_seqlens.back()), report.attended_pairs);
    }
    stats.loss_sum += report.loss_sum;
    stats.supervised_tokens += report.supervised_tokens;
    for (int s = 0; s < planned.slices_size(); ++s) {
      const auto index = static_cast<size_t>(s);
      const int64_t tokens = cu_seqlens[index + 1] - cu_seqlens[index];
      const int64_t blocks =
          (tokens + options_.model.block_tokens - 1) / options_.model.block_tokens;
      const model::SequenceReport& sequence = report.sequences[index];
      v1::SequenceTelemetry& measured = *out.add_sequences();
      FillSequence(planned.slices(s), blocks, sequence, options_.plan.layer_budgets(), measured);
      const double coverage = RealizedCoverage(blocks, sequence);
      stats.tokens += static_cast<double>(tokens);
      stats.sequences += 1;
      stats.coverage_sum += coverage;
      if (Raised(given.budgets[index], given.layer_budgets, index, blocks, sequence)) {
        stats.guard_raises += 1;
      }
      // One block has no past: nothing was chosen, there is nothing to audit.
      if (!sequence.attention_mass.has_value() || blocks < 2) continue;
      measured.set_attention_mass(*sequence.attention_mass);
      measured.set_realized_coverage(coverage);
      stats.audited_sequences += 1;
      stats.audited_mass_sum += *sequence.attention_mass;
      stats.audited_coverage_sum += coverage;
    }
  }
  stats.peak_flops = peak_flops_;
  stats.peak_memory_bytes = static_cast<double>(backend_->memory().peak_bytes);
  telemetry.set_loss_sum(stats.loss_sum);
  telemetry.set_supervised_tokens(static_cast<uint64_t>(stats.supervised_tokens));
  telemetry.set_tokens(static_cast<uint64_t>(stats.tokens));
  return absl::OkStatus();
}

absl::Status RankCompute::ReduceGradients(RankStepStats& stats) {
  if (reducer_ != nullptr) SB_RETURN_IF_ERROR(reducer_->Finish());
  SB_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Event> reduced, backend_->RecordEvent());
  SB_ASSIGN_OR_RETURN(const kernels::EventInterval exposed,
                      backend_->Elapsed(*computed_, *reduced));
  stats.idle_ms = exposed.seconds * 1e3;
  return absl::OkStatus();
}

absl::StatusOr<double> RankCompute::GradientNorm() { return optimizer_->GradNorm(); }

absl::Status RankCompute::Update(double learning_rate, double gradient_scale) {
  SB_RETURN_IF_ERROR(optimizer_->Step(learning_rate, gradient_scale));
  return backend_->Synchronize();
}

std::vector<TensorView> RankCompute::Views(const std::vector<float>& arena,
                                           const std::string& suffix) const {
  std::vector<TensorView> views;
  const int64_t begin = model_->store()->trainable_begin();
  for (const model::Parameter& parameter : model_->parameters()) {
    if (!parameter.trainable()) continue;
    views.push_back({parameter.name + suffix, parameter.shape,
                     std::span<const float>(arena.data() + (parameter.arena_offset - begin),
                                            static_cast<size_t>(parameter.value.size()))});
  }
  return views;
}

absl::StatusOr<std::vector<TensorView>> RankCompute::ModelTensors() {
  SB_RETURN_IF_ERROR(backend_->Synchronize());
  const kernels::ConstDeviceBuffer values = model_->store()->trainable_values();
  host_model_.resize(static_cast<size_t>(values.size()));
  SB_RETURN_IF_ERROR(backend_->CopyToHost(values, host_model_.data()));
  return Views(host_model_, "");
}

absl::StatusOr<std::vector<TensorView>> RankCompute::OptimizerTensors() {
  SB_ASSIGN_OR_RETURN(host_optimizer_, optimizer_->ExportState());
  std::vector<TensorView> views = Views(host_optimizer_.m, ".m");
  const std::vector<TensorView> second = Views(host_optimizer_.v, ".v");
  views.insert(views.end(), second.begin(), second.end());
  return views;
}

absl::Status RankCompute::Restore(const TensorFile& model, const TensorFile& optimizer,
                                  uint64_t optimizer_steps) {
  const int64_t begin = model_->store()->trainable_begin();
  const auto size = static_cast<size_t>(model_->store()->trainable_values().size());
  std::vector<float> values(size, 0.0f);
  model::AdamWState state;
  state.step = static_cast<int64_t>(optimizer_steps);
  state.m.assign(size, 0.0f);
  state.v.assign(size, 0.0f);
  for (const model::Parameter& parameter : model_->parameters()) {
    if (!parameter.trainable()) continue;
    const auto place = [&](const TensorFile& file, const std::string& name,
                           std::vector<float>& arena) -> absl::Status {
      SB_ASSIGN_OR_RETURN(const std::span<const float> data, file.Get(name, parameter.shape));
      std::copy(data.begin(), data.end(), arena.begin() + (parameter.arena_offset - begin));
      return absl::OkStatus();
    };
    SB_RETURN_IF_ERROR(place(model, parameter.name, values));
    SB_RETURN_IF_ERROR(place(optimizer, parameter.name + ".m", state.m));
    SB_RETURN_IF_ERROR(place(optimizer, parameter.name + ".v", state.v));
  }
  SB_RETURN_IF_ERROR(model_->store()->Write(begin, values));
  return optimizer_->ImportState(state);
}

absl::Status RankCompute::InitFrom(const std::string& folder) {
  SB_ASSIGN_OR_RETURN(const model_io::HfWeights weights, model_io::HfWeights::Open(folder));
  // Whoever starts the ranks has logged what is passed over.
  SB_RETURN_IF_ERROR(weights.CheckFits(options_.model, [](const std::string&) {}));
  return weights.Load(backend_.get(), model_->store());
}

absl::Status RankCompute::InitAdaptersFrom(const std::string& folder) {
  SB_ASSIGN_OR_RETURN(
      const model_io::HfWeights weights,
      model_io::HfWeights::OpenFile(absl::StrCat(folder, "/", model_io::kAdapterWeightsFile)));
  SB_ASSIGN_OR_RETURN(const model_io::TensorSource adapters,
                      model_io::AdapterSourceOf(weights, options_.model, model_io::kPeftPrefix));
  return model_io::LoadAdapters(adapters, backend_.get(), model_->store());
}

absl::Status RankCompute::Export(const std::string& folder, model_io::ElementType type) {
  SB_RETURN_IF_ERROR(backend_->Synchronize());
  const model::ParameterStore& store = *model_->store();
  if (options_.model.lora.enabled()) {
    return model_io::SaveAdapter(folder, {options_.model.lora, AbsolutePath(options_.init_from)},
                                 model_io::SourceOf(backend_.get(), store.adapter_parameters()),
                                 type);
  }
  return model_io::SaveModel(folder, options_.model,
                             model_io::SourceOf(backend_.get(), store.base_parameters()),
                             {.type = type, .companions_from = options_.init_from});
}

absl::StatusOr<uint64_t> RankCompute::ModelFingerprint() {
  return model_io::Fingerprint(model_io::SourceOf(backend_.get(), model_->parameters()));
}

absl::StatusOr<uint64_t> RankCompute::BaseFingerprint() {
  return model_io::Fingerprint(
      model_io::SourceOf(backend_.get(), model_->store()->base_parameters()));
}

absl::StatusOr<std::string> RankCompute::DescribeTraining() const {
  const model::ParameterStore& store = *model_->store();
  SB_ASSIGN_OR_RETURN(const std::vector<float> decays,
                      model::WeightDecays(AdamWOptionsOf(options_), store));
  struct Total {
    int64_t tensors = 0, elements = 0;
  };
  std::map<float, Total, std::greater<>> by_decay;
  int64_t all = 0;
  int64_t trained = 0;
  for (size_t i = 0; i < decays.size(); ++i) {
    const model::Parameter& parameter = store.parameters()[i];
    all += parameter.value.size();
    if (!parameter.trainable()) continue;
    trained += parameter.value.size();
    Total& total = by_decay[decays[i]];
    total.tensors += 1;
    total.elements += parameter.value.size();
  }
  std::string out = absl::StrCat("training ", trained);
  const model::LoraConfig& lora = options_.model.lora;
  if (lora.enabled()) {
    absl::StrAppend(&out, " parameters in adapters of rank ", lora.rank, " on ",
                    model::ProjectionsText(lora.targets), "; the ", all - trained,
                    " of the model are frozen");
  } else {
    absl::StrAppend(&out, " parameters");
  }
  for (const auto& [decay, total] : by_decay) {
    absl::StrAppend(&out, by_decay.begin()->first == decay ? "; weight decay " : ", ", decay,
                    " on ", total.tensors, total.tensors == 1 ? " tensor" : " tensors");
  }
  return out;
}

absl::StatusOr<RankCompute::Timing> RankCompute::Measure(uint64_t tokens, uint32_t budget_blocks) {
  model::MicroBatch batch;
  // Any tokens do: time does not depend on them. These are spread over the vocabulary.
  for (uint64_t t = 0; t < tokens; ++t) {
    batch.tokens.push_back(
        static_cast<int32_t>(t * 2654435761u % static_cast<uint64_t>(options_.model.vocab_size)));
  }
  batch.targets = batch.tokens;
  batch.loss_weights.assign(tokens, 1.0f);
  batch.cu_seqlens = {0, static_cast<int64_t>(tokens)};
  batch.budgets = {static_cast<int32_t>(budget_blocks)};
  if (options_.model.Drops()) batch.dropout_keys = {0};
  batch.base_budgets = batch.budgets;  // the guard leaves the budget as it is
  SB_RETURN_IF_ERROR(model_->ZeroGrads());
  SB_ASSIGN_OR_RETURN(const model::MicroBatchReport report,
                      model_->ForwardBackward(batch, 1.0 / static_cast<double>(tokens), 1.0));
  return Timing{.forward_ms = report.forward_seconds * 1e3,
                .backward_ms = report.backward_seconds * 1e3};
}

}  // namespace sparsebalance
