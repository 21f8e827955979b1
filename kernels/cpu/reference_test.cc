// The reference's gradients against differences of its own forward: with it right, the kernels
// need only agree with the reference.
#include "kernels/cpu/reference.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/test_util.h"

namespace sparsebalance::kernels::reference {
namespace {

TEST(ReferenceTest, MatmulMultipliesByHand) {
  const Tensor a = {1, 2, 3, 4, 5, 6};     // [2, 3]
  const Tensor b = {7, 8, 9, 10, 11, 12};  // [3, 2]
  const Tensor expected = {58, 64, 139, 154};
  EXPECT_EQ(Matmul(2, 2, 3, a, false, b, false), expected);
  EXPECT_EQ(Matmul(2, 2, 3, {1, 4, 2, 5, 3, 6}, true, {7, 9, 11, 8, 10, 12}, true), expected);
}

TEST(ReferenceTest, EmbeddingGradientMatchesDifferences) {
  const std::vector<int32_t> ids = {2, 0, 2};
  const Tensor table = RandomTensor(3 * 4, 1);
  const Tensor g = RandomTensor(3 * 4, 2);
  ExpectGradient([&](const Tensor& t) { return Dot(EmbeddingForward(4, ids, t), g); }, table,
                 EmbeddingBackward(3, 4, ids, g), "table");
}

TEST(ReferenceTest, RmsNormGradientMatchesDifferences) {
  const Tensor x = RandomTensor(3 * 5, 1);
  const Tensor w = RandomTensor(5, 2);
  const Tensor g = RandomTensor(3 * 5, 3);
  const RmsNormGrads grads = RmsNormBackward(5, 1e-3, x, w, g);
  ExpectGradient([&](const Tensor& t) { return Dot(RmsNormForward(5, 1e-3, t, w), g); }, x, grads.x,
                 "x");
  ExpectGradient([&](const Tensor& t) { return Dot(RmsNormForward(5, 1e-3, x, t), g); }, w,
                 grads.weight, "weight");
}

TEST(ReferenceTest, RopeGradientIsTheInverseRotation) {
  const std::vector<int32_t> positions = {0, 3, 700};
  const Tensor x = RandomTensor(3 * 2 * 6, 1);
  const Tensor g = RandomTensor(3 * 2 * 6, 2);
  ExpectGradient([&](const Tensor& t) { return Dot(Rope(2, 6, 100.0, positions, t, false), g); }, x,
                 Rope(2, 6, 100.0, positions, g, true), "x");
}

TEST(ReferenceTest, SwiGluGradientMatchesDifferences) {
  const Tensor x = RandomTensor(3 * 2 * 4, 1, 3.0);
  const Tensor g = RandomTensor(3 * 4, 2);
  ExpectGradient([&](const Tensor& t) { return Dot(SwiGluForward(4, t), g); }, x,
                 SwiGluBackward(4, x, g), "gate_up");
}

TEST(ReferenceTest, CrossEntropyGradientMatchesDifferences) {
  const Tensor x = RandomTensor(4 * 7, 1, 4.0);
  const std::vector<int32_t> targets = {0, 6, 3, 99};
  const Tensor weights = {1, 1, 0.5, 0};
  ExpectGradient([&](const Tensor& t) { return CrossEntropyLoss(7, t, targets, weights); }, x,
                 CrossEntropyGrad(7, x, targets, weights), "logits");
}

TEST(ReferenceTest, AttentionGradientMatchesDifferences) {
  const Heads heads{4, 2, 6};
  const PackedBlocks blocks = *MakePackedBlocks({0, 11, 12, 17}, 3);
  const Tensor q = RandomTensor(17 * 4 * 6, 1, 2.0);
  const Tensor k = RandomTensor(17 * 2 * 6, 2, 2.0);
  const Tensor v = RandomTensor(17 * 2 * 6, 3);
  const Tensor g = RandomTensor(17 * 4 * 6, 4);
  const Selection selection = SelectBlocks(heads, blocks, q, k, {2, 1, 3});
  const AttentionGrads grads = AttentionBackward(heads, blocks, selection, q, k, v, g);
  const auto loss = [&](const Tensor& a, const Tensor& b, const Tensor& c) {
    return Dot(AttentionForward(heads, blocks, selection, a, b, c).out, g);
  };
  ExpectGradient([&](const Tensor& t) { return loss(t, k, v); }, q, grads.q, "q");
  ExpectGradient([&](const Tensor& t) { return loss(q, t, v); }, k, grads.k, "k");
  ExpectGradient([&](const Tensor& t) { return loss(q, k, t); }, v, grads.v, "v");
}

TEST(ReferenceTest, SelectionBreaksTiesByTheLowerBlockAndNeverTakesTheOwn) {
  const Heads heads{1, 1, 2};
  const PackedBlocks blocks = *MakePackedBlocks({0, 8}, 2);
  const Tensor same(8 * 2, 1.0);
  const Selection selection = SelectBlocks(heads, blocks, same, same, {3});
  EXPECT_EQ(selection[0][7], (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(selection[0][3], (std::vector<int32_t>{0}));
  EXPECT_TRUE(selection[0][1].empty());
}

}  // namespace
}  // namespace sparsebalance::kernels::reference
