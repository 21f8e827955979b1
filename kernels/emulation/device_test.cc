#include "kernels/emulation/device.h"

#include <array>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

using cuda::DevicePtr;
using cuda::Dim3;
using cuda::Launch;
using testing::HasSubstr;

void Nothing() {}
template <int kBytes>
void Static() {
  SB_SHARED_ARRAY(char, array, kBytes);
  if (cuda::LinearThread() == 0) array[kBytes - 1] = 1;
}

void ExpectRefused(const absl::Status& status, const char* text) {
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(text));
}

TEST(DeviceLimitsTest, ABlockHasAtMost1024Threads) {
  Device device;
  EXPECT_EQ(Launch(Nothing, {.block = {1024}}, &device), absl::OkStatus());
  EXPECT_EQ(Launch(Nothing, {.block = {16, 1, 64}}, &device), absl::OkStatus());
  ExpectRefused(Launch(Nothing, {.block = {1025}, .name = "wide"}, &device),
                "kernel 'wide': a block of [1025, 1, 1] threads");
  ExpectRefused(Launch(Nothing, {.block = {32, 33}}, &device), "1056 in all");
  ExpectRefused(Launch(Nothing, {.block = {1, 1, 65}}, &device), "[1, 1, 65]");
  ExpectRefused(Launch(Nothing, {.block = {0}}, &device), "at least one");
}

TEST(DeviceLimitsTest, AGridHasADevicesLimits) {
  Device device;
  EXPECT_EQ(Launch(Nothing, {.grid = {1, 1, 65535}}, &device), absl::OkStatus());
  ExpectRefused(Launch(Nothing, {.grid = {1, 65536}}, &device), "[1, 65536, 1]");
  ExpectRefused(Launch(Nothing, {.grid = {0x80000000U}}, &device), "2147483647");
  ExpectRefused(Launch(Nothing, {.grid = {0}}, &device), "at least one");
}

TEST(DeviceLimitsTest, SharedMemoryHasTheLimitsOfTheArchitecture) {
  Device hopper({.limits = Sm90()});
  Device ampere({.limits = Sm80()});
  EXPECT_EQ(Launch(Nothing, {.dynamic_shared_bytes = 227 << 10}, &hopper), absl::OkStatus());
  ExpectRefused(Launch(Nothing, {.dynamic_shared_bytes = (227 << 10) + 1}, &hopper), "232448");
  EXPECT_EQ(Launch(Nothing, {.dynamic_shared_bytes = 163 << 10}, &ampere), absl::OkStatus());
  ExpectRefused(Launch(Nothing, {.dynamic_shared_bytes = 164 << 10}, &ampere), "166912");
  // What a kernel declares is known when it runs.
  EXPECT_EQ(Launch(Static<49152>, {.block = {64}}, &ampere), absl::OkStatus());
  ExpectRefused(Launch(Static<49153>, {.block = {64}}, &ampere), "takes 49153 bytes of static");
  ExpectRefused(Launch(Static<40000>, {.dynamic_shared_bytes = 150 << 10}, &ampere),
                "166912 in all");
}

void WhoAmI(DevicePtr<int32_t> counts) {
  const Dim3& thread = cuda::ThreadIdx();
  const Dim3& block = cuda::BlockIdx();
  const unsigned x = block.x * cuda::BlockDim().x + thread.x;
  const unsigned y = block.y * cuda::BlockDim().y + thread.y;
  const unsigned z = block.z * cuda::BlockDim().z + thread.z;
  const unsigned width = cuda::GridDim().x * cuda::BlockDim().x;
  const unsigned height = cuda::GridDim().y * cuda::BlockDim().y;
  counts[x + width * (y + height * z)] += 1 + cuda::WarpId();
}

TEST(DeviceTest, EveryThreadOfEveryBlockRunsOnce) {
  for (const Order order : kAllOrders) {
    for (const uint64_t seed : {0, 1, 99}) {
      Device device({.order = order, .seed = seed});
      const Dim3 grid{3, 2, 2};
      const Dim3 block{5, 3, 2};  // 30 threads: one warp
      const int64_t n = int64_t{12} * 30;
      const auto counts = Upload(device, std::vector<int32_t>(n, 0), "counts");
      ASSERT_EQ(Launch(WhoAmI, {.grid = grid, .block = block}, &device, counts), absl::OkStatus());
      EXPECT_EQ(Download(device, counts, n), std::vector<int32_t>(n, 1));
    }
  }
}

TEST(DeviceTest, MemoryIsCountedAndLimited) {
  Device device({.memory_limit_bytes = 1000});
  const auto a = device.Allocate<float>(200, "a").value();
  EXPECT_EQ(device.live_bytes(), 800);
  EXPECT_EQ(device.Allocate<char>(201, "b").status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(device.Allocate<float>(-1, "c").status().code(), absl::StatusCode::kInvalidArgument);
  const auto empty = device.Allocate<float>(0, "empty").value();
  EXPECT_EQ(device.live_allocations(), 2);
  EXPECT_TRUE(device.Free(a).ok());
  EXPECT_TRUE(device.Free(empty).ok());
  EXPECT_EQ(device.live_bytes(), 0);
  EXPECT_EQ(device.live_allocations(), 0);
}

TEST(DeviceTest, CopiesStayInsideOfLiveMemory) {
  Device device;
  const auto x = device.Allocate<float>(4, "x").value();
  const std::array<float, 5> host = {1, 2, 3, 4, 5};
  std::array<float, 5> back = {};
  EXPECT_TRUE(device.CopyToDevice(host.data(), 2, x + 2).ok());
  EXPECT_TRUE(device.CopyToHost(x + 3, 1, back.data()).ok());
  EXPECT_EQ(back[0], 2);
  for (const absl::Status& status :
       {device.CopyToDevice(host.data(), 5, x), device.CopyToHost(x + 3, 2, back.data()),
        device.CopyToHost(x - 1, 1, back.data())}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kOutOfRange) << status;
  }
  ASSERT_TRUE(device.Free(x).ok());
  EXPECT_EQ(device.CopyToHost(x, 1, back.data()).code(), absl::StatusCode::kOutOfRange);
}

TEST(DeviceTest, AnAddressFindsItsAllocation) {
  Device device;
  const auto x = device.Allocate<float>(4, "x").value();
  const auto y = device.Allocate<float>(4, "y").value();
  EXPECT_EQ(device.Find(Device::Address(x) + 3).value(), x + 3);
  EXPECT_EQ(device.Find(Device::Address(y)).value(), y);
  const float local = 0;
  EXPECT_EQ(device.Find(&local).status().code(), absl::StatusCode::kNotFound);
  const float* address = Device::Address(x);
  ASSERT_TRUE(device.Free(x).ok());
  EXPECT_EQ(device.Find(address).status().code(), absl::StatusCode::kNotFound);
}

TEST(DeviceDeathTest, TheHostMayNotReadThroughADevicePointer) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  Device device;
  const auto x = Upload(device, std::vector<float>{1}, "weights");
  EXPECT_DEATH(x[0] = 2, "outside of a kernel.*allocation 'weights'");
}

TEST(DeviceTest, DevicesOfDifferentThreadsDoNotMeet) {
  std::vector<std::thread> threads;
  std::array<bool, 4> right = {};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([i, &right] {
      Device device({.order = i % 2 == 0 ? Order::kForward : Order::kShuffled});
      const auto counts = Upload(device, std::vector<int32_t>(64, i), "counts");
      const absl::Status status = Launch(WhoAmI, {.grid = {2}, .block = {32}}, &device, counts);
      right[i] = status.ok() && Download(device, counts, 64) == std::vector<int32_t>(64, i + 1);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(right, (std::array<bool, 4>{true, true, true, true}));
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
