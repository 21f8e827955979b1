#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/block_index.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_mass.h"
#include "kernels/cpu/check.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/router.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cpu {
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

ListView View(const BlockLists& lists) {
  return {lists.pairs, DeviceAccess::Data(lists.block_offsets.span()),
          DeviceAccess::Data(lists.block_queries.span())};
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionLayout>> CpuBackend::CreateLayout(PackedBlocks blocks) {
  return std::make_unique<AttentionLayout>(std::move(blocks));
}

absl::Status CpuBackend::BlockMeans(const AttentionShape& shape, const AttentionLayout& layout,
                                    ConstDeviceBuffer k, DeviceBuffer means) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(CheckShape("BlockMeans", shape));
  SB_RETURN_IF_ERROR(CheckSizes("BlockMeans", {{"k", k.size(), KeyExtent(shape, blocks.tokens())},
                                               {"means", means.size(), MeansSize(shape, blocks)}}));
  cpu::BlockMeans(threads_, shape, blocks, DeviceAccess::Data(k), DeviceAccess::Data(means));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<double>>> CpuBackend::CoverageCurves(
    const AttentionShape& shape, const AttentionLayout& layout, ConstDeviceBuffer q,
    ConstDeviceBuffer means, int sample_stride) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(CheckShape("CoverageCurves", shape));
  SB_RETURN_IF_ERROR(CheckAtLeast("CoverageCurves", {{"sample_stride", sample_stride, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("CoverageCurves", {{"q", q.size(), QueryExtent(shape, blocks.tokens())},
                                    {"means", means.size(), MeansSize(shape, blocks)}}));
  return cpu::CoverageCurves(this, threads_, shape, blocks, DeviceAccess::Data(q),
                             DeviceAccess::Data(means), sample_stride);
}

absl::StatusOr<BlockLists> CpuBackend::SelectBlocks(const AttentionShape& shape,
                                                    const AttentionLayout& layout,
                                                    ConstDeviceBuffer q, ConstDeviceBuffer means,
                                                    const std::vector<int32_t>& budgets) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(CheckShape("SelectBlocks", shape));
  SB_RETURN_IF_ERROR(CheckSizes(
      "SelectBlocks", {{"q", q.size(), QueryExtent(shape, blocks.tokens())},
                       {"means", means.size(), MeansSize(shape, blocks)},
                       {"budgets", static_cast<int64_t>(budgets.size()), blocks.sequences()}}));
  for (const int32_t budget : budgets) {
    SB_RETURN_IF_ERROR(CheckAtLeast("SelectBlocks", {{"a budget", budget, 1}}));
  }
  BlockLists lists;
  SB_ASSIGN_OR_RETURN(lists.query_offsets, Allocate<int64_t>(blocks.tokens() + 1));
  int64_t* query_offsets = DeviceAccess::Data(lists.query_offsets.span());
  FillQueryOffsets(blocks.block_begin.data(), blocks.block_sequence.data(),
                   blocks.first_block.data(), blocks.blocks(), budgets.data(), query_offsets);
  lists.pairs = query_offsets[blocks.tokens()];
  SB_ASSIGN_OR_RETURN(lists.query_blocks, Allocate<int32_t>(shape.num_heads * lists.pairs));
  SB_ASSIGN_OR_RETURN(lists.block_offsets,
                      Allocate<int64_t>(shape.num_heads * (blocks.blocks() + 1)));
  SB_ASSIGN_OR_RETURN(lists.block_queries, Allocate<int32_t>(shape.num_heads * lists.pairs));
  int32_t* query_blocks = DeviceAccess::Data(lists.query_blocks.span());
  SB_RETURN_IF_ERROR(cpu::SelectBlocks(this, threads_, shape, blocks, DeviceAccess::Data(q),
                                       DeviceAccess::Data(means), query_offsets, lists.pairs,
                                       query_blocks));
  SB_ASSIGN_OR_RETURN(DeviceArray<int64_t> cursors,
                      Allocate<int64_t>(shape.num_heads * blocks.blocks()));
  ParallelFor(threads_, shape.num_heads, [&](int64_t head) {
    int64_t* offsets =
        DeviceAccess::Data(lists.block_offsets.span()) + head * (blocks.blocks() + 1);
    CountAndScan(query_blocks + head * lists.pairs, lists.pairs, blocks.blocks(), offsets);
    StableFill(query_offsets, query_blocks + head * lists.pairs, blocks.tokens(), blocks.blocks(),
               offsets, DeviceAccess::Data(cursors.span()) + head * blocks.blocks(),
               DeviceAccess::Data(lists.block_queries.span()) + head * lists.pairs);
  });
  return lists;
}

absl::Status CpuBackend::AttentionForward(const AttentionShape& shape,
                                          const AttentionLayout& layout, const BlockLists& lists,
                                          ConstDeviceBuffer q, ConstDeviceBuffer k,
                                          ConstDeviceBuffer v, DeviceBuffer out, DeviceBuffer lse) {
  const PackedBlocks& blocks = layout.blocks();
  const int64_t tokens = blocks.tokens();
  SB_RETURN_IF_ERROR(CheckShape("AttentionForward", shape));
  SB_RETURN_IF_ERROR(CheckLists("AttentionForward", shape, blocks, lists));
  SB_RETURN_IF_ERROR(
      CheckSizes("AttentionForward", {{"q", q.size(), QueryExtent(shape, tokens)},
                                      {"k", k.size(), KeyExtent(shape, tokens)},
                                      {"v", v.size(), KeyExtent(shape, tokens)},
                                      {"out", out.size(), OutExtent(shape, tokens)},
                                      {"lse", lse.size(), shape.num_heads * tokens}}));
  return cpu::AttentionForward(this, threads_, shape, blocks, View(lists),
                               {DeviceAccess::Data(q), DeviceAccess::Data(k), DeviceAccess::Data(v),
                                DeviceAccess::Data(out), DeviceAccess::Data(lse)});
}

absl::Status CpuBackend::AttentionBackward(const AttentionShape& shape,
                                           const AttentionLayout& layout, const BlockLists& lists,
                                           ConstDeviceBuffer q, ConstDeviceBuffer k,
                                           ConstDeviceBuffer v, ConstDeviceBuffer out,
                                           ConstDeviceBuffer lse, ConstDeviceBuffer out_grad,
                                           DeviceBuffer q_grad, DeviceBuffer k_grad,
                                           DeviceBuffer v_grad) {
  const PackedBlocks& blocks = layout.blocks();
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
  return cpu::AttentionBackward(
      this, threads_, shape, blocks, View(lists),
      {DeviceAccess::Data(q), DeviceAccess::Data(k), DeviceAccess::Data(v), DeviceAccess::Data(out),
       DeviceAccess::Data(lse), DeviceAccess::Data(out_grad), DeviceAccess::Data(q_grad),
       DeviceAccess::Data(k_grad), DeviceAccess::Data(v_grad)});
}

absl::StatusOr<std::vector<double>> CpuBackend::AttentionMass(const AttentionShape& shape,
                                                              const AttentionLayout& layout,
                                                              const BlockLists& lists,
                                                              ConstDeviceBuffer q,
                                                              ConstDeviceBuffer k, int queries) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(CheckShape("AttentionMass", shape));
  SB_RETURN_IF_ERROR(CheckLists("AttentionMass", shape, blocks, lists));
  SB_RETURN_IF_ERROR(CheckAtLeast("AttentionMass", {{"queries", queries, 1}}));
  SB_RETURN_IF_ERROR(
      CheckSizes("AttentionMass", {{"q", q.size(), QueryExtent(shape, blocks.tokens())},
                                   {"k", k.size(), KeyExtent(shape, blocks.tokens())}}));
  return cpu::AttentionMass(this, threads_, shape, blocks, DeviceAccess::Data(q),
                            DeviceAccess::Data(k), DeviceAccess::Data(lists.query_offsets.span()),
                            lists.pairs, DeviceAccess::Data(lists.query_blocks.span()), queries);
}

int64_t CpuBackend::AttentionForwardScratch(const AttentionShape& shape,
                                            const PackedBlocks& blocks) const {
  return cpu::AttentionForwardScratch(shape, blocks);
}

int64_t CpuBackend::AttentionBackwardScratch(const AttentionShape& shape,
                                             const PackedBlocks& blocks) const {
  return cpu::AttentionBackwardScratch(shape, blocks);
}

}  // namespace sparsebalance::kernels::cpu
