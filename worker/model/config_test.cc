#include "worker/model/config.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::model {
namespace {

TEST(ModelConfigTest, TheDefaultIsValidAndDerivesTheHeadSize) {
  ModelConfig config;
  EXPECT_TRUE(config.Validate().ok());
  EXPECT_EQ(config.HeadDim(), 32);
  config.head_dim = 48;
  EXPECT_EQ(config.HeadDim(), 48);
  EXPECT_TRUE(config.Validate().ok());
}

TEST(ModelConfigTest, EveryBadFieldIsNamed) {
  const std::vector<std::pair<std::string, std::function<void(ModelConfig&)>>> cases = {
      {"vocab_size", [](ModelConfig& c) { c.vocab_size = 0; }},
      {"num_layers", [](ModelConfig& c) { c.num_layers = -1; }},
      {"num_heads", [](ModelConfig& c) { c.num_heads = 0; }},
      {"num_kv_heads", [](ModelConfig& c) { c.num_kv_heads = 3; }},
      {"hidden_size", [](ModelConfig& c) { c.hidden_size = 130; }},
      {"head_dim", [](ModelConfig& c) { c.head_dim = 7; }},
      {"intermediate_size", [](ModelConfig& c) { c.intermediate_size = 0; }},
      {"block_tokens", [](ModelConfig& c) { c.block_tokens = 0; }},
      {"coverage_sample_stride", [](ModelConfig& c) { c.coverage_sample_stride = 0; }},
      {"rope_theta", [](ModelConfig& c) { c.rope_theta = 0; }},
      {"rms_norm_eps", [](ModelConfig& c) { c.rms_norm_eps = -1; }},
      {"initializer_range", [](ModelConfig& c) { c.initializer_range = 0; }},
  };
  for (const auto& [field, spoil] : cases) {
    ModelConfig config;
    spoil(config);
    const absl::Status status = config.Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << field;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(field));
  }
}

}  // namespace
}  // namespace sparsebalance::model
