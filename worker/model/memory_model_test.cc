#include "worker/model/memory_model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "kernels/create_backend.h"
#include "worker/model/adamw.h"
#include "worker/model/model_test_util.h"

namespace sparsebalance::model {
namespace {

ModelConfig SmallConfig() {
  ModelConfig config;
  config.vocab_size = 300;
  config.hidden_size = 64;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.intermediate_size = 176;
  config.block_tokens = 32;
  return config;
}

// Peak of one step on the CPU backend, optimizer included.
int64_t MeasuredPeak(const ModelConfig& config, const std::vector<int64_t>& lengths,
                     int32_t budget) {
  TestModel m = MakeModel(config);
  const auto optimizer = AdamW::Create({}, m.model->store(), m.backend.get());
  EXPECT_TRUE(optimizer.ok()) << optimizer.status();
  m.backend->ResetPeakMemory();
  MicroBatch batch = RandomBatch(config, lengths, budget);
  if (config.dropout > 0 || config.lora.dropout > 0) batch.dropout_keys.assign(lengths.size(), 5);
  const auto report = m.model->ForwardBackward(batch, 1.0, 0.1);
  EXPECT_TRUE(report.ok()) << report.status();
  EXPECT_TRUE((*optimizer)->Step(1e-3, 1.0).ok());
  return m.backend->memory().peak_bytes;
}

MemoryEstimate Estimated(const ModelConfig& config, const std::vector<int64_t>& lengths,
                         int32_t budget) {
  const auto backend = kernels::CreateBackend("cpu");
  const MicroBatch batch = RandomBatch(config, lengths, budget);
  const auto estimate = EstimateMemory(config, **backend, batch.cu_seqlens, batch.budgets);
  EXPECT_TRUE(estimate.ok()) << estimate.status();
  return *estimate;
}

TEST(MemoryModelTest, IsWithinATenthOfTheMeasuredPeak) {
  struct Case {
    std::vector<int64_t> lengths;
    int32_t budget;
  };
  const std::vector<Case> cases = {{{512}, 4},
                                   {{4096}, 4},
                                   {{4096}, 128},
                                   {{700, 33, 1, 64}, 3},
                                   {{32}, 1},
                                   {{2048}, 1},
                                   {{128, 128, 128, 128, 128, 128, 128, 128}, 4}};
  ModelConfig wide = SmallConfig();
  wide.hidden_size = 128;
  wide.num_heads = 8;
  wide.num_kv_heads = 8;
  wide.intermediate_size = 64;
  ModelConfig words = SmallConfig();
  words.vocab_size = 20000;
  words.tie_embeddings = false;
  words.num_layers = 1;
  ModelConfig drops = SmallConfig();
  drops.dropout = 0.1F;
  ModelConfig adapted = SmallConfig();
  adapted.lora.rank = 16;
  adapted.lora.targets.set();
  ModelConfig adapted_drops = adapted;
  adapted_drops.dropout = 0.1F;
  adapted_drops.lora.rank = 4;
  adapted_drops.lora.dropout = 0.1F;
  for (ModelConfig config : {SmallConfig(), wide, words, drops, adapted, adapted_drops}) {
    for (const bool checkpointing : {false, true}) {
      config.activation_checkpointing = checkpointing;
      for (const Case& c : cases) {
        const auto measured = static_cast<double>(MeasuredPeak(config, c.lengths, c.budget));
        const auto estimated = static_cast<double>(Estimated(config, c.lengths, c.budget).peak);
        EXPECT_NEAR(estimated / measured, 1.0, 0.1)
            << "hidden " << config.hidden_size << ", vocabulary " << config.vocab_size
            << ", dropout " << config.dropout << ", adapters of rank " << config.lora.rank
            << ", checkpointing " << checkpointing << ", first of " << c.lengths.size()
            << " sequences " << c.lengths[0] << ", budget " << c.budget << ": estimated "
            << estimated << ", measured " << measured;
      }
    }
  }
}

TEST(MemoryModelTest, GrowsLinearlyInTokensAtAFixedBudget) {
  const ModelConfig config = SmallConfig();
  const auto above_state = [&](int64_t tokens) {
    const MemoryEstimate e = Estimated(config, {tokens}, 8);
    return static_cast<double>(e.peak - e.state);
  };
  // A little below two: what does not grow counts too.
  EXPECT_LE(above_state(32768) / above_state(16384), 2.02);
  EXPECT_LE(static_cast<double>(MeasuredPeak(config, {16384}, 8)) /
                static_cast<double>(MeasuredPeak(config, {8192}, 8)),
            2.02);
}

TEST(MemoryModelTest, CheckpointingKeepsOnlyInputsAndBlockLists) {
  ModelConfig config = SmallConfig();
  config.num_layers = 8;
  const MemoryEstimate all = Estimated(config, {4096}, 4);
  config.activation_checkpointing = true;
  const MemoryEstimate some = Estimated(config, {4096}, 4);
  EXPECT_EQ(some.state, all.state);
  EXPECT_LT(some.activations * 4, all.activations);
  EXPECT_LT(some.peak * 2, all.peak);
}

TEST(MemoryModelTest, TheTokenCapIsTheLargestThatFits) {
  const ModelConfig config = SmallConfig();
  const auto backend = kernels::CreateBackend("cpu");
  const int64_t limit = 64 << 20;
  for (const int32_t budget : {1, 8, 0}) {
    const auto tokens = MostTokensWithin(config, **backend, budget, limit);
    ASSERT_TRUE(tokens.ok()) << tokens.status();
    EXPECT_EQ(*tokens % config.block_tokens, 0);
    const int32_t most = budget == 0 ? 1 << 20 : budget;
    EXPECT_LE(Estimated(config, {*tokens}, most).peak, limit);
    EXPECT_GT(Estimated(config, {*tokens + config.block_tokens}, most).peak, limit);
    // One long sequence is the worst that a micro-batch of so many tokens can hold.
    EXPECT_LE(Estimated(config, {*tokens / 2, *tokens - *tokens / 2}, most).peak, limit);
    EXPECT_LE(MeasuredPeak(config, {*tokens}, most), limit + limit / 10);
  }
}

TEST(MemoryModelTest, AModelThatDoesNotFitIsRefusedWithTheBytesItNeeds) {
  const auto backend = kernels::CreateBackend("cpu");
  const auto tokens = MostTokensWithin(SmallConfig(), **backend, 8, 1 << 20);
  EXPECT_EQ(tokens.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(tokens.status().message()),
              testing::HasSubstr("memory limit of 1 MiB a rank is too small"));
}

TEST(MemoryModelTest, BadBudgetsAreRefused) {
  const auto backend = kernels::CreateBackend("cpu");
  for (const std::vector<int32_t>& budgets : {std::vector<int32_t>{}, {0}, {1, 1}}) {
    EXPECT_EQ(EstimateMemory(SmallConfig(), **backend, {0, 64}, budgets).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

}  // namespace
}  // namespace sparsebalance::model
