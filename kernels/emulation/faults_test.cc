// Kernels that are wrong fail, with a message that says where and how.

#include <cmath>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

using cuda::Bf16;
using cuda::DevicePtr;
using cuda::kAllLanes;
using cuda::Launch;
using cuda::LaunchConfig;
using cuda::LinearThread;
using cuda::SharedPtr;
using cuda::SyncThreads;
using testing::AllOf;
using testing::HasSubstr;

class FaultsTest : public testing::TestWithParam<Order> {
 protected:
  DevicePtr<float> Floats(int64_t count, const char* name = "x") {
    return Upload(device_, std::vector<float>(count, 1.0F), name);
  }
  // Expects INTERNAL and a message with all of these.
  template <typename... Texts>
  static void ExpectFault(const absl::Status& status, const Texts&... texts) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(texts)...));
  }

  Device device_{{.order = GetParam(), .seed = 3}};
};

INSTANTIATE_TEST_SUITE_P(Orders, FaultsTest, testing::ValuesIn(kAllOrders), OrderName);

// --- memory -----------------------------------------------------------------------------------

void ReadAt(DevicePtr<const float> x, int64_t i, DevicePtr<float> to) {
  if (LinearThread() == 5) to[0] = x[i];
}
void WriteAt(DevicePtr<float> x, int64_t i) {
  if (cuda::BlockIdx().x == 1 && LinearThread() == 2) x[i] = 1;
}

TEST_P(FaultsTest, AReadBeyondAnAllocationNamesKernelBlockAndThread) {
  const auto to = Floats(1, "to");
  const absl::Status status =
      Launch(ReadAt, {.block = {8}, .name = "read_at"}, &device_, Floats(10), 10, to);
  ExpectFault(status, "kernel 'read_at', block [0, 0, 0], thread [5, 0, 0]: out of bounds",
              "4 bytes at byte 40 of allocation 'x', which has 40 bytes");
  ExpectFault(Launch(ReadAt, {.block = {8}}, &device_, Floats(10), -1, to), "out of bounds",
              "at byte -4");
}

TEST_P(FaultsTest, AWriteBeyondAnAllocationFailsAndTheDeviceGoesOn) {
  const auto x = Floats(10);
  ExpectFault(Launch(WriteAt, {.grid = {3}, .block = {4}}, &device_, x, 1000), "block [1, 0, 0]",
              "thread [2, 0, 0]", "out of bounds");
  EXPECT_EQ(Launch(WriteAt, {.grid = {3}, .block = {4}}, &device_, x, 9), absl::OkStatus());
}

TEST_P(FaultsTest, APointerOutlivesItsMemoryOnlyOutsideOfKernels) {
  const auto x = Floats(10, "old");
  ASSERT_TRUE(device_.Free(x).ok());
  ExpectFault(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, x, 0), "use after free");
  const auto y = Floats(10, "new");  // may lie at the same place
  ExpectFault(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, x, 0), "use after free");
  EXPECT_EQ(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, y, 0), absl::OkStatus());
  EXPECT_EQ(device_.Free(x).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_.Free(y + 1).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(FaultsTest, ANullPointerFails) {
  ExpectFault(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, nullptr, 0), "null pointer");
}

void LoadVector(DevicePtr<const float> x, int64_t i, DevicePtr<float> to) {
  to[0] = cuda::LoadVec<cuda::float4>(x + i).w;
}

TEST_P(FaultsTest, AMisalignedVectorFailsAndSoDoesOneThatReachesBeyondTheEnd) {
  const auto to = Floats(1);
  ExpectFault(Launch(LoadVector, {}, &device_, Floats(8), 2, to), "misaligned",
              "16 bytes at byte 8", "multiple of 16");
  ExpectFault(Launch(LoadVector, {}, &device_, Floats(6), 4, to), "out of bounds");
  EXPECT_EQ(Launch(LoadVector, {}, &device_, Floats(8), 4, to), absl::OkStatus());
}

void SharedBeyondEnd(int first, DevicePtr<float> to) {
  SB_SHARED_ARRAY(float, one, 16);
  SB_SHARED_ARRAY(float, two, 16);
  two[0] = 1;
  one[first + LinearThread()] = 2;
  to[0] = two[0];
}
void DynamicBeyondEnd(int i) { cuda::DynamicShared<double>()[i] = 1; }

TEST_P(FaultsTest, SharedArraysHaveBoundsAndNotOnlyTheBlocksMemory) {
  const auto to = Floats(1);
  EXPECT_EQ(Launch(SharedBeyondEnd, {.block = {8}}, &device_, 8, to), absl::OkStatus());
  ExpectFault(Launch(SharedBeyondEnd, {.block = {8}}, &device_, 9, to), "out of bounds",
              "shared array 'one', which has 64 bytes", "thread [7, 0, 0]");
  const LaunchConfig dynamic{.dynamic_shared_bytes = 80};
  EXPECT_EQ(Launch(DynamicBeyondEnd, dynamic, &device_, 9), absl::OkStatus());
  ExpectFault(Launch(DynamicBeyondEnd, dynamic, &device_, 10), "out of bounds",
              "shared array 'dynamic'");
}

void KeepFromOtherBlock(DevicePtr<float> to) {
  SB_SHARED_ARRAY(float, kept, 1);
  to[cuda::BlockIdx().x] = kept[0];
  kept[0] = 1;
}

TEST_P(FaultsTest, SharedMemoryIsPoisonedForEveryBlock) {
  const auto to = Floats(3);
  ASSERT_EQ(Launch(KeepFromOtherBlock, {.grid = {3}}, &device_, to), absl::OkStatus());
  for (const float value : Download(device_, to, 3)) EXPECT_TRUE(std::isnan(value));
}

TEST_P(FaultsTest, FreshDeviceMemoryIsPoisoned) {
  const auto x = device_.Allocate<float>(4, "x").value();
  for (const float value : Download(device_, x, 4)) EXPECT_TRUE(std::isnan(value));
}

// --- asynchronous copies ----------------------------------------------------------------------

void CopyAndRead(DevicePtr<const float> from, bool commit, bool wait, DevicePtr<float> to) {
  SB_SHARED_ARRAY(float, copy, 4);
  cuda::CpAsync<16>(copy, from);
  if (commit) cuda::CpAsyncCommit();
  if (wait) cuda::CpAsyncWait<0>();
  to[0] = copy[3];
}

TEST_P(FaultsTest, AnAsynchronousCopyArrivesOnlyWithItsWait) {
  const auto from = Floats(4);
  const auto to = Floats(1);
  const auto read = [&](bool commit, bool wait) {
    EXPECT_EQ(Launch(CopyAndRead, {}, &device_, from, commit, wait, to), absl::OkStatus());
    return Download(device_, to, 1)[0];
  };
  EXPECT_EQ(read(true, true), 1.0F);
  EXPECT_TRUE(std::isnan(read(true, false)));
  EXPECT_TRUE(std::isnan(read(false, true)));
}

void CopyAt(DevicePtr<const float> from, int to_index) {
  SB_SHARED_ARRAY(float, copy, 8);
  cuda::CpAsync<16>(copy + to_index, from);
}

TEST_P(FaultsTest, AnAsynchronousCopyIsCheckedOnBothSides) {
  EXPECT_EQ(Launch(CopyAt, {}, &device_, Floats(4), 4), absl::OkStatus());
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(4), 2), "misaligned", "'copy'");
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(4), 8), "out of bounds", "'copy'");
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(3), 4), "out of bounds", "allocation 'x'");
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(8) + 1, 4), "misaligned", "allocation 'x'");
}

// --- barriers ---------------------------------------------------------------------------------

template <bool kBarrier>
void Reverse(DevicePtr<float> x) {
  SB_SHARED_ARRAY(float, values, 64);
  const int t = LinearThread();
  values[t] = x[t];
  if constexpr (kBarrier) SyncThreads();
  x[t] = values[63 - t];
}

TEST(BarrierTest, AMissingBarrierGivesAWrongResultInSomeOrder) {
  std::vector<float> x(64);
  for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
  const std::vector<float> reversed(x.rbegin(), x.rend());
  for (const Order order : kAllOrders) {
    Device device({.order = order});
    const auto right = Upload(device, x, "right");
    ASSERT_EQ(Launch(Reverse<true>, {.block = {64}}, &device, right), absl::OkStatus());
    EXPECT_EQ(Download(device, right, 64), reversed);
    const auto wrong = Upload(device, x, "wrong");
    ASSERT_EQ(Launch(Reverse<false>, {.block = {64}}, &device, wrong), absl::OkStatus());
    EXPECT_NE(Download(device, wrong, 64), reversed);
  }
}

template <bool kBarrier>
void TakeFromBelow(DevicePtr<float> x) {
  SB_SHARED_ARRAY(float, values, 64);
  const int t = LinearThread();
  values[t] = x[t];
  if constexpr (kBarrier) SyncThreads();
  if (t > 0) x[t] = values[t - 1];
}

TEST(BarrierTest, AMissingBarrierThatOneOrderHidesShowsAsADifferenceOfOrders) {
  std::vector<std::vector<float>> with, without;
  for (const Order order : kAllOrders) {
    Device device({.order = order});
    std::vector<float> x(64);
    for (int i = 0; i < 64; ++i) x[i] = static_cast<float>(i);
    const auto a = Upload(device, x, "a");
    const auto b = Upload(device, x, "b");
    ASSERT_EQ(Launch(TakeFromBelow<true>, {.block = {64}}, &device, a), absl::OkStatus());
    ASSERT_EQ(Launch(TakeFromBelow<false>, {.block = {64}}, &device, b), absl::OkStatus());
    with.push_back(Download(device, a, 64));
    without.push_back(Download(device, b, 64));
  }
  EXPECT_EQ(with[0], with[1]);
  EXPECT_EQ(with[0], with[2]);
  EXPECT_EQ(without[0], with[0]);  // forward, every value is there in time
  EXPECT_NE(without[1], with[0]);
  EXPECT_NE(without[2], with[0]);
}

void SomeReturnEarly(int n) {
  if (LinearThread() >= n) return;
  SyncThreads();
}
void TwoBarriers(int n) {
  if (LinearThread() < n) {
    SyncThreads();
  } else {
    SyncThreads();
  }
}

TEST_P(FaultsTest, ABarrierThatSomeThreadsNeverReachIsDivergent) {
  ExpectFault(Launch(SomeReturnEarly, {.block = {64}, .name = "early"}, &device_, 40),
              "kernel 'early', block [0, 0, 0]: divergent barrier", "waiting at SyncThreads (",
              "faults_test.cc:", "): threads 0-39", "returned: threads 40-63");
  EXPECT_EQ(Launch(SomeReturnEarly, {.block = {64}}, &device_, 64), absl::OkStatus());
}

TEST_P(FaultsTest, ABlockThatWaitsAtTwoBarriersIsDivergent) {
  ExpectFault(Launch(TwoBarriers, {.block = {64}}, &device_, 33), "divergent barrier",
              "): threads 0-32", "): threads 33-63");
}

void BarrierAgainstShuffle() {
  if (LinearThread() % 2 == 0) {
    SyncThreads();
  } else {
    cuda::SyncWarp();
    SyncThreads();
  }
}
void PollForever(DevicePtr<int32_t> flag) {
  if (LinearThread() == 1) {
    while (cuda::AtomicLoad(flag) == 0) {
    }
  } else {
    SyncThreads();
  }
}

TEST_P(FaultsTest, ADeadlockEndsAndSaysWhoWaitsForWhat) {
  ExpectFault(Launch(BarrierAgainstShuffle, {.block = {4}, .name = "both"}, &device_),
              "kernel 'both'", "deadlock", "waiting at SyncThreads", "): threads 0, 2",
              "waiting at SyncWarp", "mask 0x0000000f): threads 1, 3");
  const auto flag = Upload(device_, std::vector<int32_t>{0}, "flag");
  ExpectFault(Launch(PollForever, {.block = {4}}, &device_, flag), "thread [1, 0, 0]", "deadlock",
              "polls", "polling memory: thread 1", "): threads 0, 2-3");
}

// --- operations of a warp ---------------------------------------------------------------------

void ShuffleOf(uint32_t mask, int lanes, int source) {
  if (LinearThread() < lanes) cuda::Shfl(mask, LinearThread(), source);
}
void DifferentCalls(bool same_operation) {
  if (LinearThread() % 2 == 0) {
    cuda::Ballot(kAllLanes, true);
  } else if (same_operation) {
    cuda::Ballot(kAllLanes, true);
  } else {
    cuda::SyncWarp();
  }
}

TEST_P(FaultsTest, AShuffleNeedsEveryLaneOfItsMask) {
  EXPECT_EQ(Launch(ShuffleOf, {.block = {32}}, &device_, 0xFFFFU, 16, 3), absl::OkStatus());
  ExpectFault(Launch(ShuffleOf, {.block = {32}}, &device_, kAllLanes, 31, 3), "deadlock",
              "waiting at Shfl", "mask 0xffffffff): threads 0-30", "returned: thread 31");
}

TEST_P(FaultsTest, ALaneOutsideOfItsOwnMaskFails) {
  ExpectFault(Launch(ShuffleOf, {.block = {32}}, &device_, 0xFFFEU, 16, 3), "thread [0, 0, 0]",
              "lane 0 is not in its own mask 0x0000fffe");
}

TEST_P(FaultsTest, AShuffleMayNotReadALaneThatTakesNoPart) {
  ExpectFault(Launch(ShuffleOf, {.block = {32}}, &device_, 0xFFFFU, 16, 20), "reads lane 20");
  ExpectFault(Launch(ShuffleOf, {.block = {24}}, &device_, kAllLanes, 24, 30), "reads lane 30");
}

TEST_P(FaultsTest, LanesOfOneMaskMustBeAtTheSameCall) {
  ExpectFault(Launch(DifferentCalls, {.block = {32}}, &device_, false), "different calls",
              "SyncWarp at ", "Ballot");
  ExpectFault(Launch(DifferentCalls, {.block = {32}}, &device_, true), "different calls");
}

void HalfWarpProduct() {
  float d[4] = {};
  const uint32_t a[4] = {};
  const uint32_t b[2] = {};
  cuda::MmaM16N8K16(d, a, b, d);
}
void LoadMatrixAt(int offset) {
  SB_SHARED_ARRAY(Bf16, matrix, 68);
  uint32_t registers[1];
  cuda::LdMatrixX1(registers, matrix + LinearThread() % 8 * 8 + offset);
}

TEST_P(FaultsTest, MatrixOperationsNeedAWholeWarpAndAlignedRows) {
  ExpectFault(Launch(HalfWarpProduct, {.block = {16}}, &device_), "fewer than 32");
  EXPECT_EQ(Launch(LoadMatrixAt, {.block = {32}}, &device_, 0), absl::OkStatus());
  ExpectFault(Launch(LoadMatrixAt, {.block = {32}}, &device_, 4), "misaligned", "'matrix'");
  ExpectFault(Launch(LoadMatrixAt, {.block = {32}}, &device_, 8), "out of bounds",
              "thread [7, 0, 0]");
}

void Throw() {
  if (LinearThread() == 3) throw std::runtime_error("no GPU does this");
  SyncThreads();
}

TEST_P(FaultsTest, AnExceptionStaysInside) {
  ExpectFault(Launch(Throw, {.block = {8}}, &device_), "thread [3, 0, 0]", "no GPU does this");
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
