#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/packed_blocks.h"
#include "kernels/status_macros.h"
#include "tests/gpu/measure.h"
#include "tests/gpu/noise.h"

namespace sparsebalance::gpu {
namespace {

using kernels::Backend;
using kernels::BlockLists;
using kernels::DeviceArray;
using kernels::DeviceTensor;

// One sequence of some length, cut into blocks, and what attention works on.
class Attention {
 public:
  Attention(Backend& backend, const MeasureOptions& o, int64_t tokens, int block_tokens)
      : backend_(backend),
        options_(o),
        tokens_(tokens),
        block_tokens_(block_tokens),
        q_width_(int64_t{o.num_heads} * o.head_dim),
        kv_width_(int64_t{o.num_kv_heads} * o.head_dim),
        width_(q_width_ + 2 * kv_width_),
        shape_{o.num_heads, o.num_kv_heads, o.head_dim, width_, width_, q_width_} {}

  absl::Status Prepare() {
    SB_ASSIGN_OR_RETURN(kernels::PackedBlocks blocks,
                        kernels::MakePackedBlocks({0, tokens_}, block_tokens_));
    SB_ASSIGN_OR_RETURN(layout_, backend_.CreateLayout(std::move(blocks)));
    SB_ASSIGN_OR_RETURN(qkv_, backend_.AllocateActivations(tokens_ * width_));
    SB_ASSIGN_OR_RETURN(gradient_, backend_.AllocateActivations(tokens_ * width_));
    SB_ASSIGN_OR_RETURN(out_, backend_.AllocateActivations(tokens_ * q_width_));
    SB_ASSIGN_OR_RETURN(lse_, backend_.Allocate<float>(options_.num_heads * tokens_));
    SB_ASSIGN_OR_RETURN(means_, backend_.Allocate<float>(kv_width_ * layout_->blocks().blocks()));
    return FillWithNoise(backend_, qkv_.span());
  }

  absl::Status Means() {
    return backend_.BlockMeans(shape_, *layout_, qkv_.span().Slice(q_width_), means_.span());
  }
  absl::Status Select(int32_t budget) {
    SB_ASSIGN_OR_RETURN(
        lists_, backend_.SelectBlocks(shape_, *layout_, qkv_.span(), means_.span(), {budget}));
    return absl::OkStatus();
  }
  // Of what was selected.
  absl::Status Lists() { return backend_.BuildBlockLists(shape_, *layout_, &lists_); }
  absl::Status Forward() {
    return backend_.AttentionForward(
        shape_, *layout_, lists_, qkv_.span(), qkv_.span().Slice(q_width_),
        qkv_.span().Slice(q_width_ + kv_width_), out_.span(), lse_.span());
  }
  // The output stands in for its gradient: time does not depend on values.
  absl::Status Backward() {
    return backend_.AttentionBackward(
        shape_, *layout_, lists_, qkv_.span(), qkv_.span().Slice(q_width_),
        qkv_.span().Slice(q_width_ + kv_width_), out_.span(), lse_.span(), out_.span(),
        gradient_.span(), gradient_.span().Slice(q_width_),
        gradient_.span().Slice(q_width_ + kv_width_));
  }

  // Two products forward, five backward, over the pairs of query and key that are attended.
  double ForwardFlops(int32_t budget) const {
    return 4.0 * options_.head_dim * options_.num_heads *
           kernels::AttendedPairs(tokens_, block_tokens_, budget);
  }

 private:
  Backend& backend_;
  const MeasureOptions& options_;
  const int64_t tokens_;
  const int block_tokens_;
  const int64_t q_width_, kv_width_, width_;
  const kernels::AttentionShape shape_;
  std::unique_ptr<kernels::AttentionLayout> layout_;
  DeviceTensor qkv_, gradient_, out_;
  DeviceArray<float> lse_, means_;
  BlockLists lists_;
};

}  // namespace

absl::StatusOr<std::vector<Measurement>> MeasureAttention(Backend& backend,
                                                          const MeasureOptions& options) {
  std::vector<Measurement> out;
  const auto add = [&](std::string name, int64_t tokens, double flops,
                       const std::function<absl::Status()>& body) -> absl::Status {
    SB_ASSIGN_OR_RETURN(const double seconds, TimeOf(backend, options.seconds, body));
    out.push_back({"attention", std::move(name), tokens, seconds, 0, flops});
    return absl::OkStatus();
  };
  for (const int64_t tokens : options.lengths) {
    {
      Attention attention(backend, options, tokens, options.block_tokens);
      SB_RETURN_IF_ERROR(attention.Prepare());
      SB_RETURN_IF_ERROR(attention.Means());
      const int32_t budget = options.budget;
      const double forward = attention.ForwardFlops(budget);
      SB_RETURN_IF_ERROR(add("means", tokens, 0, [&] { return attention.Means(); }));
      SB_RETURN_IF_ERROR(add("select", tokens, 0, [&] { return attention.Select(budget); }));
      SB_RETURN_IF_ERROR(add("lists", tokens, 0, [&] { return attention.Lists(); }));
      SB_RETURN_IF_ERROR(add("forward", tokens, forward, [&] { return attention.Forward(); }));
      SB_RETURN_IF_ERROR(
          add("backward", tokens, 2.5 * forward, [&] { return attention.Backward(); }));
      const auto routed_forward = [&]() -> absl::Status {
        SB_RETURN_IF_ERROR(attention.Means());
        SB_RETURN_IF_ERROR(attention.Select(budget));
        return attention.Forward();
      };
      const auto routed_both = [&]() -> absl::Status {
        SB_RETURN_IF_ERROR(routed_forward());
        return attention.Backward();
      };
      SB_RETURN_IF_ERROR(add("routed forward", tokens, forward, routed_forward));
      SB_RETURN_IF_ERROR(add("routed forward + backward", tokens, 3.5 * forward, routed_both));
    }
    if (tokens > options.longest_dense) continue;
    // A sequence of one block attends to all that came before: dense causal attention. Its backward
    // pass takes scratch that grows with the square: where that is not there, nothing is said.
    const auto measure_dense = [&]() -> absl::Status {
      Attention dense(backend, options, tokens, static_cast<int>(tokens));
      SB_RETURN_IF_ERROR(dense.Prepare());
      SB_RETURN_IF_ERROR(dense.Means());
      SB_RETURN_IF_ERROR(dense.Select(1));
      const double forward = dense.ForwardFlops(1);
      SB_RETURN_IF_ERROR(add("dense forward", tokens, forward, [&] { return dense.Forward(); }));
      return add("dense backward", tokens, 2.5 * forward, [&] { return dense.Backward(); });
    };
    if (absl::Status status = measure_dense(); !absl::IsResourceExhausted(status)) {
      SB_RETURN_IF_ERROR(status);
    }
  }
  return out;
}

}  // namespace sparsebalance::gpu
