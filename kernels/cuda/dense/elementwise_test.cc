#include "kernels/cuda/dense/elementwise.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cuda/dense/test_util.h"
#include "kernels/dropout_mask.h"

namespace sparsebalance::kernels::cuda {
namespace {

TYPED_TEST_SUITE(TypedKernelTest, ActivationTypes, TypeNames);

// `shift`: where in memory the elements begin, so that vectors fit and do not.
template <typename T>
void ExpectRightElements(int64_t count, int64_t shift) {
  const std::string what = absl::StrCat(count, " elements from ", shift);
  const Tensor a = RandomOf<T>(count + shift, 1);
  const Tensor b = RandomOf<T>(count + shift, 2);
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto left = Send<T>(device, a, "a");
    const auto right = Send<T>(device, b, "b");
    const auto filled = Send<T>(device, a, "filled");
    SB_EXPECT_OK(LaunchAdd<T>(&device, count, left + shift, right + shift, left + shift));
    SB_EXPECT_OK(LaunchScale<T>(&device, count, -0.5F, right + shift));
    SB_EXPECT_OK(LaunchFill<T>(&device, count, 3.0F, filled + shift));
    return {Fetch(device, left, count + shift), Fetch(device, right, count + shift),
            Fetch(device, filled, count + shift)};
  });
  Tensor sum = a;
  Tensor scaled = b;
  Tensor filled = a;
  for (int64_t i = shift; i < count + shift; ++i) {
    sum[i] = a[i] + b[i];
    scaled[i] = -0.5 * b[i];
    filled[i] = 3.0;
  }
  ExpectNear<T>(results[0], sum, what + ", sum");
  ExpectNear<T>(results[1], scaled, what + ", scaled");
  ExpectNear<T>(results[2], filled, what + ", filled");
}

TYPED_TEST(TypedKernelTest, AddScaleAndFillReachEveryElementAndNoOther) {
  for (const int64_t count : {0, 1, 3, 8, 255, 2049, 5000}) {
    for (const int64_t shift : {0, 1, 4, 8}) ExpectRightElements<TypeParam>(count, shift);
  }
}

TEST(ElementwiseTest, MoreElementsThanThreadsInTheLargestGridAreAllDone) {
  ExpectRightElements<float>(2048 * 256 + 77, 1);
}

TEST(ElementwiseTest, FloatsAreRoundedToBf16AndComeBackAsTheyAre) {
  for (const int64_t count : {0, 1, 3, 8, 255, 2049}) {
    for (const int64_t shift : {0, 1, 8}) {
      const std::string what = absl::StrCat(count, " elements from ", shift);
      const Tensor x = RandomOf<float>(count + shift, 3);
      const Results results = InEveryOrder(what, [&](Device& device) -> Results {
        const auto from = Send<float>(device, x, "from");
        const auto rounded = Send<Bf16>(device, Tensor(x.size(), 7.0), "rounded");
        const auto back = Send<float>(device, Tensor(x.size(), 7.0), "back");
        SB_EXPECT_OK((LaunchConvert<float, Bf16>(&device, count, from + shift, rounded + shift)));
        SB_EXPECT_OK((LaunchConvert<Bf16, float>(&device, count, rounded + shift, back + shift)));
        return {Fetch(device, rounded, count + shift), Fetch(device, back, count + shift)};
      });
      for (int64_t i = 0; i < count + shift; ++i) {
        const float expected =
            i < shift ? 7.0F : static_cast<float>(Bf16(static_cast<float>(x[i])));
        EXPECT_EQ(results[0][i], expected) << what << " at " << i;
        EXPECT_EQ(results[1][i], expected) << what << " at " << i;
      }
    }
  }
}

// What the CPU's backend leaves.
std::vector<float> CpuDropout(const DropoutShape& shape, const std::vector<uint64_t>& keys,
                              const Tensor& x, const Tensor& y) {
  auto backend = TestBackend();
  DeviceArray<float> out = ToDevice(backend.get(), y);
  SB_EXPECT_OK(backend->Dropout(shape, ToDevice(backend.get(), keys).span(),
                                ToDevice(backend.get(), x).span(), out.span()));
  return ToHost(backend.get(), out);
}

std::vector<uint64_t> SomeKeys(int64_t rows) {
  std::vector<uint64_t> keys(rows);
  for (int64_t r = 0; r < rows; ++r) keys[r] = MixBits(r + 17);
  return keys;
}

TYPED_TEST(TypedKernelTest, DropoutKeepsExactlyWhatTheCpuKeeps) {
  using T = TypeParam;
  for (const int64_t rows : kTestRows) {
    for (const int64_t columns : kTestColumns) {
      for (const bool accumulate : {false, true}) {
        const float rate = columns % 2 == 0 ? 0.1F : 0.5F;
        const DropoutShape shape{rows, columns, rate, 7, accumulate};
        const std::string what = absl::StrCat(rows, "x", columns, accumulate ? ", added" : "");
        const int64_t count = rows * columns;
        const std::vector<uint64_t> keys = SomeKeys(rows);
        // Nowhere 0, so that 0 is what is dropped.
        const Tensor x = Plus(RandomOf<T>(count, 1, 0.0), Tensor(count, 1.5));
        const Tensor y = RandomOf<T>(count, 2);
        const Results results = InEveryOrder(what, [&](Device& device) -> Results {
          const auto in = Send<T>(device, x, "x");
          const auto out = Send<T>(device, y, "y");
          SB_EXPECT_OK(
              LaunchDropout<T>(&device, shape, emulation::Upload(device, keys, "keys"), in, out));
          return {Fetch(device, out, count)};
        });
        const std::vector<float> cpu = CpuDropout(shape, keys, x, y);
        ExpectNear<T>(results[0], Tensor(cpu.begin(), cpu.end()), what);
        for (int64_t i = 0; i < count; ++i) {
          const float none = accumulate ? static_cast<float>(y[i]) : 0.0F;
          ASSERT_EQ(results[0][i] == none, cpu[i] == none) << what << " at " << i;
        }
      }
    }
  }
}

TEST(ElementwiseTest, DropoutInPlaceHasTheSameBitsAsTheCpu) {
  const DropoutShape shape{65, 130, 0.25F, 3};
  const std::vector<uint64_t> keys = SomeKeys(65);
  const Tensor x = RandomOf<float>(65 * 130, 1);
  Device device;
  const auto in = Send<float>(device, x, "x");
  SB_EXPECT_OK(
      LaunchDropout<float>(&device, shape, emulation::Upload(device, keys, "keys"), in, in));
  EXPECT_EQ(Fetch(device, in, 65 * 130), CpuDropout(shape, keys, x, x));
}

TEST(ElementwiseTest, ARateOfOneIsRefused) {
  Device device;
  EXPECT_EQ(LaunchDropout<float>(&device, {1, 1, 1.0F}, nullptr, nullptr, nullptr).code(),
            absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
