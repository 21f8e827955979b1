#include "kernels/cpu/memory_pool.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"

namespace sparsebalance::kernels::cpu {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST(MemoryPoolTest, MemoryIsAlignedForVectorsEvenWhereNothingIsAsked) {
  MemoryPool pool(/*poison=*/false);
  for (const int64_t bytes : {int64_t{0}, int64_t{1}, int64_t{65}, 3 * kMiB + 1}) {
    void* data = pool.Allocate(bytes);
    ASSERT_NE(data, nullptr);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0U);
    pool.Free(data);
  }
  EXPECT_EQ(pool.stats().live_bytes, 0);
}

TEST(MemoryPoolTest, AFreedPieceServesARequestOfSimilarSize) {
  MemoryPool pool(/*poison=*/false);
  void* a = pool.Allocate(10 * kMiB);
  pool.Free(a);
  EXPECT_EQ(pool.cached_bytes(), 10 * kMiB);
  void* b = pool.Allocate(8 * kMiB);
  EXPECT_EQ(b, a);
  EXPECT_EQ(pool.cached_bytes(), 0);
  EXPECT_EQ(pool.stats().live_bytes, 10 * kMiB);
  pool.Free(b);
}

TEST(MemoryPoolTest, AFreedPieceIsNotWastedOnAMuchSmallerRequest) {
  MemoryPool pool(/*poison=*/false);
  void* a = pool.Allocate(10 * kMiB);
  pool.Free(a);
  void* b = pool.Allocate(64);
  EXPECT_NE(b, a);
  EXPECT_EQ(pool.stats().live_bytes, 64);
  pool.Free(b);
}

TEST(MemoryPoolTest, IdleMemoryStaysWithinWhatWasNeededAtOnce) {
  MemoryPool pool(/*poison=*/false);
  for (int64_t size = 2 * kMiB; size < 200 * kMiB; size = size * 2) {
    pool.Free(pool.Allocate(size));
    EXPECT_LE(pool.cached_bytes(), 2 * pool.stats().peak_bytes);
  }
}

TEST(MemoryPoolTest, ALimitCountsMemoryInUseAndMemoryKeptForReuse) {
  MemoryPool pool(/*poison=*/false, 20 * kMiB);
  void* a = pool.Allocate(10 * kMiB);
  EXPECT_EQ(pool.Allocate(12 * kMiB), nullptr);
  pool.Free(a);
  void* b = pool.Allocate(16 * kMiB);  // what is idle makes room
  EXPECT_NE(b, nullptr);
  EXPECT_EQ(pool.cached_bytes(), 0);
  pool.Free(b);
  // A larger piece is not reused where it would break the limit.
  void* c = pool.Allocate(6 * kMiB);
  void* d = pool.Allocate(13 * kMiB);
  EXPECT_NE(d, nullptr);
  EXPECT_LE(pool.stats().live_bytes, 20 * kMiB);
  pool.Free(c);
  pool.Free(d);
}

TEST(MemoryPoolTest, PoisonedMemoryReadsAsNotANumber) {
  MemoryPool pool(/*poison=*/true);
  auto* data = static_cast<float*>(pool.Allocate(40));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(std::isnan(data[i]));
  pool.Free(data);
}

}  // namespace
}  // namespace sparsebalance::kernels::cpu
