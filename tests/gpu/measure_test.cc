// The measurements run on the emulated device with small sizes. What they say of its speed means
// nothing; that they run, and what is made of them, is looked at.

#include "tests/gpu/measure.h"

#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/backend/device_under_test.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::gpu {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

MeasureOptions Small() {
  MeasureOptions options;
  options.seconds = 0;
  options.copy_elements = 4096;
  options.product = 16;
  options.hidden = 64;
  options.vocabulary = 100;
  options.lengths = {96, 160};
  options.longest_dense = 100;
  options.num_heads = 2;
  options.num_kv_heads = 1;
  options.head_dim = 32;
  options.block_tokens = 16;
  options.budget = 3;
  return options;
}

TEST(MeasureTest, EveryOpIsMeasured) {
  auto backend = *kernels::cuda::MakeBackendUnderTest(
      {.activation_type = kernels::ElementType::kBfloat16, .poison_allocations = true});
  std::vector<Measurement> all;
  for (const auto& section : {MeasureCeilings, MeasureBandwidth, MeasureAttention}) {
    auto some = section(*backend, Small());
    ASSERT_TRUE(some.ok()) << some.status();
    std::move(some->begin(), some->end(), std::back_inserter(all));
  }
  for (const Measurement& m : all) EXPECT_GT(m.seconds, 0) << m.name;
  // Two ceilings, eleven ops, seven lines of both lengths and dense attention at the shorter one.
  EXPECT_EQ(all.size(), 2U + 11 + 2 * 7 + 2);

  const nlohmann::json json = nlohmann::json::parse(ToJson(all, "some GPU"));
  EXPECT_EQ(json["device"], "some GPU");
  EXPECT_EQ(json["measurements"].size(), all.size());
  EXPECT_THAT(Summary(all, "some GPU"), HasSubstr("dense / sparse time at 96 tokens"));
}

std::vector<Measurement> AtTheYardstick(double forward_tflops) {
  constexpr int64_t kTokens = 65536;
  return {{"ceiling", "device copy", 0, 1e-3, 4e9, 0},
          {"ceiling", "matrix product", 0, 1e-3, 0, 7e11},
          {"bandwidth", "add", 0, 1e-3, 3.9e9, 0},
          {"bandwidth", "rope", 0, 1e-3, 3.1e9, 0},
          {"attention", "means", kTokens, 1e-4, 0, 0},
          {"attention", "select", kTokens, 1.4e-3, 0, 0},
          {"attention", "lists", kTokens, 4e-4, 0, 0},
          {"attention", "routed forward", kTokens, 1e-2, 0, forward_tflops * 1e10},
          {"attention", "routed forward + backward", kTokens, 1e-2, 0, 6.1e11}};
}

TEST(MeasureTest, TheSummarySaysWhatIsMet) {
  const std::string met = Summary(AtTheYardstick(95), "some GPU");
  EXPECT_THAT(met, HasSubstr("95.0 TFLOP/s"));
  EXPECT_THAT(met, HasSubstr("61.0 TFLOP/s"));
  EXPECT_THAT(met, HasSubstr("11.0 %"));
  EXPECT_THAT(met, HasSubstr("4.0 %"));
  EXPECT_THAT(met, HasSubstr("(rope)"));
  EXPECT_THAT(met, HasSubstr("78 % of the copy"));
  const std::string slow = Summary(AtTheYardstick(89), "some GPU");
  const auto misses = [](const std::string& text) {
    size_t count = 0;
    for (size_t at = text.find("NOT MET"); at != std::string::npos;
         at = text.find("NOT MET", at + 1)) {
      ++count;
    }
    return count;
  };
  EXPECT_EQ(misses(met), 1U) << met;  // the bandwidth of rope
  EXPECT_EQ(misses(slow), 2U) << slow;
}

}  // namespace
}  // namespace sparsebalance::gpu
