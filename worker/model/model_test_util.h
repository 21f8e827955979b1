#pragma once

// Small models and random batches for the model's tests.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/create_backend.h"
#include "worker/model/config.h"
#include "worker/model/micro_batch.h"
#include "worker/model/random.h"
#include "worker/model/transformer.h"

namespace sparsebalance::model {

#define SB_ASSERT_OK(expr)                              \
  do {                                                  \
    const absl::Status& sb_test_status = (expr);        \
    ASSERT_TRUE(sb_test_status.ok()) << sb_test_status; \
  } while (false)

inline constexpr double kGuardOff = 1.0;  // coverage may fall to nothing

inline ModelConfig TinyConfig() {
  ModelConfig config;
  config.vocab_size = 23;
  config.hidden_size = 24;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 6;
  config.intermediate_size = 20;
  config.initializer_range = 0.3F;  // large, so that attention is far from uniform
  config.block_tokens = 4;
  return config;
}

// Random tokens; about a third of them not supervised. The same budget for all sequences.
inline MicroBatch RandomBatch(const ModelConfig& config, const std::vector<int64_t>& lengths,
                              int32_t budget, uint32_t seed = 1) {
  std::mt19937 generator(seed);
  MicroBatch batch;
  batch.cu_seqlens = {0};
  for (const int64_t n : lengths) {
    batch.cu_seqlens.push_back(batch.cu_seqlens.back() + n);
    batch.budgets.push_back(budget);
    batch.base_budgets.push_back(budget);
    for (int64_t i = 0; i < n; ++i) {
      batch.tokens.push_back(static_cast<int32_t>(generator() % config.vocab_size));
      batch.targets.push_back(static_cast<int32_t>(generator() % config.vocab_size));
      batch.loss_weights.push_back(generator() % 3 == 0 ? 0.0F : 1.0F);
    }
  }
  return batch;
}

// The given sequences of `batch`, in the given order.
inline MicroBatch Pick(const MicroBatch& batch, const std::vector<size_t>& sequences) {
  MicroBatch out;
  out.cu_seqlens = {0};
  for (const size_t s : sequences) {
    for (int64_t t = batch.cu_seqlens[s]; t < batch.cu_seqlens[s + 1]; ++t) {
      out.tokens.push_back(batch.tokens[t]);
      out.targets.push_back(batch.targets[t]);
      out.loss_weights.push_back(batch.loss_weights[t]);
    }
    out.cu_seqlens.push_back(static_cast<int64_t>(out.tokens.size()));
    out.budgets.push_back(batch.budgets[s]);
    out.base_budgets.push_back(batch.base_budgets[s]);
  }
  return out;
}

// |a - b| / |b|.
inline double RelativeDistance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0;
  double norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (static_cast<double>(a[i]) - b[i]) * (static_cast<double>(a[i]) - b[i]);
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(difference / std::max(norm, 1e-30));
}

struct TestModel {
  std::unique_ptr<kernels::Backend> backend;
  std::unique_ptr<Transformer> model;

  std::vector<float> Host(ConstDeviceBuffer buffer) const {
    std::vector<float> out(buffer.size());
    EXPECT_TRUE(backend->CopyToHost(buffer, out.data()).ok());
    return out;
  }
};

inline TestModel MakeModelOn(std::unique_ptr<kernels::Backend> backend, const ModelConfig& config,
                             uint64_t seed = 7) {
  TestModel out;
  out.backend = std::move(backend);
  auto model = Transformer::Create(config, out.backend.get(), seed);
  EXPECT_TRUE(model.ok()) << model.status();
  out.model = *std::move(model);
  return out;
}

inline TestModel MakeModel(const ModelConfig& config, int threads = 1, uint64_t seed = 7) {
  return MakeModelOn(
      *kernels::CreateBackend("cpu", {.threads = threads, .poison_allocations = true}), config,
      seed);
}

// Adapters as after some training: B is not 0 any more.
inline TestModel MakeTrained(const ModelConfig& config, int threads = 1) {
  TestModel m = MakeModel(config, threads);
  for (const Parameter& p : m.model->store()->adapter_parameters()) {
    std::vector<float> values = m.Host(p.value);
    const RandomStream noise(5, p.name);
    for (size_t i = 0; i < values.size(); ++i) values[i] += 0.2F * static_cast<float>(noise.At(i));
    EXPECT_TRUE(m.model->store()->Write(p, values).ok());
  }
  return m;
}

}  // namespace sparsebalance::model
