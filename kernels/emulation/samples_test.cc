// Kernels that are right give the right results in every order.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numeric>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/emulation/device.h"
#include "kernels/emulation/sample_kernels.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

using cuda::Bf16;

class SamplesTest : public testing::TestWithParam<Order> {
 protected:
  Device device_{{.order = GetParam(), .seed = 7}};
};

INSTANTIATE_TEST_SUITE_P(Orders, SamplesTest, testing::ValuesIn(kAllOrders), OrderName);

TEST_P(SamplesTest, ABlockAddsItsElementsThroughSharedMemory) {
  for (const int threads : {32, 256, 1024}) {
    const int64_t n = 2500;
    std::vector<float> x(n);
    std::iota(x.begin(), x.end(), 1.0F);
    const int64_t blocks = (n + threads - 1) / threads;
    const auto sums = device_.Allocate<float>(blocks, "sums").value();
    ASSERT_EQ(cuda::LaunchBlockSums(&device_, Upload(device_, x, "x"), n, threads, sums),
              absl::OkStatus());
    const std::vector<float> got = Download(device_, sums, blocks);
    for (int64_t b = 0; b < blocks; ++b) {
      float expected = 0;
      for (int64_t i = b * threads; i < std::min(n, (b + 1) * threads); ++i) expected += x[i];
      EXPECT_EQ(got[b], expected) << "block " << b << " of " << threads << " threads";
    }
  }
}

TEST_P(SamplesTest, AWarpScansByShuffles) {
  const int64_t n = 333;
  std::vector<int32_t> x(n);
  for (int64_t i = 0; i < n; ++i) x[i] = static_cast<int32_t>(i * i % 17) - 5;
  const auto y = device_.Allocate<int32_t>(n, "y").value();
  ASSERT_EQ(cuda::LaunchWarpScan(&device_, Upload(device_, x, "x"), n, y), absl::OkStatus());
  const std::vector<int32_t> got = Download(device_, y, n);
  int32_t sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    sum = i % 32 == 0 ? x[i] : sum + x[i];
    EXPECT_EQ(got[i], sum) << i;
  }
}

TEST_P(SamplesTest, AtomicsCountAddAndTakeTheLargest) {
  const int64_t n = 1000;
  std::vector<int32_t> x(n);
  std::vector<int32_t> expected(64, 0);
  for (int64_t i = 0; i < n; ++i) {
    x[i] = static_cast<int32_t>(i * 7 % 61);
    ++expected[x[i]];
  }
  const auto counts = Upload(device_, std::vector<int32_t>(64, 0), "counts");
  const auto total = Upload(device_, std::vector<float>{0}, "total");
  const auto largest = Upload(device_, std::vector<int32_t>{-1}, "largest");
  ASSERT_EQ(cuda::LaunchHistogram(&device_, Upload(device_, x, "x"), n, counts, total, largest),
            absl::OkStatus());
  EXPECT_EQ(Download(device_, counts, 64), expected);
  // All partial sums are whole numbers below 2^24, so that their order does not matter.
  EXPECT_EQ(Download(device_, total, 1)[0],
            static_cast<float>(std::accumulate(x.begin(), x.end(), 0)));
  EXPECT_EQ(Download(device_, largest, 1)[0], 60);
}

TEST_P(SamplesTest, ADoubleBufferedCopyReadsWhatHasArrived) {
  for (const int64_t n : {1, 255, 256, 257, 1030}) {
    std::vector<float> x(n);
    std::iota(x.begin(), x.end(), 1.0F);
    const auto y = device_.Allocate<float>(n, "y").value();
    ASSERT_EQ(cuda::LaunchBufferedDouble(&device_, Upload(device_, x, "x"), n, y),
              absl::OkStatus());
    for (float& value : x) value *= 2;
    EXPECT_EQ(Download(device_, y, n), x);
  }
}

TEST_P(SamplesTest, FragmentsMultiplyAsInDoublesWhicheverSideIsTransposed) {
  for (const bool transposed_a : {false, true}) {
    for (const bool transposed_b : {false, true}) {
      for (uint32_t seed = 1; seed <= 5; ++seed) {
        const std::vector<Bf16> a = RandomBf16(256, seed);
        const std::vector<Bf16> b = RandomBf16(128, seed + 100);
        std::vector<float> c(128);
        for (int i = 0; i < 128; ++i) c[i] = static_cast<float>(i) / 64;
        const auto c_device = Upload(device_, c, "c");
        ASSERT_EQ(cuda::LaunchFragmentProduct(&device_, Upload(device_, a, "a"), transposed_a,
                                              Upload(device_, b, "b"), transposed_b, c_device),
                  absl::OkStatus());
        const std::vector<float> got = Download(device_, c_device, 128);
        for (int row = 0; row < 16; ++row) {
          for (int column = 0; column < 8; ++column) {
            double expected = c[row * 8 + column];
            for (int k = 0; k < 16; ++k) {
              const Bf16 left = transposed_a ? a[k * 16 + row] : a[row * 16 + k];
              const Bf16 right = transposed_b ? b[column * 16 + k] : b[k * 8 + column];
              expected += double{static_cast<float>(left)} * double{static_cast<float>(right)};
            }
            EXPECT_NEAR(got[row * 8 + column], expected, 1e-5)
                << transposed_a << transposed_b << " at " << row << ", " << column;
          }
        }
      }
    }
  }
}

TEST_P(SamplesTest, TilesMultiplyAsInDoubles) {
  const int64_t m = 128;
  const int64_t n = 64;
  const int64_t k = 96;
  const std::vector<Bf16> a = RandomBf16(m * k, 3);
  const std::vector<Bf16> b = RandomBf16(n * k, 4);
  for (const bool transposed : {false, true}) {
    const auto c = device_.Allocate<float>(m * n, "c").value();
    ASSERT_EQ(cuda::LaunchTileProduct(&device_, Upload(device_, a, "a"), Upload(device_, b, "b"),
                                      transposed, m, n, k, c),
              absl::OkStatus());
    const std::vector<float> got = Download(device_, c, m * n);
    double worst = 0;
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        double expected = 0;
        for (int64_t l = 0; l < k; ++l) {
          const Bf16 right = transposed ? b[j * k + l] : b[l * n + j];
          expected += double{static_cast<float>(a[i * k + l])} * double{static_cast<float>(right)};
        }
        worst = std::max(worst, std::abs(got[i * n + j] - expected));
      }
    }
    EXPECT_LT(worst, 1e-4) << (transposed ? "transposed" : "straight");
  }
}

TEST_P(SamplesTest, TheRestOfTheInterfaceDoesWhatItSays) {
  const auto x = Upload(device_, std::vector<float>(64, 1.0F), "x");
  const auto scratch = Upload(device_, std::vector<uint32_t>{0, 0, ~0U, 0, 0, 9, 0, 0}, "scratch");
  ASSERT_EQ(cuda::LaunchMiscellany(&device_, x, scratch), absl::OkStatus());
  EXPECT_EQ(Download(device_, x, 64), std::vector<float>(64, 3.0F));
}

TEST(Bf16Test, RoundsToNearestAndTiesToEven) {
  const auto bits = [](float value) { return Bf16(value).bits; };
  EXPECT_EQ(bits(1.0F), 0x3F80);
  EXPECT_EQ(bits(1.0F + 1.0F / 256), 0x3F80);   // halfway, down to even
  EXPECT_EQ(bits(1.0F + 3.0F / 256), 0x3F82);   // halfway, up to even
  EXPECT_EQ(bits(1.0F + 1.01F / 256), 0x3F81);  // above half
  EXPECT_EQ(bits(-2.5F), 0xC020);
  EXPECT_EQ(bits(3.4e38F), 0x7F80);  // beyond the largest: infinity
  EXPECT_EQ(bits(std::nanf("")), 0x7FFF);
  EXPECT_EQ(static_cast<float>(Bf16(-0.15625F)), -0.15625F);
  EXPECT_EQ(cuda::PackBf16(1.0F, -2.0F), 0xC0003F80U);
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
