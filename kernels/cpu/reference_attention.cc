#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/reference.h"

namespace sparsebalance::kernels::reference {
namespace {

const double* Row(const Tensor& x, int64_t token, int heads, int head, int head_dim) {
  return x.data() + (token * heads + head) * head_dim;
}

int KvHead(const Heads& heads, int head) { return head / (heads.num_heads / heads.num_kv_heads); }

double Dot(const double* a, const double* b, int n) { return std::inner_product(a, a + n, b, 0.0); }

// q_t . mean(K_b) for the blocks of t's sequence that lie before t's own.
std::vector<double> RouterScores(const Heads& heads, const PackedBlocks& blocks, const Tensor& q,
                                 const Tensor& k, int head, int64_t block, int64_t token) {
  std::vector<double> scores;
  const int64_t first = blocks.first_block[blocks.block_sequence[block]];
  for (int64_t b = first; b < block; ++b) {
    std::vector<double> mean(heads.head_dim, 0.0);
    for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) {
      const double* key = Row(k, t, heads.num_kv_heads, KvHead(heads, head), heads.head_dim);
      for (int d = 0; d < heads.head_dim; ++d) {
        mean[d] += key[d] / static_cast<double>(blocks.BlockTokens(b));
      }
    }
    scores.push_back(
        Dot(Row(q, token, heads.num_heads, head, heads.head_dim), mean.data(), heads.head_dim));
  }
  return scores;
}

// The tokens that `token` attends to in `head`.
std::vector<int64_t> Visible(const PackedBlocks& blocks, const std::vector<int32_t>& selected,
                             int64_t block, int64_t token) {
  std::vector<int64_t> keys;
  for (const int32_t b : selected) {
    for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) keys.push_back(t);
  }
  for (int64_t t = blocks.block_begin[block]; t <= token; ++t) keys.push_back(t);
  return keys;
}

// Softmax probabilities over `keys`, and the log-sum-exp.
std::vector<double> Probabilities(const Heads& heads, const Tensor& q, const Tensor& k, int head,
                                  int64_t token, const std::vector<int64_t>& keys, double* lse) {
  std::vector<double> p;
  const double scale = 1.0 / std::sqrt(static_cast<double>(heads.head_dim));
  for (const int64_t key : keys) {
    p.push_back(scale * Dot(Row(q, token, heads.num_heads, head, heads.head_dim),
                            Row(k, key, heads.num_kv_heads, KvHead(heads, head), heads.head_dim),
                            heads.head_dim));
  }
  const double max = *std::max_element(p.begin(), p.end());
  double sum = 0;
  for (const double s : p) sum += std::exp(s - max);
  *lse = max + std::log(sum);
  for (double& s : p) s = std::exp(s - *lse);
  return p;
}

template <typename Body>
void ForEachQuery(const Heads& heads, const PackedBlocks& blocks, Body&& body) {
  for (int h = 0; h < heads.num_heads; ++h) {
    for (int64_t b = 0; b < blocks.blocks(); ++b) {
      for (int64_t t = blocks.block_begin[b]; t < blocks.block_begin[b + 1]; ++t) body(h, b, t);
    }
  }
}

}  // namespace

Selection SelectBlocks(const Heads& heads, const PackedBlocks& blocks, const Tensor& q,
                       const Tensor& k, const std::vector<int32_t>& budgets) {
  Selection out(heads.num_heads, std::vector<std::vector<int32_t>>(blocks.tokens()));
  ForEachQuery(heads, blocks, [&](int h, int64_t b, int64_t t) {
    const std::vector<double> scores = RouterScores(heads, blocks, q, k, h, b, t);
    std::vector<int32_t> order(scores.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t x, int32_t y) { return scores[x] > scores[y]; });
    const int32_t sequence = blocks.block_sequence[b];
    order.resize(std::min<size_t>(order.size(), budgets[sequence] - 1));
    std::sort(order.begin(), order.end());
    for (int32_t& i : order) i += static_cast<int32_t>(blocks.first_block[sequence]);
    out[h][t] = order;
  });
  return out;
}

Attention AttentionForward(const Heads& heads, const PackedBlocks& blocks,
                           const Selection& selection, const Tensor& q, const Tensor& k,
                           const Tensor& v) {
  Attention out{Tensor(q.size(), 0.0), Tensor(heads.num_heads * blocks.tokens())};
  ForEachQuery(heads, blocks, [&](int h, int64_t b, int64_t t) {
    const std::vector<int64_t> keys = Visible(blocks, selection[h][t], b, t);
    double* lse = &out.lse[h * blocks.tokens() + t];
    const std::vector<double> p = Probabilities(heads, q, k, h, t, keys, lse);
    double* to = out.out.data() + (t * heads.num_heads + h) * heads.head_dim;
    for (size_t i = 0; i < keys.size(); ++i) {
      const double* value = Row(v, keys[i], heads.num_kv_heads, KvHead(heads, h), heads.head_dim);
      for (int d = 0; d < heads.head_dim; ++d) to[d] += p[i] * value[d];
    }
  });
  return out;
}

AttentionGrads AttentionBackward(const Heads& heads, const PackedBlocks& blocks,
                                 const Selection& selection, const Tensor& q, const Tensor& k,
                                 const Tensor& v, const Tensor& out_grad) {
  AttentionGrads out{Tensor(q.size(), 0.0), Tensor(k.size(), 0.0), Tensor(v.size(), 0.0)};
  const double scale = 1.0 / std::sqrt(static_cast<double>(heads.head_dim));
  ForEachQuery(heads, blocks, [&](int h, int64_t b, int64_t t) {
    const std::vector<int64_t> keys = Visible(blocks, selection[h][t], b, t);
    double lse = 0;
    const std::vector<double> p = Probabilities(heads, q, k, h, t, keys, &lse);
    const double* g = Row(out_grad, t, heads.num_heads, h, heads.head_dim);
    const double* query = Row(q, t, heads.num_heads, h, heads.head_dim);
    std::vector<double> p_grad;
    double mean = 0;  // of p_grad under p
    for (size_t i = 0; i < keys.size(); ++i) {
      p_grad.push_back(Dot(g, Row(v, keys[i], heads.num_kv_heads, KvHead(heads, h), heads.head_dim),
                           heads.head_dim));
      mean += p[i] * p_grad[i];
    }
    for (size_t i = 0; i < keys.size(); ++i) {
      const int64_t at = (keys[i] * heads.num_kv_heads + KvHead(heads, h)) * heads.head_dim;
      const double score_grad = p[i] * (p_grad[i] - mean) * scale;
      for (int d = 0; d < heads.head_dim; ++d) {
        out.v[at + d] += p[i] * g[d];
        out.k[at + d] += score_grad * query[d];
        out.q[(t * heads.num_heads + h) * heads.head_dim + d] += score_grad * k[at + d];
      }
    }
  });
  return out;
}

std::vector<double> CoverageCurve(const Heads& heads, const PackedBlocks& blocks, const Tensor& q,
                                  const Tensor& k, int64_t s, int sample_stride) {
  const std::vector<int64_t> grid = CoverageGrid(blocks.SequenceBlocks(s));
  if (grid.size() == 1) return {1.0};
  std::vector<double> curve(grid.size(), 0.0);
  double queries = 0;
  ForEachQuery(heads, blocks, [&](int h, int64_t b, int64_t t) {
    const int64_t from_last = blocks.cu_seqlens[s + 1] - 1 - t;
    if (blocks.block_sequence[b] != s || blocks.PastBlocks(b) == 0) return;
    if (from_last % sample_stride != 0) return;
    std::vector<double> mass = RouterScores(heads, blocks, q, k, h, b, t);
    double sum = 0;
    for (double& m : mass) {
      m = std::exp(m / std::sqrt(static_cast<double>(heads.head_dim)));
      sum += m;
    }
    std::sort(mass.rbegin(), mass.rend());
    for (size_t g = 0; g < grid.size(); ++g) {
      const auto top = std::min<int64_t>(grid[g] - 1, static_cast<int64_t>(mass.size()));
      curve[g] += std::accumulate(mass.begin(), mass.begin() + top, 0.0) / sum;
    }
    ++queries;
  });
  for (double& c : curve) c /= queries;
  return curve;
}

}  // namespace sparsebalance::kernels::reference
