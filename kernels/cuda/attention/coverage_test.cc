#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/attention/router.h"
#include "kernels/cuda/attention/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

using emulation::Order;
using reference::Heads;
using reference::Tensor;

class CoverageTest : public testing::TestWithParam<Order> {
 protected:
  // Curves by the kernels, the reference and the CPU backend.
  template <typename T>
  void Check(const Heads& heads, const PackedBlocks& blocks, int sample_stride,
             int64_t shared_limit = kSharedSm90, bool ties = false) {
    SCOPED_TRACE(absl::StrCat(blocks.tokens(), " tokens, blocks of ", blocks.block_tokens,
                              ", every ", sample_stride, "-th"));
    const auto values = [&](int64_t heads_of, uint32_t seed) {
      const int64_t count = blocks.tokens() * heads_of * heads.head_dim;
      return ties ? WholeNumbers(count, seed, 1) : Rounded<T>(RandomTensor(count, seed, 3.0));
    };
    const Tensor q = values(heads.num_heads, 31);
    const Tensor k = values(heads.num_kv_heads, 32);
    const AttentionShape shape = Contiguous(heads);
    const DeviceBlocks on_device = UploadBlocks(device_, blocks);
    const int64_t means_size = heads.num_kv_heads * blocks.blocks() * heads.head_dim;
    const auto means = device_.Allocate<float>(means_size, "means").value();
    SB_ASSERT_OK(
        LaunchBlockMeans<T>(&device_, shape, on_device, UploadAs<T>(device_, k, "k"), means));
    const int grid = CoverageGridSize(MostBlocks(blocks));
    const auto curves = device_.Allocate<double>(blocks.sequences() * grid, "curves").value();
    SB_ASSERT_OK(LaunchCoverageCurves<T>(
        &device_, shape, on_device, shared_limit, UploadAs<T>(device_, q, "q"), means,
        sample_stride, curves,
        Scratch(device_, CoverageScratchBytes(shape, on_device, shared_limit))));
    const std::vector<double> got = Download(device_, curves, blocks.sequences() * grid);

    const std::unique_ptr<Backend> cpu = TestBackend();
    const auto layout = *cpu->CreateLayout(blocks);
    const DeviceArray<float> cpu_means = ToDevice(cpu.get(), Download(device_, means, means_size));
    const DeviceArray<float> cpu_q = ToDevice(cpu.get(), q);
    const std::vector<std::vector<double>> from_cpu =
        *cpu->CoverageCurves(shape, *layout, cpu_q.span(), cpu_means.span(), sample_stride);
    for (int64_t s = 0; s < blocks.sequences(); ++s) {
      const std::vector<double> expected =
          reference::CoverageCurve(heads, blocks, q, k, s, sample_stride);
      for (int g = 0; g < grid; ++g) {
        const double value = got[s * grid + g];
        if (g >= static_cast<int>(expected.size())) {
          EXPECT_EQ(value, 1.0);
          continue;
        }
        EXPECT_NEAR(value, expected[g], 2e-6) << "sequence " << s << ", point " << g;
        EXPECT_NEAR(value, from_cpu[s][g], 2e-6) << "sequence " << s << ", point " << g;
      }
    }
  }

  emulation::Device device_{{.order = GetParam(), .seed = 19}};
};

INSTANTIATE_TEST_SUITE_P(Orders, CoverageTest, testing::ValuesIn(emulation::kAllOrders),
                         emulation::OrderName);

TEST(CoverageGridTest, TheDevicesGridIsTheHosts) {
  for (int64_t blocks = 1; blocks < 300; ++blocks) {
    const std::vector<int64_t> grid = CoverageGrid(blocks);
    ASSERT_EQ(CoverageGridSize(blocks), static_cast<int>(grid.size())) << blocks;
    for (size_t i = 0; i + 1 < grid.size(); ++i) {
      EXPECT_EQ(CoverageGridPoint(static_cast<int>(i)), grid[i]);
    }
    EXPECT_GE(CoverageGridPoint(static_cast<int>(grid.size()) - 1), blocks);
  }
  EXPECT_LE(CoverageGridSize((int64_t{1} << 31) - 1), 64);
}

TEST_P(CoverageTest, CurvesAreTheReferencesForOddSizes) {
  for (const int64_t length : {1, 16, 17, 33, 129, 257}) {
    Check<float>({1, 1, 64}, Pack({length}, 16), 5);
  }
  Check<float>({4, 1, 64}, Pack({257}, 64), 1);
  Check<Bf16>({2, 2, 128}, Pack({300}, 128), 3);
}

TEST_P(CoverageTest, EverySequenceOfABatchHasItsOwnCurve) {
  Check<float>({4, 1, 64}, Pack({1, 257, 16, 40}, 16), 7);
  Check<Bf16>({4, 4, 64}, Pack({90, 400}, 16), 100);
}

TEST_P(CoverageTest, CurvesDoNotDependOnWhereScoresAreKept) {
  Check<float>({1, 1, 8}, Pack({130, 30}, 1), 9);
  Check<float>({1, 1, 8}, Pack({130, 30}, 1), 9, /*shared_limit=*/int64_t{24} << 10);
}

TEST_P(CoverageTest, EqualScoresShareTheirMass) {
  Check<float>({2, 1, 8}, Pack({100}, 2), 3, kSharedSm90, /*ties=*/true);
}

TEST_P(CoverageTest, AStrideBelowOneIsRefused) {
  EXPECT_EQ(LaunchCoverageCurves<float>(&device_, Contiguous({1, 1, 8}),
                                        UploadBlocks(device_, Pack({4}, 16)), kSharedSm90, nullptr,
                                        nullptr, 0, nullptr, nullptr)
                .code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_P(CoverageTest, BudgetsAreRealizedAsTheHostRealizesThem) {
  // More sequences than a thread block has threads.
  std::vector<int64_t> lengths;
  for (int64_t s = 0; s < 150; ++s) lengths.push_back(1 + s * 37 % 120);
  const PackedBlocks blocks = Pack(lengths, 4);
  const int grid = CoverageGridSize(MostBlocks(blocks));
  std::mt19937 generator(7);
  std::vector<double> curves;
  std::vector<int32_t> planned;
  std::vector<int32_t> base;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    std::vector<double> curve(grid);
    for (double& value : curve) value = static_cast<double>(generator() % 1000) / 1000;
    std::sort(curve.begin(), curve.end());
    curves.insert(curves.end(), curve.begin(), curve.end());
    planned.push_back(static_cast<int32_t>(1 + generator() % 40));
    base.push_back(static_cast<int32_t>(1 + generator() % 40));
  }
  for (const double guard : {0.0, 0.2, 1.0}) {
    const auto realized = device_.Allocate<int32_t>(blocks.sequences(), "realized").value();
    SB_ASSERT_OK(LaunchRealizedBudgets(
        &device_, UploadBlocks(device_, blocks), Upload(device_, curves, "curves"),
        Upload(device_, planned, "planned"), Upload(device_, base, "base"), guard, realized));
    const std::vector<int32_t> got = Download(device_, realized, blocks.sequences());
    for (int64_t s = 0; s < blocks.sequences(); ++s) {
      EXPECT_EQ(got[s], RealizedBudget(blocks.SequenceBlocks(s), curves.data() + s * grid,
                                       planned[s], base[s], guard))
          << "sequence " << s << ", guard " << guard;
    }
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
