// Attention and its router through the backend, against the CPU backend in fp32 on the same inputs,
// rounded to bf16 where the device computes in it.

#include <cmath>
#include <cstdint>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"
#include "kernels/cpu/test_util.h"
#include "kernels/cuda/backend/device_under_test.h"
#include "kernels/cuda/device/bf16.h"

namespace sparsebalance::kernels::cuda {
namespace {

struct Case {
  std::vector<int64_t> lengths;
  std::vector<int32_t> budgets;
  int block_tokens;
  int num_heads, num_kv_heads, head_dim;

  std::string Name() const {
    return absl::StrCat("lengths ", absl::StrJoin(lengths, ","), " budgets ",
                        absl::StrJoin(budgets, ","), " block ", block_tokens, " heads ", num_heads,
                        "/", num_kv_heads, "x", head_dim);
  }
};

struct HostLists {
  int64_t pairs = 0;
  std::vector<int64_t> query_offsets, block_offsets;
  std::vector<int32_t> query_blocks, block_queries;
};

struct Result {
  std::vector<float> means, out, lse, gradient;
  std::vector<std::vector<double>> coverage;
  std::vector<double> mass;
  HostLists lists;
};

struct Input {
  std::vector<float> qkv, out_grad;  // [tokens, q, k and v widths], [tokens, q width]
};

Input InputOf(const Case& c, bool rounded) {
  int64_t tokens = 0;
  for (const int64_t n : c.lengths) tokens += n;
  const int64_t q_width = int64_t{c.num_heads} * c.head_dim;
  const int64_t width = q_width + 2 * int64_t{c.num_kv_heads} * c.head_dim;
  const auto random = [rounded](int64_t count, uint32_t seed) {
    const reference::Tensor x = RandomTensor(count, seed, 1.5);
    std::vector<float> out(x.begin(), x.end());
    if (rounded) {
      for (float& value : out) value = static_cast<float>(Bf16(value));
    }
    return out;
  };
  return {random(tokens * width, 1), random(tokens * q_width, 2)};
}

template <typename T>
DeviceArray<T> Send(Backend* backend, const std::vector<T>& x) {
  return ToDevice(backend, x);
}

// Runs everything; `lists`, where given, stand in for the backend's own selection.
Result Attend(Backend* backend, const Case& c, const Input& input, const HostLists* lists) {
  std::vector<int64_t> cu_seqlens = {0};
  for (const int64_t n : c.lengths) cu_seqlens.push_back(cu_seqlens.back() + n);
  const int64_t tokens = cu_seqlens.back();
  const int64_t q_width = int64_t{c.num_heads} * c.head_dim;
  const int64_t kv_width = int64_t{c.num_kv_heads} * c.head_dim;
  const int64_t width = q_width + 2 * kv_width;
  const AttentionShape shape{c.num_heads, c.num_kv_heads, c.head_dim, width, width, q_width};
  const PackedBlocks blocks = *MakePackedBlocks(cu_seqlens, c.block_tokens);

  const DeviceTensor qkv = *backend->AllocateActivations(tokens * width);
  const DeviceTensor out_grad = *backend->AllocateActivations(tokens * q_width);
  SB_EXPECT_OK(backend->CopyToDevice(input.qkv, qkv.span()));
  SB_EXPECT_OK(backend->CopyToDevice(input.out_grad, out_grad.span()));
  const DeviceBuffer q = qkv.span();
  const DeviceBuffer k = q.Slice(q_width);
  const DeviceBuffer v = q.Slice(q_width + kv_width);
  const auto layout = *backend->CreateLayout(blocks);
  const DeviceArray<float> means = *backend->Allocate<float>(kv_width * blocks.blocks());
  SB_EXPECT_OK(backend->BlockMeans(shape, *layout, k, means.span()));
  Result r;
  r.means = ToHost(backend, means);
  r.coverage = *backend->CoverageCurves(shape, *layout, q, means.span(), /*sample_stride=*/2);
  BlockLists own;
  if (lists == nullptr) {
    auto selected = backend->SelectBlocks(shape, *layout, q, means.span(), c.budgets);
    EXPECT_TRUE(selected.ok()) << selected.status();
    own = *std::move(selected);
  } else {
    own.pairs = lists->pairs;
    own.query_offsets = Send(backend, lists->query_offsets);
    own.query_blocks = Send(backend, lists->query_blocks);
    SB_EXPECT_OK(backend->BuildBlockLists(shape, *layout, &own));
  }
  r.lists = {own.pairs, ToHost(backend, own.query_offsets), ToHost(backend, own.block_offsets),
             ToHost(backend, own.query_blocks), ToHost(backend, own.block_queries)};
  r.mass = *backend->AttentionMass(shape, *layout, own, q, k, /*queries=*/8);
  const DeviceTensor out = *backend->AllocateActivations(tokens * q_width);
  const DeviceArray<float> lse = *backend->Allocate<float>(c.num_heads * tokens);
  SB_EXPECT_OK(backend->AttentionForward(shape, *layout, own, q, k, v, out.span(), lse.span()));
  const DeviceTensor gradient = *backend->AllocateActivations(tokens * width);
  SB_EXPECT_OK(backend->AttentionBackward(
      shape, *layout, own, q, k, v, out.span(), lse.span(), out_grad.span(), gradient.span(),
      gradient.span().Slice(q_width), gradient.span().Slice(q_width + kv_width)));
  r.out.resize(static_cast<size_t>(out.size()));
  r.gradient.resize(static_cast<size_t>(gradient.size()));
  SB_EXPECT_OK(backend->CopyToHost(out.span(), r.out.data()));
  SB_EXPECT_OK(backend->CopyToHost(gradient.span(), r.gradient.data()));
  r.lse = ToHost(backend, lse);
  return r;
}

double Nmse(const std::vector<float>& actual, const std::vector<float>& expected) {
  double error = 0;
  double power = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error += std::pow(static_cast<double>(actual[i]) - expected[i], 2);
    power += std::pow(static_cast<double>(expected[i]), 2);
  }
  return error / std::max(power, 1e-30);
}

void ExpectTheSame(const std::vector<std::vector<double>>& actual,
                   const std::vector<std::vector<double>>& expected, double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (size_t s = 0; s < expected.size(); ++s) {
    ASSERT_EQ(actual[s].size(), expected[s].size());
    for (size_t g = 0; g < expected[s].size(); ++g) {
      EXPECT_NEAR(actual[s][g], expected[s][g], tolerance) << "sequence " << s << ", point " << g;
    }
  }
}

void ExpectParity(const Case& c, ElementType type) {
  SCOPED_TRACE(absl::StrCat(c.Name(), " ", std::string(ElementTypeName(type))));
  const bool rounded = type == ElementType::kBfloat16;
  auto device = MakeBackendUnderTest({.activation_type = type, .poison_allocations = true});
  ASSERT_TRUE(device.ok()) << device.status();
  auto cpu = TestBackend();
  const Input input = InputOf(c, rounded);
  const Result actual = Attend(device->get(), c, input, nullptr);
  const Result own = Attend(cpu.get(), c, input, nullptr);
  // Selections differ only where two scores are as near as rounding; the rest is compared on the
  // device's.
  ASSERT_EQ(actual.lists.query_offsets, own.lists.query_offsets);
  int64_t differing = 0;
  for (size_t i = 0; i < own.lists.query_blocks.size(); ++i) {
    if (actual.lists.query_blocks[i] != own.lists.query_blocks[i]) ++differing;
  }
  EXPECT_LE(static_cast<double>(differing),
            0.001 * static_cast<double>(own.lists.query_blocks.size()) + 2);
  if (differing > 0) {
    std::cout << c.Name() << ": " << differing << " of " << own.lists.query_blocks.size()
              << " selected blocks are not the CPU's\n";
  }
  const Result expected = Attend(cpu.get(), c, input, &actual.lists);
  EXPECT_EQ(actual.lists.block_offsets, expected.lists.block_offsets);
  EXPECT_EQ(actual.lists.block_queries, expected.lists.block_queries);
  const double nmse = rounded ? 5e-4 : 1e-10;
  EXPECT_LE(Nmse(actual.means, expected.means), 1e-10);
  EXPECT_LE(Nmse(actual.out, expected.out), nmse);
  EXPECT_LE(Nmse(actual.lse, expected.lse), nmse);
  EXPECT_LE(Nmse(actual.gradient, expected.gradient), nmse);
  ExpectTheSame(actual.coverage, expected.coverage, 1e-5);
  ExpectTheSame({actual.mass}, {expected.mass}, 1e-4);

  // The same again, to the bit.
  const Result again = Attend(device->get(), c, input, nullptr);
  EXPECT_EQ(again.out, actual.out);
  EXPECT_EQ(again.lse, actual.lse);
  EXPECT_EQ(again.gradient, actual.gradient);
  EXPECT_EQ(again.lists.query_blocks, actual.lists.query_blocks);
}

TEST(AttentionParityTest, ShortSequencesAroundABlock) {
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
    ExpectParity({{1, 15, 16, 17, 33}, {2, 1, 3, 2, 2}, 16, 2, 1, 32}, type);
  }
}

TEST(AttentionParityTest, HeadsOf64AndOf128) {
  for (const ElementType type : {ElementType::kFloat32, ElementType::kBfloat16}) {
    ExpectParity({{130, 1}, {3, 2}, 32, 2, 2, 64}, type);
    ExpectParity({{70}, {2}, 32, 2, 1, 128}, type);
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
