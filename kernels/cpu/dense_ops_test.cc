// The CPU backend's dense ops against the reference, at sizes with and without partial vectors.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backend.h"
#include "kernels/cpu/reference.h"
#include "kernels/cpu/test_util.h"

namespace sparsebalance::kernels {
namespace {

using reference::Tensor;
using ::testing::HasSubstr;

Tensor Plus(const Tensor& a, const Tensor& b) {
  Tensor out(a);
  for (size_t i = 0; i < a.size(); ++i) out[i] += b[i];
  return out;
}

TEST(DenseOpsTest, MatmulMatchesTheReferenceInEveryOrientation) {
  auto backend = BackendUnderTest();
  struct Size {
    int64_t m, n, k;
  };
  for (const Size& s : {Size{1, 1, 1}, Size{3, 5, 7}, Size{17, 33, 9}, Size{600, 20, 31},
                        Size{20, 30, 2100}, Size{5, 1100, 16}}) {
    for (int flags = 0; flags < 16; ++flags) {
      const bool ta = (flags & 1) != 0;
      const bool tb = (flags & 2) != 0;
      const bool accumulate = (flags & 4) != 0;
      const bool bias = (flags & 8) != 0;
      const Tensor a = RandomTensor(s.m * s.k, 1);
      const Tensor b = RandomTensor(s.k * s.n, 2);
      const Tensor old = RandomTensor(s.m * s.n, 3);
      const Tensor shift = RandomTensor(s.n, 4);
      Tensor expected = reference::Matmul(s.m, s.n, s.k, a, ta, b, tb);
      if (accumulate) expected = Plus(expected, old);
      for (int64_t i = 0; bias && i < s.m * s.n; ++i) expected[i] += shift[i % s.n];
      DeviceArray<float> c = ToDevice(backend.get(), old);
      const DeviceArray<float> device_bias = ToDevice(backend.get(), shift);
      SB_ASSERT_OK(backend->Matmul(
          {s.m, s.n, s.k, ta, tb, accumulate}, ToDevice(backend.get(), a).span(),
          ToDevice(backend.get(), b).span(), bias ? device_bias.span() : DeviceBuffer(), c.span()));
      ExpectClose(backend.get(), c, expected,
                  absl::StrCat(s.m, "x", s.n, "x", s.k, " flags ", flags));
    }
  }
}

// `rows` x `columns` of `x`, laid out with the stride and some filler between the rows.
Tensor Spread(const Tensor& x, int64_t rows, int64_t columns, int64_t stride) {
  Tensor out((rows - 1) * stride + columns, 77.0);
  for (int64_t r = 0; r < rows; ++r) {
    std::copy_n(x.begin() + r * columns, columns, out.begin() + r * stride);
  }
  return out;
}

TEST(DenseOpsTest, MatmulOfColumnsWithinWiderRowsLeavesTheRestAlone) {
  auto backend = BackendUnderTest();
  struct Size {
    int64_t m, n, k;
  };
  // The last one's depth is summed in pieces.
  for (const Size& s : {Size{3, 5, 7}, Size{600, 20, 8}, Size{16, 40, 2100}}) {
    for (int flags = 0; flags < 8; ++flags) {
      const bool ta = (flags & 1) != 0;
      const bool tb = (flags & 2) != 0;
      const bool accumulate = (flags & 4) != 0;
      const Tensor a = RandomTensor(s.m * s.k, 1);
      const Tensor b = RandomTensor(s.k * s.n, 2);
      const Tensor old = RandomTensor(s.m * s.n, 3);
      Tensor product = reference::Matmul(s.m, s.n, s.k, a, ta, b, tb);
      if (accumulate) product = Plus(product, old);
      const int64_t a_columns = ta ? s.m : s.k;
      const int64_t b_columns = tb ? s.k : s.n;
      kernels::MatmulShape shape{s.m, s.n, s.k, ta, tb, accumulate};
      shape.a_stride = a_columns + 3;
      shape.b_stride = b_columns + 1;
      shape.c_stride = s.n + 6;
      const auto on_device = [&](const Tensor& x, int64_t rows, int64_t columns, int64_t stride) {
        return ToDevice(backend.get(), Spread(x, rows, columns, stride));
      };
      DeviceArray<float> c = on_device(old, s.m, s.n, shape.c_stride);
      SB_ASSERT_OK(backend->Matmul(
          shape, on_device(a, ta ? s.k : s.m, a_columns, shape.a_stride).span(),
          on_device(b, tb ? s.n : s.k, b_columns, shape.b_stride).span(), {}, c.span()));
      ExpectClose(backend.get(), c, Spread(product, s.m, s.n, shape.c_stride),
                  absl::StrCat(s.m, "x", s.n, "x", s.k, " flags ", flags));
    }
  }
}

TEST(DenseOpsTest, MatmulRefusesAStrideBelowTheRow) {
  auto backend = BackendUnderTest();
  const DeviceArray<float> x = ToDevice(backend.get(), Tensor(6, 1.0));
  kernels::MatmulShape shape{2, 2, 3};
  shape.a_stride = 2;
  const absl::Status status = backend->Matmul(shape, x.span(), x.span(), {}, x.span());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("a_stride is 2"));
}

std::vector<float> Dropped(kernels::Backend* backend, const kernels::DropoutShape& shape,
                           const std::vector<uint64_t>& keys, const Tensor& x, const Tensor& y) {
  const DeviceArray<uint64_t> device_keys = ToDevice(backend, keys);
  DeviceArray<float> out = ToDevice(backend, y);
  EXPECT_TRUE(
      backend->Dropout(shape, device_keys.span(), ToDevice(backend, x).span(), out.span()).ok());
  std::vector<float> host(y.size());
  EXPECT_TRUE(backend->CopyToHost(out.span(), host.data()).ok());
  return host;
}

TEST(DenseOpsTest, DropoutDropsItsShareAndScalesTheRest) {
  auto backend = BackendUnderTest();
  const int64_t rows = 300;
  const int64_t columns = 129;
  std::vector<uint64_t> keys(rows);
  for (int64_t r = 0; r < rows; ++r) keys[r] = 1000 + r;
  const Tensor ones(rows * columns, 1.0);
  const Tensor zeros(rows * columns, 0.0);
  for (const float rate : {0.0F, 0.1F, 0.5F, 0.9F}) {
    const std::vector<float> y = Dropped(backend.get(), {rows, columns, rate}, keys, ones, zeros);
    double dropped = 0;
    for (const float v : y) {
      dropped += v == 0.0F ? 1 : 0;
      EXPECT_TRUE(v == 0.0F || std::abs(v * (1 - rate) - 1) < 1e-6) << v;
    }
    // Five standard deviations of a binomial share.
    EXPECT_NEAR(dropped / (rows * columns), rate,
                5 * std::sqrt(rate * (1 - rate) / (rows * columns)) + 1e-12);
  }
}

TEST(DenseOpsTest, DropoutOfARowDependsOnItsKeyAndSiteAndNotOnItsPlace) {
  auto backend = BackendUnderTest();
  const int64_t columns = 64;
  const Tensor ones(3 * columns, 1.0);
  const Tensor zeros(3 * columns, 0.0);
  const auto row = [&](const std::vector<float>& y, int64_t r) {
    return std::vector<float>(y.begin() + r * columns, y.begin() + (r + 1) * columns);
  };
  const auto y = Dropped(backend.get(), {3, columns, 0.5F, 1}, {7, 8, 9}, ones, zeros);
  const auto moved = Dropped(backend.get(), {3, columns, 0.5F, 1}, {9, 7, 8}, ones, zeros);
  const auto elsewhere = Dropped(backend.get(), {3, columns, 0.5F, 2}, {7, 8, 9}, ones, zeros);
  EXPECT_EQ(row(y, 0), row(moved, 1));
  EXPECT_EQ(row(y, 2), row(moved, 0));
  EXPECT_NE(row(y, 0), row(y, 1));
  EXPECT_NE(row(y, 0), row(elsewhere, 0));
  // Added to what is there.
  const Tensor old(3 * columns, 10.0);
  const auto added = Dropped(backend.get(), {3, columns, 0.5F, 1, true}, {7, 8, 9}, ones, old);
  for (size_t i = 0; i < y.size(); ++i) EXPECT_EQ(added[i], y[i] + 10.0F);
}

TEST(DenseOpsTest, DropoutRefusesARateOfOne) {
  auto backend = BackendUnderTest();
  const DeviceArray<uint64_t> keys = ToDevice(backend.get(), std::vector<uint64_t>{1});
  const DeviceArray<float> x = ToDevice(backend.get(), Tensor(2, 1.0));
  const absl::Status status = backend->Dropout({1, 2, 1.0F}, keys.span(), x.span(), x.span());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rate is 1"));
}

TEST(DenseOpsTest, MatmulNamesABufferThatIsTooSmall) {
  auto backend = BackendUnderTest();
  const DeviceArray<float> x = ToDevice(backend.get(), Tensor(6, 1.0));
  const absl::Status status =
      backend->Matmul({2, 2, 3}, x.span(), x.span(), {}, x.span().Slice(0, 3));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("c has 3 elements, needs 4"));
}

TEST(DenseOpsTest, EmbeddingGathersAndAddsGradientsOfRepeatedIds) {
  auto backend = BackendUnderTest();
  const std::vector<int32_t> ids = {4, 0, 4, 4, 2};
  const int64_t columns = 70;
  const Tensor table = RandomTensor(5 * columns, 1);
  const Tensor g = RandomTensor(5 * columns, 2);
  const DeviceArray<int32_t> device_ids = ToDevice(backend.get(), ids);
  DeviceArray<float> out = *backend->Allocate<float>(5 * columns);
  SB_ASSERT_OK(backend->EmbeddingForward(columns, device_ids.span(),
                                         ToDevice(backend.get(), table).span(), out.span()));
  ExpectClose(backend.get(), out, reference::EmbeddingForward(columns, ids, table), "out");
  DeviceArray<float> grad = ToDevice(backend.get(), table);
  SB_ASSERT_OK(backend->EmbeddingBackward(columns, device_ids.span(),
                                          ToDevice(backend.get(), g).span(), grad.span()));
  ExpectClose(backend.get(), grad, Plus(table, reference::EmbeddingBackward(5, columns, ids, g)),
              "grad");
}

TEST(DenseOpsTest, EmbeddingRefusesIdsOutsideTheTable) {
  auto backend = BackendUnderTest();
  const DeviceArray<float> table = ToDevice(backend.get(), Tensor(8, 0.0));
  DeviceArray<float> out = *backend->Allocate<float>(4);
  for (const int32_t id : {-1, 4}) {
    const DeviceArray<int32_t> ids = ToDevice(backend.get(), std::vector<int32_t>{0, id});
    absl::Status status = backend->EmbeddingForward(2, ids.span(), table.span(), out.span());
    if (backend->name() == "cpu") {
      EXPECT_THAT(std::string(status.message()),
                  HasSubstr(absl::StrCat("id ", id, " at position 1")));
    } else {
      EXPECT_TRUE(status.ok()) << status;
      status = backend->Synchronize();
      EXPECT_THAT(std::string(status.message()), HasSubstr("1 ids or targets"));
    }
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    SB_EXPECT_OK(backend->Synchronize());
  }
}

TEST(DenseOpsTest, RmsNormMatchesTheReference) {
  auto backend = BackendUnderTest();
  for (const int64_t columns : {1, 7, 16, 100}) {
    const int64_t rows = 530;
    const Tensor x = RandomTensor(rows * columns, 1);
    const Tensor w = RandomTensor(columns, 2);
    const Tensor g = RandomTensor(rows * columns, 3);
    const NormShape shape{rows, columns, 1e-3F};
    const double epsilon = shape.epsilon;
    const DeviceArray<float> dx = ToDevice(backend.get(), x);
    const DeviceArray<float> dw = ToDevice(backend.get(), w);
    DeviceArray<float> y = *backend->Allocate<float>(rows * columns);
    DeviceArray<float> r = *backend->Allocate<float>(rows);
    SB_ASSERT_OK(backend->RmsNormForward(shape, dx.span(), dw.span(), y.span(), r.span()));
    ExpectClose(backend.get(), y, reference::RmsNormForward(columns, epsilon, x, w), "y");

    DeviceArray<float> x_grad = ToDevice(backend.get(), g);  // the op adds to what is there
    DeviceArray<float> w_grad = ToDevice(backend.get(), w);
    SB_ASSERT_OK(backend->RmsNormBackward(shape, dx.span(), dw.span(), r.span(),
                                          ToDevice(backend.get(), g).span(), x_grad.span(),
                                          w_grad.span()));
    const auto grads = reference::RmsNormBackward(columns, epsilon, x, w, g);
    ExpectClose(backend.get(), x_grad, Plus(g, grads.x), "x_grad");
    ExpectClose(backend.get(), w_grad, Plus(w, grads.weight), "w_grad");
  }
}

TEST(DenseOpsTest, ColumnSumsAddToTheOutput) {
  auto backend = BackendUnderTest();
  const Tensor x = RandomTensor(700 * 19, 1);
  Tensor expected = RandomTensor(19, 2);
  DeviceArray<float> out = ToDevice(backend.get(), expected);
  for (int64_t i = 0; i < 700 * 19; ++i) expected[i % 19] += x[i];
  SB_ASSERT_OK(backend->AddColumnSums(700, 19, ToDevice(backend.get(), x).span(), out.span()));
  ExpectClose(backend.get(), out, expected, "sums");
}

TEST(DenseOpsTest, RopeMatchesTheReferenceAndItsInverseUndoesIt) {
  auto backend = BackendUnderTest();
  const std::vector<int32_t> positions = {0, 1, 2, 0, 1, 40000};
  for (const int head_dim : {2, 6, 64}) {
    const Tensor x = RandomTensor(6L * 3 * head_dim, 1);
    const DeviceArray<int32_t> device_positions = ToDevice(backend.get(), positions);
    DeviceArray<float> table = *backend->Allocate<float>(6L * head_dim);
    SB_ASSERT_OK(backend->RopeTable(head_dim, 10000.0, device_positions.span(), table.span()));
    DeviceArray<float> y = ToDevice(backend.get(), x);
    const RopeShape shape{6, 3, head_dim, 3L * head_dim};
    SB_ASSERT_OK(backend->Rope(shape, table.span(), false, y.span()));
    ExpectClose(backend.get(), y, reference::Rope(3, head_dim, 10000.0, positions, x, false),
                "rotated");
    SB_ASSERT_OK(backend->Rope(shape, table.span(), true, y.span()));
    ExpectClose(backend.get(), y, x, "turned back");
  }
}

TEST(DenseOpsTest, RopeLeavesTheRestOfAWideRowAlone) {
  auto backend = BackendUnderTest();
  const std::vector<int32_t> positions = {5, 6};
  const Tensor x = RandomTensor(2 * 12, 1);
  const DeviceArray<int32_t> device_positions = ToDevice(backend.get(), positions);
  DeviceArray<float> table = *backend->Allocate<float>(2 * 4);
  SB_ASSERT_OK(backend->RopeTable(4, 100.0, device_positions.span(), table.span()));
  DeviceArray<float> y = ToDevice(backend.get(), x);
  SB_ASSERT_OK(backend->Rope({2, 2, 4, 12}, table.span(), false, y.span()));
  const std::vector<float> host = ToHost(backend.get(), y);
  for (int row = 0; row < 2; ++row) {
    EXPECT_NE(host[row * 12 + 7], static_cast<float>(x[row * 12 + 7]));
    for (int c = 8; c < 12; ++c) EXPECT_EQ(host[row * 12 + c], static_cast<float>(x[row * 12 + c]));
  }
}

TEST(DenseOpsTest, SwiGluMatchesTheReference) {
  auto backend = BackendUnderTest();
  for (const int64_t columns : {1, 15, 16, 37}) {
    const int64_t rows = 70;
    const Tensor x = RandomTensor(rows * 2 * columns, 1, 8.0);
    const Tensor g = RandomTensor(rows * columns, 2);
    const DeviceArray<float> dx = ToDevice(backend.get(), x);
    DeviceArray<float> y = *backend->Allocate<float>(rows * columns);
    SB_ASSERT_OK(backend->SwiGluForward(rows, columns, dx.span(), y.span()));
    ExpectClose(backend.get(), y, reference::SwiGluForward(columns, x), "y");
    DeviceArray<float> grad = *backend->Allocate<float>(rows * 2 * columns);
    SB_ASSERT_OK(backend->SwiGluBackward(rows, columns, dx.span(),
                                         ToDevice(backend.get(), g).span(), grad.span()));
    ExpectClose(backend.get(), grad, reference::SwiGluBackward(columns, x, g), "grad");
  }
}

TEST(DenseOpsTest, SwiGluStaysFiniteFarFromZero) {
  auto backend = BackendUnderTest();
  const DeviceArray<float> x = ToDevice(backend.get(), Tensor{-1e4, 1e4, -100, 2, 2, 2});
  DeviceArray<float> y = *backend->Allocate<float>(3);
  SB_ASSERT_OK(backend->SwiGluForward(1, 3, x.span(), y.span()));
  EXPECT_THAT(ToHost(backend.get(), y), ::testing::ElementsAre(::testing::FloatNear(0, 1e-30), 2e4F,
                                                               ::testing::FloatNear(0, 1e-30)));
}

TEST(DenseOpsTest, CrossEntropyMatchesTheReference) {
  auto backend = BackendUnderTest();
  for (const int64_t classes : {1, 5, 16, 50, 4099}) {
    const int64_t rows = 40;
    const Tensor x = RandomTensor(rows * classes, 1, 10.0);
    std::vector<int32_t> targets(rows);
    Tensor weights(rows);
    for (int64_t r = 0; r < rows; ++r) {
      targets[r] = static_cast<int32_t>((r * 37) % classes);
      weights[r] = r % 3 == 0 ? 0 : 1;
      if (r % 3 == 0) targets[r] = -100;  // may be anything where the weight is 0
    }
    const DeviceArray<int32_t> device_targets = ToDevice(backend.get(), targets);
    const DeviceArray<float> device_weights = ToDevice(backend.get(), weights);
    DeviceArray<float> logits = ToDevice(backend.get(), x);
    DeviceArray<double> loss = DoublesToDevice(backend.get(), std::vector<double>{2.5});
    const CrossEntropyShape shape{rows, classes, 0.25};
    const double expected = reference::CrossEntropyLoss(classes, x, targets, weights);

    SB_ASSERT_OK(backend->CrossEntropy(shape, logits.span(), device_targets.span(),
                                       device_weights.span(), {}, loss.span()));
    EXPECT_NEAR(ToHost(backend.get(), loss)[0], 2.5 + expected, 1e-6 * (1 + expected));
    SB_ASSERT_OK(backend->CrossEntropy(shape, logits.span(), device_targets.span(),
                                       device_weights.span(), logits.span(), loss.span()));
    EXPECT_NEAR(ToHost(backend.get(), loss)[0], 2.5 + 2 * expected, 2e-6 * (1 + expected));
    Tensor grad = reference::CrossEntropyGrad(classes, x, targets, weights);
    for (double& g : grad) g *= 0.25;
    ExpectClose(backend.get(), logits, grad, absl::StrCat("gradient of ", classes));
  }
}

TEST(DenseOpsTest, CrossEntropyIgnoresRowsOfWeightZeroEvenIfTheyAreNotNumbers) {
  auto backend = BackendUnderTest();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  DeviceArray<float> logits = ToDevice(backend.get(), std::vector<float>{nan, 1, 1, 1});
  const DeviceArray<int32_t> targets = ToDevice(backend.get(), std::vector<int32_t>{7, 0});
  const DeviceArray<float> weights = ToDevice(backend.get(), std::vector<float>{0, 1});
  DeviceArray<double> loss = DoublesToDevice(backend.get(), std::vector<double>{0});
  SB_ASSERT_OK(backend->CrossEntropy({2, 2, 1.0}, logits.span(), targets.span(), weights.span(),
                                     logits.span(), loss.span()));
  EXPECT_NEAR(ToHost(backend.get(), loss)[0], std::log(2.0), 1e-6);
  EXPECT_THAT(ToHost(backend.get(), logits), ::testing::ElementsAre(0, 0, -0.5F, 0.5F));
}

TEST(DenseOpsTest, CrossEntropyRefusesASupervisedTargetOutsideTheClasses) {
  auto backend = BackendUnderTest();
  DeviceArray<float> logits = ToDevice(backend.get(), Tensor(2, 0.0));
  const DeviceArray<int32_t> targets = ToDevice(backend.get(), std::vector<int32_t>{2});
  const DeviceArray<float> weights = ToDevice(backend.get(), std::vector<float>{1});
  DeviceArray<double> loss = DoublesToDevice(backend.get(), std::vector<double>{0});
  absl::Status status = backend->CrossEntropy({1, 2, 1.0}, logits.span(), targets.span(),
                                              weights.span(), {}, loss.span());
  if (status.ok()) status = backend->Synchronize();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
}

TEST(DenseOpsTest, AdamWFollowsTheFormula) {
  auto backend = BackendUnderTest();
  const Tensor grad = RandomTensor(50, 1);
  Tensor value = RandomTensor(50, 2);
  Tensor m(50, 0.0);
  Tensor v(50, 0.0);
  DeviceArray<float> device_value = ToDevice(backend.get(), value);
  DeviceArray<float> device_m = ToDevice(backend.get(), m);
  DeviceArray<float> device_v = ToDevice(backend.get(), v);
  const DeviceArray<float> device_grad = ToDevice(backend.get(), grad);
  AdamWArgs args;
  args.learning_rate = 0.01F;
  args.weight_decay = 0.1F;
  args.gradient_scale = 0.5F;
  for (args.step = 1; args.step <= 3; ++args.step) {
    SB_ASSERT_OK(backend->AdamW(args, device_grad.span(), device_value.span(), device_m.span(),
                                device_v.span()));
    for (size_t i = 0; i < value.size(); ++i) {
      const double g = 0.5 * grad[i];
      m[i] = 0.9 * m[i] + 0.1 * g;
      v[i] = 0.95 * v[i] + 0.05 * g * g;
      const auto t = static_cast<double>(args.step);
      const double m_hat = m[i] / (1 - std::pow(0.9, t));
      const double v_hat = v[i] / (1 - std::pow(0.95, t));
      value[i] -= 0.01 * (m_hat / (std::sqrt(v_hat) + 1e-8) + 0.1 * value[i]);
    }
  }
  ExpectClose(backend.get(), device_value, value, "value");
  ExpectClose(backend.get(), device_m, m, "m");
  ExpectClose(backend.get(), device_v, v, "v");
}

TEST(DenseOpsTest, ElementwiseOpsAndTheNormDoWhatTheySay) {
  auto backend = BackendUnderTest();
  const int64_t n = 100000;
  const Tensor a = RandomTensor(n, 1);
  const Tensor b = RandomTensor(n, 2);
  DeviceArray<float> x = ToDevice(backend.get(), a);
  SB_ASSERT_OK(backend->Add(x.span(), ToDevice(backend.get(), b).span(), x.span()));
  SB_ASSERT_OK(backend->Scale(-2.0F, x.span()));
  Tensor expected(n);
  double squares = 0;
  for (int64_t i = 0; i < n; ++i) {
    expected[i] = -2.0 * (a[i] + b[i]);
    squares += expected[i] * expected[i];
  }
  ExpectClose(backend.get(), x, expected, "-2(a + b)");
  DeviceArray<double> norm = DoublesToDevice(backend.get(), std::vector<double>{1});
  SB_ASSERT_OK(backend->AddSquaredNorm(x.span(), norm.span()));
  EXPECT_NEAR(ToHost(backend.get(), norm)[0], 1 + squares, 1e-6 * squares);
  SB_ASSERT_OK(backend->FillZero(norm.span()));
  SB_ASSERT_OK(backend->Fill(x.span(), 3.0F));
  EXPECT_EQ(ToHost(backend.get(), norm)[0], 0.0);
  EXPECT_THAT(ToHost(backend.get(), x), ::testing::Each(3.0F));
}

}  // namespace
}  // namespace sparsebalance::kernels
