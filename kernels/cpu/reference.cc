#include "kernels/cpu/reference.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace sparsebalance::kernels::reference {
namespace {

double Sigmoid(double x) { return 1.0 / (1.0 + std::exp(-x)); }

int64_t RowCount(const Tensor& x, int64_t columns) {
  return static_cast<int64_t>(x.size()) / columns;
}

}  // namespace

Tensor Matmul(int64_t m, int64_t n, int64_t k, const Tensor& a, bool transpose_a, const Tensor& b,
              bool transpose_b) {
  Tensor c(m * n, 0.0);
  for (int64_t i = 0; i < m; ++i) {
    for (int64_t j = 0; j < n; ++j) {
      for (int64_t p = 0; p < k; ++p) {
        c[i * n + j] += (transpose_a ? a[p * m + i] : a[i * k + p]) *
                        (transpose_b ? b[j * k + p] : b[p * n + j]);
      }
    }
  }
  return c;
}

Tensor EmbeddingForward(int64_t columns, const std::vector<int32_t>& ids, const Tensor& table) {
  Tensor out;
  for (const int32_t id : ids) {
    for (int64_t c = 0; c < columns; ++c) out.push_back(table[id * columns + c]);
  }
  return out;
}

Tensor EmbeddingBackward(int64_t rows, int64_t columns, const std::vector<int32_t>& ids,
                         const Tensor& out_grad) {
  Tensor grad(rows * columns, 0.0);
  for (size_t t = 0; t < ids.size(); ++t) {
    for (int64_t c = 0; c < columns; ++c) {
      grad[ids[t] * columns + c] += out_grad[static_cast<int64_t>(t) * columns + c];
    }
  }
  return grad;
}

Tensor RmsNormForward(int64_t columns, double epsilon, const Tensor& x, const Tensor& weight) {
  Tensor y(x.size());
  for (int64_t r = 0; r < RowCount(x, columns); ++r) {
    double squares = 0;
    for (int64_t c = 0; c < columns; ++c) squares += x[r * columns + c] * x[r * columns + c];
    const double rms = std::sqrt(squares / static_cast<double>(columns) + epsilon);
    for (int64_t c = 0; c < columns; ++c) y[r * columns + c] = x[r * columns + c] / rms * weight[c];
  }
  return y;
}

RmsNormGrads RmsNormBackward(int64_t columns, double epsilon, const Tensor& x, const Tensor& weight,
                             const Tensor& y_grad) {
  RmsNormGrads out{Tensor(x.size()), Tensor(columns, 0.0)};
  for (int64_t r = 0; r < RowCount(x, columns); ++r) {
    const double* in = x.data() + r * columns;
    const double* g = y_grad.data() + r * columns;
    double squares = 0;
    double dot = 0;
    for (int64_t c = 0; c < columns; ++c) {
      squares += in[c] * in[c];
      dot += g[c] * weight[c] * in[c];
    }
    const auto n = static_cast<double>(columns);
    const double rms = std::sqrt(squares / n + epsilon);
    for (int64_t c = 0; c < columns; ++c) {
      out.x[r * columns + c] = g[c] * weight[c] / rms - in[c] * dot / (n * rms * rms * rms);
      out.weight[c] += g[c] * in[c] / rms;
    }
  }
  return out;
}

Tensor Rope(int heads, int head_dim, double theta, const std::vector<int32_t>& positions,
            const Tensor& x, bool inverse) {
  Tensor y(x.size());
  const int half = head_dim / 2;
  for (size_t t = 0; t < positions.size(); ++t) {
    for (int h = 0; h < heads; ++h) {
      const size_t at = (t * heads + h) * head_dim;
      for (int i = 0; i < half; ++i) {
        double angle = positions[t] * std::pow(theta, -2.0 * i / head_dim);
        if (inverse) angle = -angle;
        y[at + i] = x[at + i] * std::cos(angle) - x[at + half + i] * std::sin(angle);
        y[at + half + i] = x[at + half + i] * std::cos(angle) + x[at + i] * std::sin(angle);
      }
    }
  }
  return y;
}

Tensor SwiGluForward(int64_t columns, const Tensor& gate_up) {
  Tensor out;
  for (int64_t r = 0; r < RowCount(gate_up, 2 * columns); ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const double gate = gate_up[r * 2 * columns + c];
      out.push_back(gate * Sigmoid(gate) * gate_up[r * 2 * columns + columns + c]);
    }
  }
  return out;
}

Tensor SwiGluBackward(int64_t columns, const Tensor& gate_up, const Tensor& out_grad) {
  Tensor grad(gate_up.size());
  for (int64_t r = 0; r < RowCount(gate_up, 2 * columns); ++r) {
    for (int64_t c = 0; c < columns; ++c) {
      const int64_t gate_at = r * 2 * columns + c;
      const double gate = gate_up[gate_at];
      const double s = Sigmoid(gate);
      const double g = out_grad[r * columns + c];
      grad[gate_at] = g * gate_up[gate_at + columns] * (s + gate * s * (1.0 - s));
      grad[gate_at + columns] = g * gate * s;
    }
  }
  return grad;
}

double CrossEntropyLoss(int64_t classes, const Tensor& logits, const std::vector<int32_t>& targets,
                        const Tensor& weights) {
  double loss = 0;
  for (size_t r = 0; r < targets.size(); ++r) {
    if (weights[r] == 0) continue;
    const auto begin = logits.begin() + static_cast<std::ptrdiff_t>(r * classes);
    const double max = *std::max_element(begin, begin + classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(begin[c] - max);
    loss += weights[r] * (std::log(sum) + max - begin[targets[r]]);
  }
  return loss;
}

Tensor CrossEntropyGrad(int64_t classes, const Tensor& logits, const std::vector<int32_t>& targets,
                        const Tensor& weights) {
  Tensor grad(logits.size(), 0.0);
  for (size_t r = 0; r < targets.size(); ++r) {
    if (weights[r] == 0) continue;
    const double* x = logits.data() + r * classes;
    const double max = *std::max_element(x, x + classes);
    double sum = 0;
    for (int64_t c = 0; c < classes; ++c) sum += std::exp(x[c] - max);
    for (int64_t c = 0; c < classes; ++c) {
      grad[r * classes + c] =
          weights[r] * (std::exp(x[c] - max) / sum - (c == targets[r] ? 1.0 : 0.0));
    }
  }
  return grad;
}

}  // namespace sparsebalance::kernels::reference
