#include <algorithm>
#include <utility>

#include "kernels/cuda/attention/attention.h"
#include "kernels/cuda/attention/block_lists.h"
#include "kernels/cuda/attention/router.h"
#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/backend/dispatch.h"
#include "kernels/op_checks.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// Partial results of attention take no more than this, or what one head needs: a few heads of a
// long batch have thread blocks for the whole device. Not tuned on a card yet.
constexpr int64_t kAttentionScratch = int64_t{1} << 30;

class CudaLayout final : public AttentionLayout {
 public:
  explicit CudaLayout(PackedBlocks blocks) : AttentionLayout(std::move(blocks)) {}

  absl::Status Upload(Backend* backend) {
    const PackedBlocks& b = blocks();
    const auto copy = [backend]<typename T>(const std::vector<T>& from,
                                            DeviceArray<T>* to) -> absl::Status {
      SB_ASSIGN_OR_RETURN(*to, backend->Allocate<T>(static_cast<int64_t>(from.size())));
      return backend->CopyToDevice(from, to->span());
    };
    SB_RETURN_IF_ERROR(copy(b.cu_seqlens, &cu_seqlens));
    SB_RETURN_IF_ERROR(copy(b.first_block, &first_block));
    SB_RETURN_IF_ERROR(copy(b.block_begin, &block_begin));
    return copy(b.block_sequence, &block_sequence);
  }

  DeviceArray<int64_t> cu_seqlens, first_block, block_begin;
  DeviceArray<int32_t> block_sequence;
};

// What the host knows, without addresses: enough to ask for scratch.
DeviceBlocks Sizes(const PackedBlocks& b) {
  DeviceBlocks out;
  out.block_tokens = b.block_tokens;
  out.tokens = b.tokens();
  out.sequences = b.sequences();
  out.blocks = b.blocks();
  for (int64_t s = 0; s < b.sequences(); ++s) {
    out.most_blocks = std::max(out.most_blocks, b.SequenceBlocks(s));
  }
  return out;
}

}  // namespace

// Gives launchers the addresses of a layout and of lists.
class CudaBackend::Views {
 public:
  explicit Views(CudaBackend* backend) : backend_(backend) {}

  DeviceBlocks Blocks(const AttentionLayout& layout) const {
    const auto& own = static_cast<const CudaLayout&>(layout);
    DeviceBlocks out = Sizes(own.blocks());
    out.cu_seqlens = At(own.cu_seqlens);
    out.first_block = At(own.first_block);
    out.block_begin = At(own.block_begin);
    out.block_sequence = At(own.block_sequence);
    return out;
  }
  DeviceLists Lists(const BlockLists& lists) const {
    DeviceLists out;
    out.pairs = lists.pairs;
    out.query_offsets = At(lists.query_offsets);
    out.query_blocks = At(lists.query_blocks);
    out.block_offsets = At(lists.block_offsets);
    out.block_queries = At(lists.block_queries);
    return out;
  }

 private:
  template <typename T>
  DevicePtr<const T> At(const DeviceArray<T>& array) const {
    return backend_->At(DeviceSpan<const T>(array.span()));
  }

  CudaBackend* backend_;
};

absl::StatusOr<std::unique_ptr<AttentionLayout>> CudaBackend::CreateLayout(PackedBlocks blocks) {
  auto layout = std::make_unique<CudaLayout>(std::move(blocks));
  SB_RETURN_IF_ERROR(layout->Upload(this));
  return std::unique_ptr<AttentionLayout>(std::move(layout));
}

absl::Status CudaBackend::BlockMeans(const AttentionShape& shape, const AttentionLayout& layout,
                                     ConstDeviceBuffer k, DeviceBuffer means) {
  SB_RETURN_IF_ERROR(op_checks::BlockMeans(shape, layout.blocks(), k, means));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const DeviceBlocks blocks = Views(this).Blocks(layout);
  return Dispatch(k.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchBlockMeans<T>(stream, shape, blocks, At<T>(k), At<float>(means));
  });
}

absl::StatusOr<DeviceArray<double>> CudaBackend::DeviceCurves(const AttentionShape& shape,
                                                              const AttentionLayout& layout,
                                                              ConstDeviceBuffer q,
                                                              ConstDeviceBuffer means,
                                                              int sample_stride) {
  SB_RETURN_IF_ERROR(op_checks::CoverageCurves(shape, layout.blocks(), q, means, sample_stride));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const DeviceBlocks blocks = Views(this).Blocks(layout);
  const int64_t shared = platform_->facts().shared_bytes;
  SB_ASSIGN_OR_RETURN(DeviceArray<double> curves,
                      Allocate<double>(blocks.sequences * CoverageGridSize(blocks.most_blocks)));
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(CoverageScratchBytes(shape, blocks, shared)));
  SB_RETURN_IF_ERROR(Dispatch(q.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchCoverageCurves<T>(stream, shape, blocks, shared, At<T>(q), At<float>(means),
                                   sample_stride, At(curves.span()), At(scratch.span()));
  }));
  return curves;
}

std::vector<std::vector<double>> CudaBackend::CurvesOf(const PackedBlocks& blocks,
                                                       const std::vector<double>& curves) const {
  const int64_t width = CoverageGridSize(Sizes(blocks).most_blocks);
  std::vector<std::vector<double>> out;
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    const auto begin = curves.begin() + s * width;
    out.emplace_back(begin, begin + CoverageGridSize(blocks.SequenceBlocks(s)));
  }
  return out;
}

absl::StatusOr<std::vector<std::vector<double>>> CudaBackend::CoverageCurves(
    const AttentionShape& shape, const AttentionLayout& layout, ConstDeviceBuffer q,
    ConstDeviceBuffer means, int sample_stride) {
  SB_ASSIGN_OR_RETURN(const DeviceArray<double> curves,
                      DeviceCurves(shape, layout, q, means, sample_stride));
  std::vector<double> host(static_cast<size_t>(curves.size()));
  SB_RETURN_IF_ERROR(CopyToHost(curves.span(), host.data()));
  return CurvesOf(layout.blocks(), host);
}

absl::StatusOr<BlockLists> CudaBackend::Select(const AttentionShape& shape,
                                               const AttentionLayout& layout, ConstDeviceBuffer q,
                                               ConstDeviceBuffer means,
                                               DeviceSpan<const int32_t> budgets, int64_t pairs) {
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const DeviceBlocks blocks = Views(this).Blocks(layout);
  const int64_t shared = platform_->facts().shared_bytes;
  BlockLists lists;
  lists.pairs = pairs;
  SB_ASSIGN_OR_RETURN(lists.query_offsets, Allocate<int64_t>(blocks.tokens + 1));
  SB_ASSIGN_OR_RETURN(lists.query_blocks, Allocate<int32_t>(shape.num_heads * pairs));
  // One after another on the stream: they can share it.
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch_array,
                      Scratch(std::max(QueryOffsetsScratchBytes(blocks),
                                       SelectScratchBytes(shape, blocks, shared))));
  const DevicePtr<std::byte> scratch = At(scratch_array.span());
  const DevicePtr<int64_t> query_offsets = At(lists.query_offsets.span());
  SB_RETURN_IF_ERROR(LaunchQueryOffsets(stream, blocks, At(budgets), query_offsets, scratch));
  SB_RETURN_IF_ERROR(Dispatch(q.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchSelectBlocks<T>(stream, shape, blocks, shared, At<T>(q), At<float>(means),
                                 query_offsets, pairs, At(lists.query_blocks.span()), scratch);
  }));
  SB_RETURN_IF_ERROR(BuildBlockLists(shape, layout, &lists));
  return lists;
}

absl::StatusOr<BlockLists> CudaBackend::SelectBlocks(const AttentionShape& shape,
                                                     const AttentionLayout& layout,
                                                     ConstDeviceBuffer q, ConstDeviceBuffer means,
                                                     const std::vector<int32_t>& budgets) {
  const PackedBlocks& packed = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::SelectBlocks(shape, packed, q, means, budgets));
  SB_ASSIGN_OR_RETURN(const DeviceArray<int32_t> on_device, Allocate<int32_t>(packed.sequences()));
  SB_RETURN_IF_ERROR(CopyToDevice(budgets, on_device.span()));
  return Select(shape, layout, q, means, on_device.span(), SelectedPairs(packed, budgets));
}

// What Route has left on the device.
class CudaBackend::DeviceFactsOfRouting final : public PendingRouting {
 public:
  DeviceFactsOfRouting(CudaBackend* backend, PackedBlocks blocks, DeviceArray<double> curves,
                       DeviceArray<int32_t> budgets)
      : backend_(backend),
        blocks_(std::move(blocks)),
        curves_(std::move(curves)),
        budgets_(std::move(budgets)) {}

  absl::StatusOr<RoutingFacts> Read() override {
    std::vector<double> curves(static_cast<size_t>(curves_.size()));
    RoutingFacts out;
    out.realized_budgets.resize(static_cast<size_t>(budgets_.size()));
    SB_RETURN_IF_ERROR(backend_->CopyToHost(curves_.span(), curves.data()));
    SB_RETURN_IF_ERROR(backend_->CopyToHost(budgets_.span(), out.realized_budgets.data()));
    out.coverage = backend_->CurvesOf(blocks_, curves);
    return out;
  }

 private:
  CudaBackend* backend_;
  PackedBlocks blocks_;
  DeviceArray<double> curves_;
  DeviceArray<int32_t> budgets_;
};

absl::StatusOr<Routing> CudaBackend::Route(const AttentionShape& shape,
                                           const AttentionLayout& layout, ConstDeviceBuffer q,
                                           ConstDeviceBuffer means, const RoutingRequest& request) {
  const PackedBlocks& packed = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::Route(packed, request));
  const int64_t sequences = packed.sequences();
  SB_ASSIGN_OR_RETURN(DeviceArray<double> curves,
                      DeviceCurves(shape, layout, q, means, request.sample_stride));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  // Planned, then base.
  std::vector<int32_t> asked = request.planned;
  asked.insert(asked.end(), request.base.begin(), request.base.end());
  SB_ASSIGN_OR_RETURN(const DeviceArray<int32_t> given, Allocate<int32_t>(2 * sequences));
  SB_RETURN_IF_ERROR(CopyToDevice(asked, given.span()));
  SB_ASSIGN_OR_RETURN(DeviceArray<int32_t> realized, Allocate<int32_t>(sequences));
  const DevicePtr<const int32_t> budgets = At(DeviceSpan<const int32_t>(given.span()));
  SB_RETURN_IF_ERROR(LaunchRealizedBudgets(
      stream, Views(this).Blocks(layout), At(DeviceSpan<const double>(curves.span())), budgets,
      budgets + sequences, request.coverage_guard, At(realized.span())));
  std::vector<int32_t> most;
  for (int64_t s = 0; s < sequences; ++s) {
    most.push_back(std::max(request.planned[s], request.base[s]));
  }
  Routing out;
  SB_ASSIGN_OR_RETURN(
      out.lists, Select(shape, layout, q, means, realized.span(), SelectedPairs(packed, most)));
  out.facts =
      std::make_unique<DeviceFactsOfRouting>(this, packed, std::move(curves), std::move(realized));
  return out;
}

absl::Status CudaBackend::BuildBlockLists(const AttentionShape& shape,
                                          const AttentionLayout& layout, BlockLists* lists) {
  SB_RETURN_IF_ERROR(op_checks::BuildBlockLists(shape, layout.blocks(), *lists));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const DeviceBlocks blocks = Views(this).Blocks(layout);
  const int64_t heads = shape.num_heads;
  SB_ASSIGN_OR_RETURN(lists->block_offsets, Allocate<int64_t>(heads * (blocks.blocks + 1)));
  SB_ASSIGN_OR_RETURN(lists->block_queries, Allocate<int32_t>(heads * lists->pairs));
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(BlockListsScratchBytes(shape.num_heads, blocks)));
  const DeviceLists views = Views(this).Lists(*lists);
  return LaunchBlockLists(stream, shape.num_heads, blocks, views.query_offsets, lists->pairs,
                          views.query_blocks, At(lists->block_offsets.span()),
                          At(lists->block_queries.span()), At(scratch.span()));
}

absl::Status CudaBackend::AttentionForward(const AttentionShape& shape,
                                           const AttentionLayout& layout, const BlockLists& lists,
                                           ConstDeviceBuffer q, ConstDeviceBuffer k,
                                           ConstDeviceBuffer v, DeviceBuffer out,
                                           DeviceBuffer lse) {
  SB_RETURN_IF_ERROR(op_checks::AttentionForward(shape, layout.blocks(), lists, q, k, v, out, lse));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const Views views(this);
  return Dispatch(q.type(), [&]<typename Tag>(Tag) -> absl::Status {
    using T = typename Tag::Type;
    const int64_t bytes = AttentionForwardScratchBytes<T>(shape, Sizes(layout.blocks()),
                                                          lists.pairs, kAttentionScratch);
    SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch, Scratch(bytes));
    return LaunchAttentionForward<T>(stream, shape, views.Blocks(layout), views.Lists(lists),
                                     At<T>(q), At<T>(k), At<T>(v), At<T>(out), At<float>(lse),
                                     bytes, At(scratch.span()));
  });
}

absl::Status CudaBackend::AttentionBackward(const AttentionShape& shape,
                                            const AttentionLayout& layout, const BlockLists& lists,
                                            ConstDeviceBuffer q, ConstDeviceBuffer k,
                                            ConstDeviceBuffer v, ConstDeviceBuffer out,
                                            ConstDeviceBuffer lse, ConstDeviceBuffer out_grad,
                                            DeviceBuffer q_grad, DeviceBuffer k_grad,
                                            DeviceBuffer v_grad) {
  SB_RETURN_IF_ERROR(op_checks::AttentionBackward(shape, layout.blocks(), lists, q, k, v, out, lse,
                                                  out_grad, q_grad, k_grad, v_grad));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const Views views(this);
  return Dispatch(q.type(), [&]<typename Tag>(Tag) -> absl::Status {
    using T = typename Tag::Type;
    const int64_t bytes = AttentionBackwardScratchBytes<T>(shape, Sizes(layout.blocks()),
                                                           lists.pairs, kAttentionScratch);
    SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch, Scratch(bytes));
    const AttentionBackwardTensors<T> tensors = {At<T>(q),      At<T>(k),       At<T>(v),
                                                 At<T>(out),    At<float>(lse), At<T>(out_grad),
                                                 At<T>(q_grad), At<T>(k_grad),  At<T>(v_grad)};
    return LaunchAttentionBackward<T>(stream, shape, views.Blocks(layout), views.Lists(lists),
                                      tensors, bytes, At(scratch.span()));
  });
}

absl::StatusOr<std::vector<double>> CudaBackend::AttentionMass(const AttentionShape& shape,
                                                               const AttentionLayout& layout,
                                                               const BlockLists& lists,
                                                               ConstDeviceBuffer q,
                                                               ConstDeviceBuffer k, int queries) {
  SB_RETURN_IF_ERROR(op_checks::AttentionMass(shape, layout.blocks(), lists, q, k, queries));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const Views views(this);
  const DeviceBlocks blocks = views.Blocks(layout);
  SB_ASSIGN_OR_RETURN(const DeviceArray<double> mass, Allocate<double>(blocks.sequences));
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(AttentionMassScratchBytes(shape, blocks, queries)));
  SB_RETURN_IF_ERROR(Dispatch(q.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchAttentionMass<T>(stream, shape, blocks, views.Lists(lists), At<T>(q), At<T>(k),
                                  queries, At(mass.span()), At(scratch.span()));
  }));
  std::vector<double> host(static_cast<size_t>(blocks.sequences));
  SB_RETURN_IF_ERROR(CopyToHost(mass.span(), host.data()));
  return host;
}

int64_t CudaBackend::AttentionForwardScratch(const AttentionShape& shape,
                                             const PackedBlocks& blocks, int64_t pairs) const {
  return Dispatch(options_.activation_type, [&]<typename Tag>(Tag) {
    return AttentionForwardScratchBytes<typename Tag::Type>(shape, Sizes(blocks), pairs,
                                                            kAttentionScratch);
  });
}

int64_t CudaBackend::AttentionBackwardScratch(const AttentionShape& shape,
                                              const PackedBlocks& blocks, int64_t pairs) const {
  return Dispatch(options_.activation_type, [&]<typename Tag>(Tag) {
    return AttentionBackwardScratchBytes<typename Tag::Type>(shape, Sizes(blocks), pairs,
                                                             kAttentionScratch);
  });
}

}  // namespace sparsebalance::kernels::cuda
