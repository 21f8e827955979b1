#pragma once

// The ops of a training step, in double and as plain as their formulas: what tests hold the kernels
// against. Slow on purpose; nothing but tests uses it. All tensors are contiguous and row-major.

#include <cstdint>
#include <vector>

#include "kernels/packed_blocks.h"

namespace sparsebalance::kernels::reference {

using Tensor = std::vector<double>;

// c [m, n] = op(a) op(b), a [m, k] or transposed [k, m], b [k, n] or transposed [n, k].
Tensor Matmul(int64_t m, int64_t n, int64_t k, const Tensor& a, bool transpose_a, const Tensor& b,
              bool transpose_b);

Tensor EmbeddingForward(int64_t columns, const std::vector<int32_t>& ids, const Tensor& table);
Tensor EmbeddingBackward(int64_t rows, int64_t columns, const std::vector<int32_t>& ids,
                         const Tensor& out_grad);

Tensor RmsNormForward(int64_t columns, double epsilon, const Tensor& x, const Tensor& weight);
struct RmsNormGrads {
  Tensor x, weight;
};
RmsNormGrads RmsNormBackward(int64_t columns, double epsilon, const Tensor& x, const Tensor& weight,
                             const Tensor& y_grad);

// x [tokens, heads, head_dim]; turned back where `inverse`.
Tensor Rope(int heads, int head_dim, double theta, const std::vector<int32_t>& positions,
            const Tensor& x, bool inverse);

// gate_up [rows, 2 * columns].
Tensor SwiGluForward(int64_t columns, const Tensor& gate_up);
Tensor SwiGluBackward(int64_t columns, const Tensor& gate_up, const Tensor& out_grad);

// Sum over rows of weight * -log softmax(logits)[target], and its gradient.
double CrossEntropyLoss(int64_t classes, const Tensor& logits, const std::vector<int32_t>& targets,
                        const Tensor& weights);
Tensor CrossEntropyGrad(int64_t classes, const Tensor& logits, const std::vector<int32_t>& targets,
                        const Tensor& weights);

struct Heads {
  int num_heads, num_kv_heads, head_dim;
};

// Attention by mask. q [tokens, num_heads, head_dim]; k, v [tokens, num_kv_heads, head_dim].
// selected[h][t]: the past blocks of query t in head h, by global number, ascending.
using Selection = std::vector<std::vector<std::vector<int32_t>>>;

Selection SelectBlocks(const Heads& heads, const PackedBlocks& blocks, const Tensor& q,
                       const Tensor& k, const std::vector<int32_t>& budgets);

struct Attention {
  Tensor out;  // [tokens, num_heads, head_dim]
  Tensor lse;  // [num_heads, tokens]
};
Attention AttentionForward(const Heads& heads, const PackedBlocks& blocks,
                           const Selection& selection, const Tensor& q, const Tensor& k,
                           const Tensor& v);
struct AttentionGrads {
  Tensor q, k, v;
};
AttentionGrads AttentionBackward(const Heads& heads, const PackedBlocks& blocks,
                                 const Selection& selection, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& out_grad);

// Coverage of sequence s at CoverageGrid, over the queries whose distance from the sequence's last
// token is a multiple of sample_stride.
std::vector<double> CoverageCurve(const Heads& heads, const PackedBlocks& blocks, const Tensor& q,
                                  const Tensor& k, int64_t s, int sample_stride);

}  // namespace sparsebalance::kernels::reference
