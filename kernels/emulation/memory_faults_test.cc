// Kernels that misuse memory fail, with a message that says where and how.

#include <cmath>
#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

using cuda::DevicePtr;
using cuda::Launch;
using cuda::LaunchConfig;
using cuda::LinearThread;

using MemoryFaultsTest = FaultsTest;

INSTANTIATE_TEST_SUITE_P(Orders, MemoryFaultsTest, testing::ValuesIn(kAllOrders), OrderName);

void ReadAt(DevicePtr<const float> x, int64_t i, DevicePtr<float> to) {
  if (LinearThread() == 5) to[0] = x[i];
}
void WriteAt(DevicePtr<float> x, int64_t i) {
  if (cuda::BlockIdx().x == 1 && LinearThread() == 2) x[i] = 1;
}

TEST_P(MemoryFaultsTest, AReadBeyondAnAllocationNamesKernelBlockAndThread) {
  const auto to = Floats(1, "to");
  const absl::Status status =
      Launch(ReadAt, {.block = {8}, .name = "read_at"}, &device_, Floats(10), 10, to);
  ExpectFault(status, "kernel 'read_at', block [0, 0, 0], thread [5, 0, 0]: out of bounds",
              "4 bytes at byte 40 of allocation 'x', which has 40 bytes");
  ExpectFault(Launch(ReadAt, {.block = {8}}, &device_, Floats(10), -1, to), "out of bounds",
              "at byte -4");
}

TEST_P(MemoryFaultsTest, AWriteBeyondAnAllocationFailsAndTheDeviceGoesOn) {
  const auto x = Floats(10);
  ExpectFault(Launch(WriteAt, {.grid = {3}, .block = {4}}, &device_, x, 1000), "block [1, 0, 0]",
              "thread [2, 0, 0]", "out of bounds");
  EXPECT_EQ(Launch(WriteAt, {.grid = {3}, .block = {4}}, &device_, x, 9), absl::OkStatus());
}

TEST_P(MemoryFaultsTest, APointerOutlivesItsMemoryOnlyOutsideOfKernels) {
  const auto x = Floats(10, "old");
  ASSERT_TRUE(device_.Free(x).ok());
  ExpectFault(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, x, 0), "use after free");
  const auto y = Floats(10, "new");  // may lie at the same place
  ExpectFault(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, x, 0), "use after free");
  EXPECT_EQ(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, y, 0), absl::OkStatus());
  EXPECT_EQ(device_.Free(x).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(device_.Free(y + 1).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(MemoryFaultsTest, ANullPointerFails) {
  ExpectFault(Launch(WriteAt, {.grid = {2}, .block = {4}}, &device_, nullptr, 0), "null pointer");
}

void LoadVector(DevicePtr<const float> x, int64_t i, DevicePtr<float> to) {
  to[0] = cuda::LoadVec<cuda::float4>(x + i).w;
}

TEST_P(MemoryFaultsTest, AMisalignedVectorFailsAndSoDoesOneThatReachesBeyondTheEnd) {
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

TEST_P(MemoryFaultsTest, SharedArraysHaveBoundsAndNotOnlyTheBlocksMemory) {
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

TEST_P(MemoryFaultsTest, SharedMemoryIsPoisonedForEveryBlock) {
  const auto to = Floats(3);
  ASSERT_EQ(Launch(KeepFromOtherBlock, {.grid = {3}}, &device_, to), absl::OkStatus());
  for (const float value : Download(device_, to, 3)) EXPECT_TRUE(std::isnan(value));
}

TEST_P(MemoryFaultsTest, FreshDeviceMemoryIsPoisoned) {
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

TEST_P(MemoryFaultsTest, AnAsynchronousCopyArrivesOnlyWithItsWait) {
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

TEST_P(MemoryFaultsTest, AnAsynchronousCopyIsCheckedOnBothSides) {
  EXPECT_EQ(Launch(CopyAt, {}, &device_, Floats(4), 4), absl::OkStatus());
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(4), 2), "misaligned", "'copy'");
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(4), 8), "out of bounds", "'copy'");
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(3), 4), "out of bounds", "allocation 'x'");
  ExpectFault(Launch(CopyAt, {}, &device_, Floats(8) + 1, 4), "misaligned", "allocation 'x'");
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
