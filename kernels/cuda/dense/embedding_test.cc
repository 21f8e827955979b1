#include "kernels/cuda/dense/embedding.h"

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "kernels/cpu/reference.h"
#include "kernels/cuda/dense/test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

// Some ids often, many once, some never.
std::vector<int32_t> SomeIds(int64_t tokens, int64_t table_rows) {
  std::vector<int32_t> ids(tokens);
  for (int64_t t = 0; t < tokens; ++t) {
    ids[t] = static_cast<int32_t>(t % 3 == 0 ? t % 2 : t * 7919 % table_rows);
  }
  return ids;
}

// The sums of the CPU's backend, which adds in the order of tokens.
std::vector<float> CpuGradient(int64_t columns, const std::vector<int32_t>& ids,
                               const Tensor& out_grad, const Tensor& table_grad) {
  auto backend = TestBackend();
  DeviceArray<float> sums = ToDevice(backend.get(), table_grad);
  SB_EXPECT_OK(backend->EmbeddingBackward(columns, ToDevice(backend.get(), ids).span(),
                                          ToDevice(backend.get(), out_grad).span(), sums.span()));
  return ToHost(backend.get(), sums);
}

template <typename T, typename W>
void ExpectRightRows(int64_t tokens, int64_t columns, int64_t table_rows) {
  const std::string what = absl::StrCat(tokens, " tokens, ", table_rows, "x", columns);
  const std::vector<int32_t> ids = SomeIds(tokens, table_rows);
  const Tensor table = RandomOf<W>(table_rows * columns, 1);
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto out = Fresh<T>(device, tokens * columns, "out");
    const auto bad = emulation::Upload(device, std::vector<int32_t>{0}, "bad_ids");
    SB_EXPECT_OK((LaunchEmbeddingForward<T, W>(&device, {tokens, columns, table_rows},
                                               emulation::Upload(device, ids, "ids"),
                                               Send<W>(device, table, "table"), out, bad)));
    EXPECT_EQ(emulation::Download(device, bad, 1)[0], 0);
    return {Fetch(device, out, tokens * columns)};
  });
  ExpectNear<T>(results[0], reference::EmbeddingForward(columns, ids, table), what);
}

template <typename T>
void ExpectRightGradient(int64_t tokens, int64_t columns, int64_t table_rows) {
  const std::string what = absl::StrCat(tokens, " tokens, ", table_rows, "x", columns);
  const std::vector<int32_t> ids = SomeIds(tokens, table_rows);
  const EmbeddingShape shape{tokens, columns, table_rows};
  const Tensor out_grad = RandomOf<T>(tokens * columns, 2);
  const Tensor table_grad = RandomOf<float>(table_rows * columns, 3);
  const Results results = InEveryOrder(what, [&](Device& device) -> Results {
    const auto sums = Send<float>(device, table_grad, "table_grad");
    SB_EXPECT_OK(
        LaunchEmbeddingBackward<T>(&device, shape, emulation::Upload(device, ids, "ids"),
                                   Send<T>(device, out_grad, "out_grad"), sums, nullptr,
                                   Scratch<int32_t>(device, EmbeddingBackwardScratch(shape))));
    return {Fetch(device, sums, table_rows * columns)};
  });
  ExpectNear<float>(
      results[0],
      Plus(table_grad, reference::EmbeddingBackward(table_rows, columns, ids, out_grad)), what);
  EXPECT_EQ(results[0], CpuGradient(columns, ids, out_grad, table_grad))
      << what << ": other bits than the CPU's";
}

TEST(EmbeddingTest, ForwardTakesTheRowsOfTheTable) {
  for (const int64_t tokens : kTestRows) {
    for (const int64_t columns : kTestColumns) {
      ExpectRightRows<float, float>(tokens, columns, 20);
      ExpectRightRows<Bf16, float>(tokens, columns, 20);
      ExpectRightRows<Bf16, Bf16>(tokens, columns, 20);
    }
  }
}

TEST(EmbeddingTest, TheGradientAddsInTheOrderOfTokensAsTheCpuDoes) {
  for (const int64_t tokens : kTestRows) {
    for (const int64_t columns : kTestColumns) {
      ExpectRightGradient<float>(tokens, columns, 20);
      ExpectRightGradient<Bf16>(tokens, columns, 20);
    }
  }
}

TEST(EmbeddingTest, TablesLargerThanTheLargestGridAndThanAStepOfTheScanAreRight) {
  ExpectRightGradient<float>(700, 3, 50000);
  ExpectRightRows<float, float>(17000, 1, 300);
}

TEST(EmbeddingTest, MoreColumnsThanTheLargestGridTakesAtOnceAreAllAdded) {
  ExpectRightGradient<float>(3, 64 * 32 + 5, 4);
}

TEST(EmbeddingTest, IdsOutsideOfTheTableAreCountedAndGiveNothing) {
  Device device;
  const auto ids = emulation::Upload(device, std::vector<int32_t>{1, -1, 2, 1}, "ids");
  const auto bad = emulation::Upload(device, std::vector<int32_t>{0}, "bad_ids");
  const EmbeddingShape shape{4, 1, 2};
  const auto out = Fresh<float>(device, 4, "out");
  SB_EXPECT_OK((LaunchEmbeddingForward<float, float>(
      &device, shape, ids, Send<float>(device, {3, 4}, "table"), out, bad)));
  EXPECT_EQ(Fetch(device, out, 4), (std::vector<float>{4, 0, 0, 4}));
  EXPECT_EQ(emulation::Download(device, bad, 1)[0], 2);
  const auto grad = Send<float>(device, {10, 20}, "table_grad");
  SB_EXPECT_OK(LaunchEmbeddingBackward<float>(
      &device, shape, ids, Send<float>(device, {1, 2, 4, 8}, "out_grad"), grad, bad,
      Scratch<int32_t>(device, EmbeddingBackwardScratch(shape))));
  EXPECT_EQ(Fetch(device, grad, 2), (std::vector<float>{10, 29}));
  EXPECT_EQ(emulation::Download(device, bad, 1)[0], 4);
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
