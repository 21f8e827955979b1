#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/check.h"
#include "kernels/op_checks.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::op_checks {
namespace {

// Elements from the first of row 0 to the last of the last row.
int64_t Extent(int64_t rows, int64_t stride, int heads, int head_dim) {
  return (rows - 1) * stride + static_cast<int64_t>(heads) * head_dim;
}

int64_t QueryExtent(const AttentionShape& s, int64_t tokens) {
  return Extent(tokens, s.q_stride, s.num_heads, s.head_dim);
}
int64_t KeyExtent(const AttentionShape& s, int64_t tokens) {
  return Extent(tokens, s.kv_stride, s.num_kv_heads, s.head_dim);
}
int64_t OutExtent(const AttentionShape& s, int64_t tokens) {
  return Extent(tokens, s.out_stride, s.num_heads, s.head_dim);
}
int64_t MeansSize(const AttentionShape& s, const PackedBlocks& blocks) {
  return s.num_kv_heads * blocks.blocks() * s.head_dim;
}

absl::Status CheckShape(std::string_view op, const AttentionShape& s) {
  SB_RETURN_IF_ERROR(CheckAtLeast(op, {{"num_kv_heads", s.num_kv_heads, 1},
                                       {"num_heads", s.num_heads, s.num_kv_heads},
                                       {"head_dim", s.head_dim, 1}}));
  if (s.num_heads % s.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(absl::string_view(op.data(), op.size()), ": ",
                                                   s.num_heads, " heads are no multiple of ",
                                                   s.num_kv_heads, " KV heads"));
  }
  return absl::OkStatus();
}

absl::Status CheckLists(std::string_view op, const AttentionShape& s, const PackedBlocks& blocks,
                        const BlockLists& lists) {
  return CheckSizes(
      op, {{"block_offsets", lists.block_offsets.size(), s.num_heads * (blocks.blocks() + 1)},
           {"block_queries", lists.block_queries.size(), s.num_heads * lists.pairs}});
}

}  // namespace

absl::Status BlockMeans(const AttentionShape& shape, const PackedBlocks& blocks,
                        ConstDeviceBuffer k, DeviceBuffer means) {
  SB_RETURN_IF_ERROR(CheckShape("BlockMeans", shape));
  SB_RETURN_IF_ERROR(CheckSizes("BlockMeans", {{"k", k.size(), KeyExtent(shape, blocks.tokens())},
                                               {"means", means.size(), MeansSize(shape, blocks)}}));
  SB_RETURN_IF_ERROR(CheckTypes("BlockMeans", {{"means", means.type(), ElementType::kFloat32}}));
  return absl::OkStatus();
}

absl::Status CoverageCurves(const AttentionShape& shape, const PackedBlocks& blocks,
                            ConstDeviceBuffer q, ConstDeviceBuffer means, int sample_stride) {
  SB_RETURN_IF_ERROR(CheckShape("CoverageCurves", shape));
  SB_RETURN_IF_ERROR(CheckAtLeast("CoverageCurves", {{"sample_stride", sample_stride, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("CoverageCurves", {{"q", q.size(), QueryExtent(shape, blocks.tokens())},
                                    {"means", means.size(), MeansSize(shape, blocks)}}));
  SB_RETURN_IF_ERROR(
      CheckTypes("CoverageCurves", {{"means", means.type(), ElementType::kFloat32}}));
  return absl::OkStatus();
}

absl::Status SelectBlocks(const AttentionShape& shape, const PackedBlocks& blocks,
                          ConstDeviceBuffer q, ConstDeviceBuffer means,
                          const std::vector<int32_t>& budgets) {
  SB_RETURN_IF_ERROR(CheckShape("SelectBlocks", shape));
  SB_RETURN_IF_ERROR(CheckSizes(
      "SelectBlocks", {{"q", q.size(), QueryExtent(shape, blocks.tokens())},
                       {"means", means.size(), MeansSize(shape, blocks)},
                       {"budgets", static_cast<int64_t>(budgets.size()), blocks.sequences()}}));
  for (const int32_t budget : budgets) {
    SB_RETURN_IF_ERROR(CheckAtLeast("SelectBlocks", {{"a budget", budget, 1}}));
  }
  SB_RETURN_IF_ERROR(CheckTypes("SelectBlocks", {{"means", means.type(), ElementType::kFloat32}}));
  return absl::OkStatus();
}

absl::Status Route(const PackedBlocks& blocks, const RoutingRequest& request) {
  SB_RETURN_IF_ERROR(CheckSizes(
      "Route", {{"planned", static_cast<int64_t>(request.planned.size()), blocks.sequences()},
                {"base", static_cast<int64_t>(request.base.size()), blocks.sequences()}}));
  for (const std::vector<int32_t>* budgets : {&request.planned, &request.base}) {
    for (const int32_t budget : *budgets) {
      SB_RETURN_IF_ERROR(CheckAtLeast("Route", {{"a budget", budget, 1}}));
    }
  }
  if (!(request.coverage_guard >= 0 && request.coverage_guard <= 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("Route: coverage_guard is ", request.coverage_guard, ", must lie in [0, 1]"));
  }
  return absl::OkStatus();
}

absl::Status BuildBlockLists(const AttentionShape& shape, const PackedBlocks& blocks,
                             const BlockLists& lists) {
  SB_RETURN_IF_ERROR(CheckShape("BuildBlockLists", shape));
  return CheckSizes("BuildBlockLists",
                    {{"query_offsets", lists.query_offsets.size(), blocks.tokens() + 1},
                     {"query_blocks", lists.query_blocks.size(), shape.num_heads * lists.pairs}});
}

absl::Status AttentionForward(const AttentionShape& shape, const PackedBlocks& blocks,
                              const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                              ConstDeviceBuffer v, DeviceBuffer out, DeviceBuffer lse) {
  const int64_t tokens = blocks.tokens();
  SB_RETURN_IF_ERROR(CheckShape("AttentionForward", shape));
  SB_RETURN_IF_ERROR(CheckLists("AttentionForward", shape, blocks, lists));
  SB_RETURN_IF_ERROR(
      CheckSizes("AttentionForward", {{"q", q.size(), QueryExtent(shape, tokens)},
                                      {"k", k.size(), KeyExtent(shape, tokens)},
                                      {"v", v.size(), KeyExtent(shape, tokens)},
                                      {"out", out.size(), OutExtent(shape, tokens)},
                                      {"lse", lse.size(), shape.num_heads * tokens}}));
  SB_RETURN_IF_ERROR(CheckTypes("AttentionForward", {{"lse", lse.type(), ElementType::kFloat32},
                                                     {"k", k.type(), q.type()},
                                                     {"v", v.type(), q.type()},
                                                     {"out", out.type(), q.type()}}));
  return absl::OkStatus();
}

absl::Status AttentionBackward(const AttentionShape& shape, const PackedBlocks& blocks,
                               const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                               ConstDeviceBuffer v, ConstDeviceBuffer out, ConstDeviceBuffer lse,
                               ConstDeviceBuffer out_grad, DeviceBuffer q_grad, DeviceBuffer k_grad,
                               DeviceBuffer v_grad) {
  const int64_t tokens = blocks.tokens();
  SB_RETURN_IF_ERROR(CheckShape("AttentionBackward", shape));
  SB_RETURN_IF_ERROR(CheckLists("AttentionBackward", shape, blocks, lists));
  SB_RETURN_IF_ERROR(
      CheckSizes("AttentionBackward", {{"q", q.size(), QueryExtent(shape, tokens)},
                                       {"k", k.size(), KeyExtent(shape, tokens)},
                                       {"v", v.size(), KeyExtent(shape, tokens)},
                                       {"out", out.size(), OutExtent(shape, tokens)},
                                       {"lse", lse.size(), shape.num_heads * tokens},
                                       {"out_grad", out_grad.size(), OutExtent(shape, tokens)},
                                       {"q_grad", q_grad.size(), QueryExtent(shape, tokens)},
                                       {"k_grad", k_grad.size(), KeyExtent(shape, tokens)},
                                       {"v_grad", v_grad.size(), KeyExtent(shape, tokens)}}));
  SB_RETURN_IF_ERROR(CheckTypes("AttentionBackward", {{"lse", lse.type(), ElementType::kFloat32},
                                                      {"k", k.type(), q.type()},
                                                      {"v", v.type(), q.type()},
                                                      {"out", out.type(), q.type()},
                                                      {"out_grad", out_grad.type(), q.type()},
                                                      {"q_grad", q_grad.type(), q.type()},
                                                      {"k_grad", k_grad.type(), q.type()},
                                                      {"v_grad", v_grad.type(), q.type()}}));
  return absl::OkStatus();
}

absl::Status AttentionMass(const AttentionShape& shape, const PackedBlocks& blocks,
                           const BlockLists& lists, ConstDeviceBuffer q, ConstDeviceBuffer k,
                           int queries) {
  SB_RETURN_IF_ERROR(CheckShape("AttentionMass", shape));
  SB_RETURN_IF_ERROR(CheckLists("AttentionMass", shape, blocks, lists));
  SB_RETURN_IF_ERROR(CheckAtLeast("AttentionMass", {{"queries", queries, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("AttentionMass", {{"q", q.size(), QueryExtent(shape, blocks.tokens())},
                                   {"k", k.size(), KeyExtent(shape, blocks.tokens())}}));
  SB_RETURN_IF_ERROR(CheckTypes("AttentionMass", {{"k", k.type(), q.type()}}));
  return absl::OkStatus();
}

}  // namespace sparsebalance::kernels::op_checks
