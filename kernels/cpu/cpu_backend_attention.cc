#include <algorithm>
#include <cstdint>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/block_index.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_mass.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/router.h"
#include "kernels/op_checks.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cpu {
namespace {

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
  SB_RETURN_IF_ERROR(op_checks::BlockMeans(shape, blocks, k, means));
  cpu::BlockMeans(threads_, shape, blocks, DeviceAccess::Floats(k), DeviceAccess::Floats(means));
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::vector<double>>> CpuBackend::CoverageCurves(
    const AttentionShape& shape, const AttentionLayout& layout, ConstDeviceBuffer q,
    ConstDeviceBuffer means, int sample_stride) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::CoverageCurves(shape, blocks, q, means, sample_stride));
  return cpu::CoverageCurves(this, threads_, shape, blocks, DeviceAccess::Floats(q),
                             DeviceAccess::Floats(means), sample_stride);
}

absl::StatusOr<BlockLists> CpuBackend::SelectBlocks(const AttentionShape& shape,
                                                    const AttentionLayout& layout,
                                                    ConstDeviceBuffer q, ConstDeviceBuffer means,
                                                    const std::vector<int32_t>& budgets) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::SelectBlocks(shape, blocks, q, means, budgets));
  BlockLists lists;
  SB_ASSIGN_OR_RETURN(lists.query_offsets, Allocate<int64_t>(blocks.tokens() + 1));
  int64_t* query_offsets = DeviceAccess::Data(lists.query_offsets.span());
  FillQueryOffsets(blocks.block_begin.data(), blocks.block_sequence.data(),
                   blocks.first_block.data(), blocks.blocks(), budgets.data(), query_offsets);
  lists.pairs = query_offsets[blocks.tokens()];
  SB_ASSIGN_OR_RETURN(lists.query_blocks, Allocate<int32_t>(shape.num_heads * lists.pairs));
  int32_t* query_blocks = DeviceAccess::Data(lists.query_blocks.span());
  SB_RETURN_IF_ERROR(cpu::SelectBlocks(this, threads_, shape, blocks, DeviceAccess::Floats(q),
                                       DeviceAccess::Floats(means), query_offsets, lists.pairs,
                                       query_blocks));
  SB_RETURN_IF_ERROR(BuildBlockLists(shape, layout, &lists));
  return lists;
}

absl::Status CpuBackend::BuildBlockLists(const AttentionShape& shape, const AttentionLayout& layout,
                                         BlockLists* lists) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::BuildBlockLists(shape, blocks, *lists));
  SB_ASSIGN_OR_RETURN(lists->block_offsets,
                      Allocate<int64_t>(shape.num_heads * (blocks.blocks() + 1)));
  SB_ASSIGN_OR_RETURN(lists->block_queries, Allocate<int32_t>(shape.num_heads * lists->pairs));
  SB_ASSIGN_OR_RETURN(DeviceArray<int64_t> cursors,
                      Allocate<int64_t>(shape.num_heads * blocks.blocks()));
  const int64_t* query_offsets = DeviceAccess::Data(lists->query_offsets.span());
  ParallelFor(threads_, shape.num_heads, [&](int64_t head) {
    const int32_t* query_blocks =
        DeviceAccess::Data(lists->query_blocks.span()) + head * lists->pairs;
    int64_t* offsets =
        DeviceAccess::Data(lists->block_offsets.span()) + head * (blocks.blocks() + 1);
    CountAndScan(query_blocks, lists->pairs, blocks.blocks(), offsets);
    StableFill(query_offsets, query_blocks, blocks.tokens(), blocks.blocks(), offsets,
               DeviceAccess::Data(cursors.span()) + head * blocks.blocks(),
               DeviceAccess::Data(lists->block_queries.span()) + head * lists->pairs);
  });
  return absl::OkStatus();
}

absl::Status CpuBackend::AttentionForward(const AttentionShape& shape,
                                          const AttentionLayout& layout, const BlockLists& lists,
                                          ConstDeviceBuffer q, ConstDeviceBuffer k,
                                          ConstDeviceBuffer v, DeviceBuffer out, DeviceBuffer lse) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::AttentionForward(shape, blocks, lists, q, k, v, out, lse));
  return cpu::AttentionForward(
      this, threads_, shape, blocks, View(lists),
      {DeviceAccess::Floats(q), DeviceAccess::Floats(k), DeviceAccess::Floats(v),
       DeviceAccess::Floats(out), DeviceAccess::Floats(lse)});
}

absl::Status CpuBackend::AttentionBackward(const AttentionShape& shape,
                                           const AttentionLayout& layout, const BlockLists& lists,
                                           ConstDeviceBuffer q, ConstDeviceBuffer k,
                                           ConstDeviceBuffer v, ConstDeviceBuffer out,
                                           ConstDeviceBuffer lse, ConstDeviceBuffer out_grad,
                                           DeviceBuffer q_grad, DeviceBuffer k_grad,
                                           DeviceBuffer v_grad) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::AttentionBackward(shape, blocks, lists, q, k, v, out, lse, out_grad,
                                                  q_grad, k_grad, v_grad));
  return cpu::AttentionBackward(
      this, threads_, shape, blocks, View(lists),
      {DeviceAccess::Floats(q), DeviceAccess::Floats(k), DeviceAccess::Floats(v),
       DeviceAccess::Floats(out), DeviceAccess::Floats(lse), DeviceAccess::Floats(out_grad),
       DeviceAccess::Floats(q_grad), DeviceAccess::Floats(k_grad), DeviceAccess::Floats(v_grad)});
}

absl::StatusOr<std::vector<double>> CpuBackend::AttentionMass(const AttentionShape& shape,
                                                              const AttentionLayout& layout,
                                                              const BlockLists& lists,
                                                              ConstDeviceBuffer q,
                                                              ConstDeviceBuffer k, int queries) {
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::AttentionMass(shape, blocks, lists, q, k, queries));
  return cpu::AttentionMass(this, threads_, shape, blocks, DeviceAccess::Floats(q),
                            DeviceAccess::Floats(k), DeviceAccess::Data(lists.query_offsets.span()),
                            lists.pairs, DeviceAccess::Data(lists.query_blocks.span()), queries);
}

int64_t CpuBackend::AttentionForwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                            int64_t /*pairs*/) const {
  return cpu::AttentionForwardScratch(shape, blocks);
}

int64_t CpuBackend::AttentionBackwardScratch(const AttentionShape& shape,
                                             const PackedBlocks& blocks, int64_t /*pairs*/) const {
  return cpu::AttentionBackwardScratch(shape, blocks);
}

}  // namespace sparsebalance::kernels::cpu
