#pragma once

// Every operation of a training step, over opaque device memory. Model code is written against
// this class alone, so a second kind of device is a second implementation of it and nothing else.
//
//   auto backend = CreateBackend("cpu", {.threads = 4});  // create_backend.h
//   auto x = (*backend)->Allocate<float>(tokens * hidden);
//   (*backend)->CopyToDevice(host_values, x->span());
//   (*backend)->RmsNormForward({tokens, hidden, 1e-6F}, x->span(), weight, y, inverse_rms);
//
// Activations have the backend's activation_type(), and so have the weights that ops compute with,
// where norm weights may be float32, too. Gradients of weights, statistics, tables and what the
// optimizer keeps are float32. Sums are made in float32 or better.
//
// Matrices are row-major and contiguous unless a stride is given; sizes and offsets are counted in
// elements, in 64 bits. Ops run in the order of the calls on the current stream. INVALID_ARGUMENT
// names a view that is too small or a bad size; RESOURCE_EXHAUSTED says memory ran out.
// Results do not depend on the number of threads. An instance is used by one thread at a time.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device_buffer.h"
#include "kernels/packed_blocks.h"

namespace sparsebalance::kernels {

struct BackendOptions {
  int threads = 1;  // CPU threads of this instance, >= 1
  int device = 0;   // which of the machine's GPUs, from 0
  // Most device memory of this instance, in bytes, idle memory kept for reuse included; 0: no
  // limit.
  int64_t memory_limit_bytes = 0;
  // bf16 halves memory and traffic, and is what tensor cores take; a CPU backend has fp32 alone.
  ElementType activation_type = ElementType::kFloat32;
  // Fills new memory with NaN bytes, so that a read before a write shows. For tests.
  bool poison_allocations = false;
};

// What memory is for. Devices keep an arena a purpose, so that what lives as long as the job does
// not cut up what comes and goes in every step.
enum class MemoryPurpose { kStep, kState };

enum class CopyKind { kToDevice, kToHost, kDeviceToDevice };

struct MemoryStats {
  int64_t live_bytes = 0;  // allocated now, temporary buffers of running ops included
  int64_t peak_bytes = 0;  // most since creation or the last ResetPeakMemory
};

// A point on a stream. Created by RecordEvent, released by its destructor.
class Event {
 public:
  virtual ~Event() = default;
};

struct EventInterval {
  double seconds = 0;      // device time between two events
  double cpu_seconds = 0;  // CPU time of the calling thread between their recordings
};

// A buffer by the address that its device knows it by, and the current stream.
struct NativeBuffer {
  float* data = nullptr;
  void* stream = nullptr;  // a cudaStream_t; null is CUDA's default stream
};

// A queue of work. Work on different streams is ordered by events only.
class Stream {
 public:
  virtual ~Stream() = default;
};

struct MatmulShape {
  int64_t m = 0, n = 0, k = 0;
  bool transpose_a = false;  // a is [k, m] in memory instead of [m, k]
  bool transpose_b = false;  // b is [n, k] in memory instead of [k, n]
  bool accumulate = false;   // c += instead of c =
  // Elements from one row in memory to the next, of a, b and c; 0: rows lie side by side.
  int64_t a_stride = 0, b_stride = 0, c_stride = 0;
};

struct NormShape {
  int64_t rows = 0, columns = 0;
  float epsilon = 1e-6F;
};

// Heads of one projection inside rows of `row_stride` elements.
struct RopeShape {
  int64_t tokens = 0;
  int num_heads = 0, head_dim = 0;
  int64_t row_stride = 0;
};

struct CrossEntropyShape {
  int64_t rows = 0, classes = 0;
  double loss_scale = 1;  // of the gradient only
};

struct DropoutShape {
  int64_t rows = 0, columns = 0;
  float rate = 0;           // share of elements that are dropped, in [0, 1)
  uint32_t site = 0;        // tells places of a model apart
  bool accumulate = false;  // y += instead of y =
};

struct AdamWArgs {
  float learning_rate = 0;
  float beta1 = 0.9F, beta2 = 0.95F, epsilon = 1e-8F;
  float weight_decay = 0;
  float gradient_scale = 1;  // applied to the gradient first; where clipping enters
  int64_t step = 1;          // of this update, from 1; for the bias correction
};

// Query row t of head h begins at q[t * q_stride + h * head_dim]; keys and values likewise with
// kv_stride. Query head h reads KV head h / (num_heads / num_kv_heads).
struct AttentionShape {
  int num_heads = 0, num_kv_heads = 0, head_dim = 0;
  int64_t q_stride = 0, kv_stride = 0, out_stride = 0;
};

// A packed micro-batch as the backend knows it; a device keeps its own copy of the arrays.
class AttentionLayout {
 public:
  explicit AttentionLayout(PackedBlocks blocks) : blocks_(std::move(blocks)) {}
  virtual ~AttentionLayout() = default;
  const PackedBlocks& blocks() const { return blocks_; }

 private:
  PackedBlocks blocks_;
};

// Which past blocks each query attends to beside its own. Counts, no sentinels: all the attention
// kernels know, they never see a budget.
struct BlockLists {
  int64_t pairs = 0;                   // (query, past block) pairs of one head, or room for more
  DeviceArray<int64_t> query_offsets;  // [tokens + 1], the same for every head
  DeviceArray<int32_t> query_blocks;   // [heads, pairs], ascending within a query
  DeviceArray<int64_t> block_offsets;  // [heads, blocks + 1], relative to the head's first pair
  DeviceArray<int32_t> block_queries;  // [heads, pairs], tokens ascending within a block
};

// How many blocks the queries of a sequence may choose: `planned`, raised where the guard of
// coverage_guard.h holds coverage against that of `base`.
struct RoutingRequest {
  std::vector<int32_t> planned, base;  // [sequences], each >= 1, own block included
  double coverage_guard = 1;  // most share of the base budget's coverage to lose, in [0, 1]
  int sample_stride = 1;      // of the curves, see CoverageCurves
};

struct RoutingFacts {
  std::vector<std::vector<double>> coverage;  // [sequences], at CoverageGrid
  std::vector<int32_t> realized_budgets;      // [sequences]
};

// Facts that a device may still be working on.
class PendingRouting {
 public:
  virtual ~PendingRouting() = default;
  // Once; waits for the device.
  virtual absl::StatusOr<RoutingFacts> Read() = 0;
};

struct Routing {
  BlockLists lists;  // pairs may be more than the lists hold: room for the larger of both budgets
  std::unique_ptr<PendingRouting> facts;
};

class Backend {
 public:
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;

  virtual std::string_view name() const = 0;
  // The product's name of a GPU; empty for a CPU.
  virtual std::string_view device_name() const { return {}; }
  // Its PCI address, such as "0000:3b:00.0"; empty for a CPU.
  virtual std::string_view device_bus_id() const { return {}; }

  // --- memory -----------------------------------------------------------------------------------
  // Uninitialized memory, 64-byte aligned; count may be 0.
  template <typename T>
  absl::StatusOr<DeviceArray<T>> Allocate(int64_t count,
                                          MemoryPurpose purpose = MemoryPurpose::kStep);
  virtual MemoryStats memory() const = 0;
  virtual void ResetPeakMemory() = 0;

  absl::StatusOr<DeviceTensor> AllocateTensor(int64_t count, ElementType type,
                                              MemoryPurpose purpose = MemoryPurpose::kStep);
  // The type of activations, and of the weights that ops compute with.
  virtual ElementType activation_type() const = 0;
  absl::StatusOr<DeviceTensor> AllocateActivations(int64_t count) {
    return AllocateTensor(count, activation_type());
  }

  // Copies all of the source; sizes must be equal. The host side may be reused on return. Floats
  // are rounded to the nearest value of the buffer's type, ties to even.
  template <typename T>
  absl::Status CopyToDevice(const std::vector<T>& from, DeviceSpan<T> to);
  template <typename T>
  absl::Status CopyToDevice(const T* from, DeviceSpan<T> to);  // to.size() elements
  template <typename T>
  absl::Status CopyToHost(DeviceSpan<T> from, std::remove_const_t<T>* to);  // from.size() elements
  absl::Status CopyToDevice(const std::vector<float>& from, DeviceBuffer to);
  absl::Status CopyToDevice(const float* from, DeviceBuffer to);
  absl::Status CopyToHost(ConstDeviceBuffer from, float* to);
  absl::Status CopyDeviceToDevice(ConstDeviceBuffer from, DeviceBuffer to);
  virtual absl::Status Fill(DeviceBuffer buffer, float value) = 0;
  virtual absl::Status FillZero(DeviceSpan<double> buffer) = 0;
  // What an allocation of so many bytes takes.
  virtual int64_t AllocatedBytes(int64_t bytes) const = 0;
  // Temporary memory that an op holds while it runs, in bytes, but for what does not grow with
  // tokens.
  // `pairs`: BlockLists::pairs.
  virtual int64_t AttentionForwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                          int64_t pairs) const = 0;
  virtual int64_t AttentionBackwardScratch(const AttentionShape& shape, const PackedBlocks& blocks,
                                           int64_t pairs) const = 0;
  virtual int64_t MatmulScratch(const MatmulShape& shape) const = 0;
  // Elements of a large temporary matrix, such as logits, that are best worked on at a time: few
  // enough for caches or memory, enough to keep the device busy.
  virtual int64_t WorkingElements() const = 0;
  // The address of a buffer that the host can read and write in place, for communicators that work
  // on host memory; valid while the buffer lives. UNIMPLEMENTED where the host cannot reach it:
  // then copy. Synchronize first.
  virtual absl::StatusOr<float*> MapHost(DeviceBuffer buffer) = 0;
  // The buffer as communicators that enqueue their work on a GPU take it; valid while the buffer
  // and the current stream live. UNIMPLEMENTED where there is no such device: see MapHost.
  virtual absl::StatusOr<NativeBuffer> Native(DeviceBuffer buffer) = 0;

  // --- order and time ---------------------------------------------------------------------------
  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  // Later calls go to `stream`, or to the default one where it is null.
  virtual absl::Status SetStream(Stream* stream) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> RecordEvent() = 0;
  virtual absl::Status WaitEvent(const Event& event) = 0;  // orders the current stream after it
  virtual absl::StatusOr<EventInterval> Elapsed(const Event& from, const Event& to) = 0;
  virtual absl::Status Synchronize() = 0;

  // --- dense ops --------------------------------------------------------------------------------
  // out[t] = table[ids[t]]; table [rows, columns]. Ids outside the table are INVALID_ARGUMENT, here
  // or, on a device that runs behind, at the next CopyToHost or Synchronize.
  virtual absl::Status EmbeddingForward(int64_t columns, DeviceSpan<const int32_t> ids,
                                        ConstDeviceBuffer table, DeviceBuffer out) = 0;
  // table_grad[ids[t]] += out_grad[t], in the order of t.
  virtual absl::Status EmbeddingBackward(int64_t columns, DeviceSpan<const int32_t> ids,
                                         ConstDeviceBuffer out_grad, DeviceBuffer table_grad) = 0;

  // c = op(a) op(b) + bias; bias [n] may be empty.
  virtual absl::Status Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                              ConstDeviceBuffer bias, DeviceBuffer c) = 0;
  // out[n] += sum over rows of x [rows, columns]: the gradient of a bias.
  virtual absl::Status AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x,
                                     DeviceBuffer out) = 0;

  // y = x * r * weight, r = 1 / sqrt(mean(x^2) + epsilon); inverse_rms[rows] = r is kept for
  // backward.
  virtual absl::Status RmsNormForward(const NormShape& shape, ConstDeviceBuffer x,
                                      ConstDeviceBuffer weight, DeviceBuffer y,
                                      DeviceBuffer inverse_rms) = 0;
  // x_grad += r * (y_grad * weight - x * r^2 * mean(y_grad * weight * x));
  // weight_grad += sum over rows of y_grad * x * r; it may be empty where none is wanted.
  virtual absl::Status RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x,
                                       ConstDeviceBuffer weight, ConstDeviceBuffer inverse_rms,
                                       ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                                       DeviceBuffer weight_grad) = 0;

  // table[t] = cos(p * f_0..f_{d/2-1}), sin(...), f_i = theta^(-2i/d), p = positions[t];
  // table [tokens, head_dim].
  virtual absl::Status RopeTable(int head_dim, double theta, DeviceSpan<const int32_t> positions,
                                 DeviceBuffer table) = 0;
  // Rotates pairs (i, i + d/2) of every head in place; `inverse` turns back: the gradient.
  virtual absl::Status Rope(const RopeShape& shape, ConstDeviceBuffer table, bool inverse,
                            DeviceBuffer x) = 0;

  // gate_up [rows, 2 * columns] holds gate, then up; out [rows, columns] = silu(gate) * up.
  virtual absl::Status SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                     DeviceBuffer out) = 0;
  virtual absl::Status SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                      ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) = 0;

  // out = a + b; out may be a or b.
  virtual absl::Status Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) = 0;
  virtual absl::Status Scale(float factor, DeviceBuffer x) = 0;
  // y = x * keep / (1 - rate), keep being 0 or 1 by (keys[row], site, column) alone, as
  // dropout_mask.h says; the gradient is the same call on gradients. y may be x, unless it
  // accumulates.
  virtual absl::Status Dropout(const DropoutShape& shape, DeviceSpan<const uint64_t> keys,
                               ConstDeviceBuffer x, DeviceBuffer y) = 0;

  // loss_sum[0] += sum of weights[r] * -log softmax(logits[r])[targets[r]] (in double, unscaled).
  // logits_grad = loss_scale * weights[r] * (softmax - onehot); may be logits itself, or empty
  // where no gradient is wanted. A row of weight 0 gives exactly 0 whatever its logits and target.
  virtual absl::Status CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits,
                                    DeviceSpan<const int32_t> targets, ConstDeviceBuffer weights,
                                    DeviceBuffer logits_grad, DeviceSpan<double> loss_sum) = 0;

  // --- optimizer --------------------------------------------------------------------------------
  // Decoupled weight decay (Loshchilov and Hutter): value -= lr * (m^ / (sqrt(v^) + eps) + wd *
  // value). All are float32 but `copy`, which receives the new values in its own type; it may be
  // empty.
  virtual absl::Status AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                             DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy = {}) = 0;
  // out[0] += sum of x^2, in double and a fixed order.
  virtual absl::Status AddSquaredNorm(ConstDeviceBuffer x, DeviceSpan<double> out) = 0;

  // --- block-sparse attention (MoBA) ------------------------------------------------------------
  virtual absl::StatusOr<std::unique_ptr<AttentionLayout>> CreateLayout(PackedBlocks blocks) = 0;
  // means [num_kv_heads, blocks, head_dim]: the mean key of each block.
  virtual absl::Status BlockMeans(const AttentionShape& shape, const AttentionLayout& layout,
                                  ConstDeviceBuffer k, DeviceBuffer means) = 0;
  // Coverage curve of every sequence at CoverageGrid(its blocks), by the definition of coverage:
  // mean over sampled queries and heads of the softmax mass of q . mean / sqrt(d), over all past
  // blocks, that falls on the top budget - 1. Sampled are the last token of the sequence and every
  // sample_stride-th before it, as far as they have past blocks. Waits for the device.
  virtual absl::StatusOr<std::vector<std::vector<double>>> CoverageCurves(
      const AttentionShape& shape, const AttentionLayout& layout, ConstDeviceBuffer q,
      ConstDeviceBuffer means, int sample_stride) = 0;
  // For every query and head the top budget - 1 past blocks by q . mean, ties to the lower block;
  // budgets [sequences], each >= 1, own block included.
  virtual absl::StatusOr<BlockLists> SelectBlocks(const AttentionShape& shape,
                                                  const AttentionLayout& layout,
                                                  ConstDeviceBuffer q, ConstDeviceBuffer means,
                                                  const std::vector<int32_t>& budgets) = 0;
  // Curves, the guard, and the selection by the realized budgets, which a device may keep to
  // itself: nothing waits. As CoverageCurves, RealizedBudget and SelectBlocks, which the base class
  // calls.
  virtual absl::StatusOr<Routing> Route(const AttentionShape& shape, const AttentionLayout& layout,
                                        ConstDeviceBuffer q, ConstDeviceBuffer means,
                                        const RoutingRequest& request);
  // The block lists of given query lists; SelectBlocks has built them already.
  virtual absl::Status BuildBlockLists(const AttentionShape& shape, const AttentionLayout& layout,
                                       BlockLists* lists) = 0;
  // What coverage stands for, measured: for every sequence the share of the true attention mass on
  // the keys of past blocks (softmax over all of them, scale 1 / sqrt(head_dim)) that falls on the
  // listed blocks, mean over heads and up to `queries` evenly spread queries that have past blocks;
  // 1 where none has. Reads every past key of the sampled queries. Waits for the device.
  virtual absl::StatusOr<std::vector<double>> AttentionMass(const AttentionShape& shape,
                                                            const AttentionLayout& layout,
                                                            const BlockLists& lists,
                                                            ConstDeviceBuffer q,
                                                            ConstDeviceBuffer k, int queries) = 0;
  // Softmax attention, scale 1 / sqrt(head_dim), over the own block (causal) and the listed blocks.
  // out rows have stride out_stride; lse [num_heads, tokens] is the log-sum-exp over all of them.
  virtual absl::Status AttentionForward(const AttentionShape& shape, const AttentionLayout& layout,
                                        const BlockLists& lists, ConstDeviceBuffer q,
                                        ConstDeviceBuffer k, ConstDeviceBuffer v, DeviceBuffer out,
                                        DeviceBuffer lse) = 0;
  // Writes (does not add) q_grad, k_grad and v_grad, strided as q, k and v. The lists are those of
  // the forward pass; they carry no gradient.
  virtual absl::Status AttentionBackward(const AttentionShape& shape, const AttentionLayout& layout,
                                         const BlockLists& lists, ConstDeviceBuffer q,
                                         ConstDeviceBuffer k, ConstDeviceBuffer v,
                                         ConstDeviceBuffer out, ConstDeviceBuffer lse,
                                         ConstDeviceBuffer out_grad, DeviceBuffer q_grad,
                                         DeviceBuffer k_grad, DeviceBuffer v_grad) = 0;

 protected:
  Backend() = default;

  virtual absl::StatusOr<void*> AllocateBytes(int64_t bytes, MemoryPurpose purpose) = 0;
  virtual void FreeBytes(void* data, int64_t bytes) = 0;
  virtual absl::Status CopyBytes(const void* from, void* to, int64_t bytes, CopyKind kind) = 0;
  // CopyDeviceToDevice between types.
  virtual absl::Status Convert(ConstDeviceBuffer from, DeviceBuffer to) = 0;

 private:
  template <typename T>
  friend class DeviceArray;
};

// --- templates ----------------------------------------------------------------------------------

template <typename T>
absl::StatusOr<DeviceArray<T>> Backend::Allocate(int64_t count, MemoryPurpose purpose) {
  absl::StatusOr<void*> data = AllocateBytes(count * static_cast<int64_t>(sizeof(T)), purpose);
  if (!data.ok()) return data.status();
  return DeviceArray<T>(this, static_cast<T*>(*data), count);
}

template <typename T>
absl::Status Backend::CopyToDevice(const std::vector<T>& from, DeviceSpan<T> to) {
  if (static_cast<int64_t>(from.size()) != to.size()) {
    return absl::InvalidArgumentError("CopyToDevice: " + std::to_string(from.size()) +
                                      " host elements for a view of " + std::to_string(to.size()));
  }
  return CopyToDevice(from.data(), to);
}

template <typename T>
absl::Status Backend::CopyToDevice(const T* from, DeviceSpan<T> to) {
  return CopyBytes(from, DeviceAccess::Data(to), to.size() * static_cast<int64_t>(sizeof(T)),
                   CopyKind::kToDevice);
}

template <typename T>
absl::Status Backend::CopyToHost(DeviceSpan<T> from, std::remove_const_t<T>* to) {
  return CopyBytes(DeviceAccess::Data(from), to, from.size() * static_cast<int64_t>(sizeof(T)),
                   CopyKind::kToHost);
}

template <typename T>
void DeviceArray<T>::Release() {
  if (backend_ != nullptr) {
    backend_->FreeBytes(DeviceAccess::Data(span_), span_.size() * static_cast<int64_t>(sizeof(T)));
  }
  backend_ = nullptr;
  span_ = DeviceSpan<T>();
}

}  // namespace sparsebalance::kernels
