// A whole training step (forward, backward, update) on one thread, as useful floating-point
// operations a second: matrix products of the layers and attended pairs only, nothing recomputed.
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>

#include "benchmark/benchmark.h"
#include "kernels/backend.h"
#include "kernels/create_backend.h"
#include "kernels/packed_blocks.h"
#include "worker/model/adamw.h"
#include "worker/model/transformer.h"
#include "worker/model/useful_flops.h"

namespace sparsebalance::model {
namespace {

void TrainingStep(benchmark::State& state, const ModelConfig& config, int32_t budget) {
  const int64_t tokens = state.range(0);
  auto backend = *kernels::CreateBackend("cpu");
  auto model = *Transformer::Create(config, backend.get(), 1);
  auto optimizer = *AdamW::Create({}, model->store(), backend.get());
  MicroBatch batch;
  for (int64_t t = 0; t < tokens; ++t) {
    batch.tokens.push_back(static_cast<int32_t>(t * 7919 % config.vocab_size));
    batch.targets.push_back(static_cast<int32_t>((t + 1) * 7919 % config.vocab_size));
    batch.loss_weights.push_back(1.0F);
  }
  batch.cu_seqlens = {0, tokens};
  batch.budgets = {budget};
  batch.base_budgets = {budget};
  if (config.Drops()) batch.dropout_keys = {1};
  double pairs = 0;
  double forward = 0;
  while (state.KeepRunning()) {
    const absl::Status zeroed = model->ZeroGrads();
    const auto report = model->ForwardBackward(batch, 1.0 / static_cast<double>(tokens), 0.1);
    if (!zeroed.ok() || !report.ok() || !optimizer->Step(1e-3, 1.0).ok()) std::abort();
    pairs = report->attended_pairs;
    forward = report->forward_seconds / (report->forward_seconds + report->backward_seconds);
  }
  state.counters["flops"] =
      benchmark::Counter(UsefulFlops(config, static_cast<double>(tokens), pairs),
                         benchmark::Counter::kIsIterationInvariantRate);
  state.counters["tokens"] = benchmark::Counter(static_cast<double>(tokens),
                                                benchmark::Counter::kIsIterationInvariantRate);
  state.counters["forward_share"] = forward;
  state.counters["trained"] = static_cast<double>(model->grads().size());
  state.counters["peak_MiB"] = static_cast<double>(backend->memory().peak_bytes) / 1048576.0;
}

// 4 layers of width 128, blocks of 64.
void Width128(benchmark::State& state) { TrainingStep(state, ModelConfig(), 8); }

// 4 layers of width 256, blocks of 128.
ModelConfig Wide() {
  ModelConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.block_tokens = 128;
  return config;
}
void Width256(benchmark::State& state) { TrainingStep(state, Wide(), 8); }

// The same with adapters of rank 16 on every projection, which alone are trained.
void Width256Adapters(benchmark::State& state) {
  ModelConfig config = Wide();
  config.lora.rank = 16;
  config.lora.targets.set();
  TrainingStep(state, config, 8);
}

// And with everything trained, under dropout.
void Width256Dropout(benchmark::State& state) {
  ModelConfig config = Wide();
  config.dropout = 0.1F;
  TrainingStep(state, config, 8);
}

BENCHMARK(Width128)->RangeMultiplier(4)->Range(512, 8192)->Unit(benchmark::kMillisecond);
BENCHMARK(Width256)->RangeMultiplier(2)->Range(2048, 8192)->Unit(benchmark::kMillisecond);
BENCHMARK(Width256Adapters)->Arg(8192)->Unit(benchmark::kMillisecond);
BENCHMARK(Width256Dropout)->Arg(8192)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace sparsebalance::model
