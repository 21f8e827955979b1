#include "worker/gpu_info/peak_flops.h"

#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

TEST(PeakFlopsTest, DevicesAreKnownByTheirDriversNames) {
  EXPECT_EQ(PeakBf16Flops("NVIDIA H100 80GB HBM3"), 989e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA H100 PCIe"), 756e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA H200"), 989e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA GH200 480GB"), 990e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA A100-SXM4-80GB"), 312e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA A10"), 125e12);
  EXPECT_EQ(PeakBf16Flops("NVIDIA A10G"), 70e12);
}

TEST(PeakFlopsTest, NothingIsSaidOfOthers) {
  EXPECT_EQ(PeakBf16Flops("NVIDIA L40"), std::nullopt);
  EXPECT_EQ(PeakBf16Flops("NVIDIA GeForce RTX 4090"), std::nullopt);
  EXPECT_EQ(PeakBf16Flops(""), std::nullopt);
}

}  // namespace
}  // namespace sparsebalance
