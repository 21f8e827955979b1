// Kernels whose threads do not come together as they must fail, with a message that says who waits
// where.

#include <cstdint>
#include <stdexcept>
#include <vector>

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
using cuda::LinearThread;
using cuda::SyncThreads;

using SynchronizationFaultsTest = FaultsTest;

INSTANTIATE_TEST_SUITE_P(Orders, SynchronizationFaultsTest, testing::ValuesIn(kAllOrders),
                         OrderName);

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
  // NOLINTNEXTLINE(bugprone-branch-clone): two calls are the point.
  if (LinearThread() < n) {
    SyncThreads();
  } else {
    SyncThreads();
  }
}

TEST_P(SynchronizationFaultsTest, ABarrierThatSomeThreadsNeverReachIsDivergent) {
  ExpectFault(Launch(SomeReturnEarly, {.block = {64}, .name = "early"}, &device_, 40),
              "kernel 'early', block [0, 0, 0]: divergent barrier", "waiting at SyncThreads (",
              "faults_test.cc:", "): threads 0-39", "returned: threads 40-63");
  EXPECT_EQ(Launch(SomeReturnEarly, {.block = {64}}, &device_, 64), absl::OkStatus());
}

TEST_P(SynchronizationFaultsTest, ABlockThatWaitsAtTwoBarriersIsDivergent) {
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

TEST_P(SynchronizationFaultsTest, ADeadlockEndsAndSaysWhoWaitsForWhat) {
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
  // NOLINTNEXTLINE(bugprone-branch-clone): two calls are the point.
  if (LinearThread() % 2 == 0) {
    cuda::Ballot(kAllLanes, true);
  } else if (same_operation) {
    cuda::Ballot(kAllLanes, true);
  } else {
    cuda::SyncWarp();
  }
}

TEST_P(SynchronizationFaultsTest, AShuffleNeedsEveryLaneOfItsMask) {
  EXPECT_EQ(Launch(ShuffleOf, {.block = {32}}, &device_, 0xFFFFU, 16, 3), absl::OkStatus());
  ExpectFault(Launch(ShuffleOf, {.block = {32}}, &device_, kAllLanes, 31, 3), "deadlock",
              "waiting at Shfl", "mask 0xffffffff): threads 0-30", "returned: thread 31");
}

TEST_P(SynchronizationFaultsTest, ALaneOutsideOfItsOwnMaskFails) {
  ExpectFault(Launch(ShuffleOf, {.block = {32}}, &device_, 0xFFFEU, 16, 3), "thread [0, 0, 0]",
              "lane 0 is not in its own mask 0x0000fffe");
}

TEST_P(SynchronizationFaultsTest, AShuffleMayNotReadALaneThatTakesNoPart) {
  ExpectFault(Launch(ShuffleOf, {.block = {32}}, &device_, 0xFFFFU, 16, 20), "reads lane 20");
  ExpectFault(Launch(ShuffleOf, {.block = {24}}, &device_, kAllLanes, 24, 30), "reads lane 30");
}

TEST_P(SynchronizationFaultsTest, LanesOfOneMaskMustBeAtTheSameCall) {
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

TEST_P(SynchronizationFaultsTest, MatrixOperationsNeedAWholeWarpAndAlignedRows) {
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

TEST_P(SynchronizationFaultsTest, AnExceptionStaysInside) {
  ExpectFault(Launch(Throw, {.block = {8}}, &device_), "thread [3, 0, 0]", "no GPU does this");
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
