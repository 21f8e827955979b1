// Operations of a training step that are worth counting, for benchmarks.
#pragma once

#include "worker/model/config.h"

namespace sparsebalance::model {

// Of the matrix products of all layers and the output, and of attended pairs (MicroBatchReport):
// each product once forward and twice backward, attention's two forward and four backward. Nothing
// that is computed a second time.
inline double UsefulFlops(const ModelConfig& c, double tokens, double attended_pairs) {
  const double hidden = c.hidden_size;
  const double q_width = static_cast<double>(c.num_heads) * c.HeadDim();
  const double kv_width = static_cast<double>(c.num_kv_heads) * c.HeadDim();
  const double weights =
      c.num_layers * (hidden * (2 * q_width + 2 * kv_width) + 3 * hidden * c.intermediate_size) +
      hidden * c.vocab_size;
  return 6 * weights * tokens + 6 * 2 * q_width * attended_pairs;
}

}  // namespace sparsebalance::model
