#include "worker/data/global_batch_sampler.h"

#include <algorithm>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::data {
namespace {

using ::testing::ElementsAre;

GlobalBatchSampler Sampler(uint64_t size, uint64_t batch, uint64_t seed = 7) {
  return *GlobalBatchSampler::Create({size, batch, seed});
}

TEST(GlobalBatchSamplerTest, RefusesEmptyDatasetsAndBatches) {
  EXPECT_EQ(GlobalBatchSampler::Create({0, 4}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GlobalBatchSampler::Create({4, 0}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(GlobalBatchSamplerTest, EveryIdComesExactlyOnceAnEpoch) {
  for (const uint64_t size : {1u, 2u, 7u, 16u, 206u}) {
    for (const uint64_t batch_size : {1u, 4u, 5u, 16u, 300u}) {
      GlobalBatchSampler sampler = Sampler(size, batch_size);
      for (uint64_t epoch = 0; epoch < 4; ++epoch) {
        std::vector<uint64_t> seen;
        for (uint64_t b = 0; b < sampler.batches_per_epoch(); ++b) {
          const GlobalBatch batch = sampler.Next();
          EXPECT_EQ(batch.position, (SamplerPosition{epoch, b * batch_size}));
          EXPECT_EQ(batch.ids.size(), std::min(batch_size, size - b * batch_size));
          seen.insert(seen.end(), batch.ids.begin(), batch.ids.end());
        }
        std::sort(seen.begin(), seen.end());
        ASSERT_EQ(seen.size(), size);
        for (uint64_t i = 0; i < size; ++i) ASSERT_EQ(seen[i], i);
      }
    }
  }
}

TEST(GlobalBatchSamplerTest, EpochsAndSeedsDifferAndShufflingCanBeOff) {
  EXPECT_NE(EpochPermutation(100, 1, 0), EpochPermutation(100, 1, 1));
  EXPECT_NE(EpochPermutation(100, 1, 0), EpochPermutation(100, 2, 0));
  EXPECT_NE(EpochPermutation(100, 1, 1), EpochPermutation(100, 2, 0));
  GlobalBatchSampler sampler = *GlobalBatchSampler::Create({5, 3, 1, false});
  EXPECT_THAT(sampler.Next().ids, ElementsAre(0, 1, 2));
  EXPECT_THAT(sampler.Next().ids, ElementsAre(3, 4));
  EXPECT_THAT(sampler.Next().ids, ElementsAre(0, 1, 2));
}

TEST(GlobalBatchSamplerTest, PermutationIsPinned) {
  EXPECT_THAT(EpochPermutation(8, 1, 0), ElementsAre(1, 3, 5, 2, 0, 6, 7, 4));
  EXPECT_THAT(EpochPermutation(8, 1, 1), ElementsAre(0, 7, 6, 3, 2, 4, 1, 5));
}

TEST(GlobalBatchSamplerTest, EachPlaceIsAsLikelyForEachId) {
  // 5 ids over 20000 epochs: 4000 expected in each cell, with a standard deviation of 57.
  int count[5][5] = {};
  for (uint64_t epoch = 0; epoch < 20000; ++epoch) {
    const std::vector<uint64_t> order = EpochPermutation(5, 3, epoch);
    for (size_t place = 0; place < 5; ++place) ++count[place][order[place]];
  }
  for (const auto& row : count) {
    for (const int cell : row) EXPECT_NEAR(cell, 4000, 300);
  }
}

TEST(GlobalBatchSamplerTest, ResumedRunEqualsUninterruptedOne) {
  for (const uint64_t stop : {0u, 1u, 12u, 13u, 14u, 40u}) {
    GlobalBatchSampler whole = Sampler(206, 16);
    for (uint64_t i = 0; i < stop; ++i) whole.Next();
    GlobalBatchSampler resumed = Sampler(206, 16);
    ASSERT_TRUE(resumed.Restore(whole.position()).ok());
    for (int i = 0; i < 30; ++i) ASSERT_EQ(resumed.Next(), whole.Next());
  }
}

TEST(GlobalBatchSamplerTest, AnotherBatchSizeContinuesWithoutLossOrRepetition) {
  GlobalBatchSampler before = Sampler(50, 16);
  std::vector<uint64_t> seen = before.Next().ids;
  GlobalBatchSampler after = Sampler(50, 7);
  ASSERT_TRUE(after.Restore(before.position()).ok());
  while (after.position().epoch == 0) {
    const GlobalBatch batch = after.Next();
    seen.insert(seen.end(), batch.ids.begin(), batch.ids.end());
  }
  std::sort(seen.begin(), seen.end());
  EXPECT_EQ(seen.size(), 50u);
  EXPECT_EQ(std::unique(seen.begin(), seen.end()), seen.end());
  EXPECT_EQ(after.position(), (SamplerPosition{1, 0}));
}

TEST(GlobalBatchSamplerTest, EndOfAnEpochIsTheStartOfTheNext) {
  GlobalBatchSampler sampler = Sampler(10, 4);
  ASSERT_TRUE(sampler.Restore({2, 10}).ok());
  EXPECT_EQ(sampler.position(), (SamplerPosition{3, 0}));
  const absl::Status status = sampler.Restore({0, 11});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(sampler.position(), (SamplerPosition{3, 0}));
}

TEST(GlobalBatchSamplerTest, PeekSeesWhatNextWillGiveAndMovesNothing) {
  GlobalBatchSampler sampler = Sampler(23, 5);
  for (int step = 0; step < 12; ++step) {
    std::vector<GlobalBatch> ahead;
    for (uint64_t k = 0; k < 12; ++k) ahead.push_back(sampler.Peek(k));
    GlobalBatchSampler walker = sampler;
    for (const GlobalBatch& batch : ahead) ASSERT_EQ(walker.Next(), batch);
    sampler.Next();
  }
}

}  // namespace
}  // namespace sparsebalance::data
