// Measures the ops of a backend: time, bandwidth and FLOP/s against ceilings of the same run. On a
// GPU the figures of docs/gpu.md; tests run it with small sizes on the emulated device.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::gpu {

struct MeasureOptions {
  double seconds = 0.15;                     // of a measurement, at least
  int64_t copy_elements = int64_t{1} << 28;  // of the device copy and of bandwidth-bound ops
  int64_t product = 8192;                    // rows and columns of the matrix product
  int64_t hidden = 4096, ffn = 12288, vocabulary = 151936;
  std::vector<int64_t> lengths = {8192, 32768, 65536, 131072};  // tokens
  // Dense attention takes time that grows with the square: not measured above.
  int64_t longest_dense = 131072;
  int num_heads = 32, num_kv_heads = 8, head_dim = 128;
  int block_tokens = 128;
  int32_t budget = 8;  // blocks, own block included
};

// One line of the result. Bytes and FLOPs are those that the op needs, not those that it does.
struct Measurement {
  std::string section;  // "ceiling", "bandwidth", "attention"
  std::string name;
  int64_t tokens = 0;  // 0: does not apply
  double seconds = 0;  // of one run
  double bytes = 0, flops = 0;

  double BytesPerSecond() const { return bytes / seconds; }
  double FlopsPerSecond() const { return flops / seconds; }
};

// Seconds of one run of `body`, by events, after two runs that are not counted.
absl::StatusOr<double> TimeOf(kernels::Backend& backend, double seconds,
                              const std::function<absl::Status()>& body);

// The device copy and the matrix product.
absl::StatusOr<std::vector<Measurement>> MeasureCeilings(kernels::Backend& backend,
                                                         const MeasureOptions& options);
// Ops that move data and compute little.
absl::StatusOr<std::vector<Measurement>> MeasureBandwidth(kernels::Backend& backend,
                                                          const MeasureOptions& options);
// At every length: "means", "select" (scores, selection and block lists), "lists" (the block lists
// alone), "forward", "backward", "routed forward" and "routed forward + backward"; then "dense
// forward" and "dense backward": the same kernels with the sequence as one block.
absl::StatusOr<std::vector<Measurement>> MeasureAttention(kernels::Backend& backend,
                                                          const MeasureOptions& options);

// The yardsticks of the attention and of bandwidth, one a line, with what was reached.
std::string Summary(const std::vector<Measurement>& measurements, std::string_view device);
// All of them as JSON.
std::string ToJson(const std::vector<Measurement>& measurements, std::string_view device);

}  // namespace sparsebalance::gpu
