#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cpu {

// Matrix products by oneDNN. The work is cut into pieces by shape alone, each run by one thread,
// because oneDNN's own division of the summed dimension depends on the number of threads.
// Primitives are kept by shape, the least recently used dropped first. For one thread at a time.
class MatmulEngine {
 public:
  explicit MatmulEngine(int threads);
  ~MatmulEngine();

  // Pieces of the summed dimension that are computed apart and then added in order; the caller
  // provides `partials` of (pieces - 1) * m * n elements where it is above 1.
  static int64_t DepthPieces(const MatmulShape& shape);

  // c [m, n] = or += op(a) op(b) + bias; bias may be null. INTERNAL with oneDNN's message.
  absl::Status Run(const MatmulShape& shape, const float* a, const float* b, const float* bias,
                   float* c, float* partials);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsebalance::kernels::cpu
