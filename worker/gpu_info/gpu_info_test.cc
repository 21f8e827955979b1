#include "worker/gpu_info/gpu_info.h"

#include <dlfcn.h>

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

// Paths of the libraries that stand in for NVML; CMake gives them.
#ifndef FAKE_NVML
#define FAKE_NVML ""
#define FAKE_NVML_OLD_LIBRARY ""
#define FAKE_NVML_INCOMPLETE_LIBRARY ""
#define FAKE_NVML_NO_DRIVER_LIBRARY ""
#endif

namespace sparsebalance {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(ThrottleReasonsTest, BitsHaveNamesAndUnknownOnesTheirNumber) {
  EXPECT_THAT(ThrottleReasonNames(0), IsEmpty());
  EXPECT_THAT(ThrottleReasonNames(0x1ff),
              ElementsAre("gpu_idle", "applications_clocks_setting", "sw_power_cap", "hw_slowdown",
                          "sync_boost", "sw_thermal_slowdown", "hw_thermal_slowdown",
                          "hw_power_brake_slowdown", "display_clock_setting"));
  EXPECT_THAT(ThrottleReasonNames(0x8000000000000200), ElementsAre("bit_9", "bit_63"));
}

TEST(ThrottleReasonsTest, HeatAndPowerThrottleSettingsAndIdlenessDoNot) {
  const auto throttled = [](uint64_t bits) {
    GpuFacts facts;
    facts.throttle_reasons = ThrottleReasonNames(bits);
    return IsThrottled(facts);
  };
  for (const uint64_t bit : {0x4, 0x8, 0x20, 0x40, 0x80}) EXPECT_TRUE(throttled(bit)) << bit;
  for (const uint64_t bit : {0x0, 0x1, 0x2, 0x10, 0x100, 0x200})
    EXPECT_FALSE(throttled(bit)) << bit;
}

TEST(GpuInfoTest, MachineWithoutTheDriverIsNotFoundAndToldWhy) {
  const absl::Status status = GpuInfo::Load("libno-such-nvml.so.1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("libno-such-nvml.so.1"), HasSubstr("comes with the NVIDIA driver")));
}

TEST(GpuInfoTest, ReadsWhatTheLibraryTells) {
  const auto info = GpuInfo::Load(FAKE_NVML);
  ASSERT_TRUE(info.ok()) << info.status();
  EXPECT_EQ((*info)->count(), 3);
  const absl::StatusOr<GpuFacts> facts = (*info)->Read(0);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->name, "Made-up GPU 1");
  EXPECT_EQ(facts->uuid, "GPU-1-0000");
  EXPECT_EQ(facts->memory_total_bytes, uint64_t{1} << 33);
  EXPECT_EQ(facts->memory_used_bytes, 4096U);
  EXPECT_THAT(facts->throttle_reasons,
              ElementsAre("sw_power_cap", "hw_thermal_slowdown", "bit_12"));
  EXPECT_TRUE(IsThrottled(*facts));
}

TEST(GpuInfoTest, GpuIsFoundByThePciAddressThatCudaKnowsItBy) {
  const auto info = GpuInfo::Load(FAKE_NVML);
  ASSERT_TRUE(info.ok()) << info.status();
  const absl::StatusOr<GpuFacts> facts = (*info)->ReadByPciBusId("0000:3b:00.0");
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_EQ(facts->uuid, "GPU-2-0000");
  // This one does not support the question.
  EXPECT_THAT(facts->throttle_reasons, IsEmpty());
  const absl::Status status = (*info)->ReadByPciBusId("0000:ff:00.0").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(std::string(status.message()), HasSubstr("0000:ff:00.0"));
}

TEST(GpuInfoTest, ErrorsCarryTheCallAndTheLibrarysWords) {
  const auto info = GpuInfo::Load(FAKE_NVML);
  ASSERT_TRUE(info.ok()) << info.status();
  const absl::Status lost = (*info)->Read(2).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(lost.message()),
              HasSubstr("nvmlDeviceGetName: NVML error 15, GPU is lost"));
  for (const int index : {-1, 3}) {
    EXPECT_EQ((*info)->Read(index).status().code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(GpuInfoTest, DriverThatIsNotLoadedIsSaid) {
  const absl::Status status = GpuInfo::Load(FAKE_NVML_NO_DRIVER_LIBRARY).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("NVML error 9, Driver Not Loaded"), HasSubstr("nvidia-smi")));
}

TEST(GpuInfoTest, LibraryWithoutAFunctionIsRefusedByItsName) {
  const absl::Status status = GpuInfo::Load(FAKE_NVML_INCOMPLETE_LIBRARY).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("has no nvmlDeviceGetMemoryInfo"));
}

TEST(GpuInfoTest, OlderDriverAnswersUnderTheOldName) {
  const auto info = GpuInfo::Load(FAKE_NVML_OLD_LIBRARY);
  ASSERT_TRUE(info.ok()) << info.status();
  const absl::StatusOr<GpuFacts> facts = (*info)->Read(0);
  ASSERT_TRUE(facts.ok()) << facts.status();
  EXPECT_THAT(facts->throttle_reasons, testing::Contains("hw_thermal_slowdown"));
}

TEST(GpuInfoTest, LibraryIsShutDownWhenDone) {
  void* const handle = dlopen(FAKE_NVML, RTLD_NOW);
  ASSERT_NE(handle, nullptr);
  const auto live = reinterpret_cast<int (*)()>(dlsym(handle, "fakeNvmlLive"));
  ASSERT_NE(live, nullptr);
  {
    const auto info = GpuInfo::Load(FAKE_NVML);
    ASSERT_TRUE(info.ok()) << info.status();
    EXPECT_EQ(live(), 1);
  }
  EXPECT_EQ(live(), 0);
  dlclose(handle);
}

// On a machine with a GPU: the driver's own library.
TEST(GpuInfoTest, ReadsThisMachinesGpuWhereThereIsOne) {
  const auto info = GpuInfo::Load();
  if (absl::IsNotFound(info.status()) || absl::IsFailedPrecondition(info.status())) {
    GTEST_SKIP() << info.status();
  }
  ASSERT_TRUE(info.ok()) << info.status();
  for (int i = 0; i < (*info)->count(); ++i) {
    const absl::StatusOr<GpuFacts> facts = (*info)->Read(i);
    ASSERT_TRUE(facts.ok()) << facts.status();
    EXPECT_THAT(facts->uuid, testing::StartsWith("GPU-"));
    EXPECT_GT(facts->memory_total_bytes, uint64_t{1} << 30);
    EXPECT_LE(facts->memory_used_bytes, facts->memory_total_bytes);
  }
}

}  // namespace
}  // namespace sparsebalance
