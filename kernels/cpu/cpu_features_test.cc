#include "kernels/cpu/cpu_features.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::kernels::cpu {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(CpuFeaturesTest, ThisBuildRunsOnThisMachine) {
  EXPECT_TRUE(CheckCpuFeatures(kCompiledFeatures, MachineFeatures()).ok());
}

TEST(CpuFeaturesTest, NoBitIsWithoutAName) {
  EXPECT_EQ((kCompiledFeatures | MachineFeatures()) >> CpuFeatureNames().size(), 0u);
}

TEST(CpuFeaturesTest, AMachineThatLacksWhatTheKernelsUseIsToldWhat) {
  const auto& names = CpuFeatureNames();
  if (names.empty()) GTEST_SKIP() << "this architecture has no optional features";
  const auto bit = [&](const std::string& name) {
    return 1u << (std::find(names.begin(), names.end(), name) - names.begin());
  };
  const absl::Status status = CheckCpuFeatures(bit("avx2") | bit("avx512f"), bit("avx2"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()), HasSubstr("avx512f"));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("avx2")));
  EXPECT_TRUE(CheckCpuFeatures(bit("avx2"), bit("avx2") | bit("avx512f")).ok());
}

}  // namespace
}  // namespace sparsebalance::kernels::cpu
