#include "coordinator/planner/coverage_memory.h"

#include <cmath>

#include "coordinator/planner/coverage_curve.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::planner {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr uint32_t kBlock = 256;

void ExpectSame(const v1::CoverageCurve& a, const v1::CoverageCurve& b, uint32_t blocks,
                double tolerance) {
  for (uint32_t k = 1; k <= blocks; ++k) {
    EXPECT_NEAR(CoverageAt(a, blocks, k), CoverageAt(b, blocks, k), tolerance) << "budget " << k;
  }
}

TEST(CoverageMemory, KnowsNothingAtFirst) {
  const CoverageMemory memory(kBlock);
  EXPECT_EQ(memory.size(), 0U);
  EXPECT_EQ(memory.Lookup(1, 40 * kBlock).SerializeAsString(),
            DefaultCurve(40).SerializeAsString());
}

TEST(CoverageMemory, RemembersASequenceByItsId) {
  CoverageMemory memory(kBlock);
  for (const uint32_t blocks : {1U, 2U, 3U, 40U, 288U, 5000U}) {
    const v1::CoverageCurve curve = PowerCurve(blocks, 1.4);
    ASSERT_TRUE(memory.Observe(blocks, uint64_t{blocks} * kBlock, curve).ok());
    ExpectSame(memory.Lookup(blocks, uint64_t{blocks} * kBlock), curve, blocks, 1e-5);
  }
  EXPECT_EQ(memory.size(), 6U);
}

TEST(CoverageMemory, ANewMeasurementReplacesTheOldOneUnlessItIsOnlyOffered) {
  CoverageMemory memory(kBlock);
  const uint64_t tokens = 100 * kBlock;
  ASSERT_TRUE(memory.Observe(7, tokens, PowerCurve(100, 0.5)).ok());
  ASSERT_TRUE(memory.Observe(7, tokens, PowerCurve(100, 1.5)).ok());
  ExpectSame(memory.Lookup(7, tokens), PowerCurve(100, 1.5), 100, 1e-5);
  EXPECT_FALSE(*memory.PutIfAbsent(7, tokens, PowerCurve(100, 0.9)));
  ExpectSame(memory.Lookup(7, tokens), PowerCurve(100, 1.5), 100, 1e-5);
  EXPECT_TRUE(*memory.PutIfAbsent(8, tokens, PowerCurve(100, 0.9)));
  ExpectSame(memory.Lookup(8, tokens), PowerCurve(100, 0.9), 100, 1e-5);
}

TEST(CoverageMemory, AnUnknownSequenceGetsTheMeanOfItsLength) {
  CoverageMemory memory(kBlock);
  for (uint64_t id = 0; id < 50; ++id) {
    ASSERT_TRUE(memory.Observe(id, 70 * kBlock, PowerCurve(70, 1.6)).ok());
    ASSERT_TRUE(memory.Observe(100 + id, 9 * kBlock, PowerCurve(9, 0.4)).ok());
  }
  ExpectSame(memory.Lookup(999, 70 * kBlock), PowerCurve(70, 1.6), 70, 0.03);
  ExpectSame(memory.Lookup(999, 9 * kBlock), PowerCurve(9, 0.4), 9, 0.03);
  // Of another length in the same power of two, and of a length never seen: always a curve.
  for (const uint32_t blocks : {65U, 127U, 30U, 1U, 2U, 3000U}) {
    EXPECT_TRUE(CheckCurve(memory.Lookup(999, uint64_t{blocks} * kBlock), blocks).ok()) << blocks;
  }
}

TEST(CoverageMemory, AKnownIdWithOtherTokensIsAnotherSequence) {
  CoverageMemory memory(kBlock);
  ASSERT_TRUE(memory.Observe(1, 100 * kBlock, PowerCurve(100, 1.5)).ok());
  EXPECT_FALSE(memory.Contains(1, 101 * kBlock));
  EXPECT_TRUE(CheckCurve(memory.Lookup(1, 3 * kBlock), 3).ok());
}

TEST(CoverageMemory, TheOneObservedLongestAgoMakesRoom) {
  CoverageMemory memory(kBlock, 3);
  const uint64_t tokens = 10 * kBlock;
  for (const uint64_t id : {1, 2, 3}) {
    ASSERT_TRUE(memory.Observe(id, tokens, PowerCurve(10, 1)).ok());
  }
  ASSERT_TRUE(memory.Observe(1, tokens, PowerCurve(10, 1)).ok());
  ASSERT_TRUE(memory.Observe(4, tokens, PowerCurve(10, 1)).ok());
  EXPECT_EQ(memory.size(), 3U);
  EXPECT_TRUE(memory.Contains(1, tokens));
  EXPECT_FALSE(memory.Contains(2, tokens));
  EXPECT_TRUE(memory.Contains(3, tokens));
  EXPECT_TRUE(memory.Contains(4, tokens));
}

TEST(CoverageMemory, RefusesCurvesThatAreNone) {
  CoverageMemory memory(kBlock);
  EXPECT_FALSE(memory.Observe(1, 10 * kBlock, v1::CoverageCurve()).ok());
  v1::CoverageCurve falling = PowerCurve(10, 1);
  falling.set_coverage(3, 0.01);
  EXPECT_FALSE(memory.Observe(1, 10 * kBlock, falling).ok());
  EXPECT_EQ(memory.size(), 0U);
}

TEST(CoverageMemory, ComesBackFromItsChunksInAnyOrder) {
  CoverageMemory memory(kBlock);
  for (uint64_t id = 0; id < 2500; ++id) {
    const auto blocks = static_cast<uint32_t>(2 + id % 300);
    ASSERT_TRUE(memory
                    .Observe(id * 31, uint64_t{blocks} * kBlock,
                             PowerCurve(blocks, 0.5 + 0.001 * static_cast<double>(id % 1000)))
                    .ok());
  }
  ASSERT_EQ(memory.NumChunks(), 4U);
  CoverageMemory other(kBlock);
  for (size_t i = memory.NumChunks(); i-- > 0;) {
    const std::string chunk = memory.Chunk(i);
    EXPECT_LE(chunk.size(), 100U * 1024);
    ASSERT_TRUE(other.RestoreChunk(chunk).ok());
  }
  EXPECT_EQ(other.size(), 2500U);
  for (uint64_t id = 0; id < 2500; id += 7) {
    const uint64_t tokens = (2 + id % 300) * kBlock;
    EXPECT_EQ(other.Lookup(id * 31, tokens).SerializeAsString(),
              memory.Lookup(id * 31, tokens).SerializeAsString());
  }
  EXPECT_EQ(other.Lookup(1, 77 * kBlock).SerializeAsString(),
            memory.Lookup(1, 77 * kBlock).SerializeAsString());
}

TEST(CoverageMemory, SaysWhichChunksChanged) {
  CoverageMemory memory(kBlock);
  EXPECT_THAT(memory.TakeChangedChunks(), IsEmpty());
  for (uint64_t id = 0; id < 1500; ++id) {
    ASSERT_TRUE(memory.Observe(id, 4 * kBlock, PowerCurve(4, 1)).ok());
  }
  EXPECT_THAT(memory.TakeChangedChunks(), ElementsAre(0, 1, 2));
  EXPECT_THAT(memory.TakeChangedChunks(), IsEmpty());
  ASSERT_TRUE(memory.Observe(1400, 4 * kBlock, PowerCurve(4, 1.1)).ok());
  EXPECT_THAT(memory.TakeChangedChunks(), ElementsAre(0, 2));
}

TEST(CoverageMemory, RefusesDamagedChunks) {
  CoverageMemory memory(kBlock);
  ASSERT_TRUE(memory.Observe(1, 40 * kBlock, PowerCurve(40, 1)).ok());
  for (const size_t i : {size_t{0}, size_t{1}}) {
    const std::string chunk = memory.Chunk(i);
    CoverageMemory other(kBlock);
    EXPECT_FALSE(other.RestoreChunk("").ok());
    EXPECT_FALSE(other.RestoreChunk(chunk.substr(0, chunk.size() - 1)).ok());
    EXPECT_FALSE(other.RestoreChunk(chunk + "x").ok());
    EXPECT_EQ(other.size(), 0U);
    EXPECT_FALSE(CoverageMemory(kBlock / 2).RestoreChunk(chunk).ok());
  }
}

}  // namespace
}  // namespace sparsebalance::planner
