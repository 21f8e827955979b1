#pragma once

// What CudaBackend needs of a device besides kernels: memory, copies, streams, events and matrix
// products. CudaPlatform (cuda_platform.h) has them from the CUDA runtime and cuBLASLt,
// EmulatedPlatform (emulated_platform.h) from kernels/emulation; so the code between the model and
// the kernels is tested on machines without a GPU.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace sparsebalance::kernels::cuda {

struct DeviceFacts {
  std::string name;              // "NVIDIA H200"
  std::string bus_id;            // "0000:3b:00.0"
  int64_t memory_bytes = 0;      // of the device
  int64_t shared_bytes = 0;      // most of a thread block, static and dynamic
  int64_t working_elements = 0;  // Backend::WorkingElements
};

// Operands of a product as addresses on the device. a and b have one type; c has that type or is
// float32; the bias, null where there is none, has that of c.
struct MatmulOperands {
  ElementType input_type = ElementType::kFloat32, output_type = ElementType::kFloat32;
  const void* a = nullptr;
  const void* b = nullptr;
  const void* bias = nullptr;
  void* c = nullptr;
};

// Used by one thread at a time, which may change between calls. Work is queued on the current
// stream. Errors name the call, its place in the source and the device.
class Platform {
 public:
  virtual ~Platform() = default;
  Platform(const Platform&) = delete;
  Platform& operator=(const Platform&) = delete;

  virtual const DeviceFacts& facts() const = 0;

  // Makes this device the calling thread's; before kernels are launched.
  virtual absl::Status Activate() = 0;
  // The current stream as StreamHandle of launch.h; null for a real device's default stream.
  virtual void* NativeStream() = 0;

  // Memory comes from one arena a purpose and returns there, in the order of the current stream: a
  // later allocation may have it before the device has come to the free. Aligned to 256 bytes.
  // RESOURCE_EXHAUSTED where the device has no more.
  virtual absl::StatusOr<void*> Allocate(int64_t bytes, MemoryPurpose purpose) = 0;
  virtual void Free(void* data) = 0;

  // The host side of kToDevice may be reused on return. kToHost waits for the stream.
  virtual absl::Status Copy(const void* from, void* to, int64_t bytes, CopyKind kind) = 0;
  virtual absl::Status Fill(void* data, uint8_t value, int64_t bytes) = 0;

  virtual absl::StatusOr<std::unique_ptr<Stream>> CreateStream() = 0;
  virtual absl::Status SetStream(Stream* stream) = 0;
  virtual absl::StatusOr<std::unique_ptr<Event>> RecordEvent() = 0;
  virtual absl::Status WaitEvent(const Event& event) = 0;
  virtual absl::StatusOr<EventInterval> Elapsed(const Event& from, const Event& to) = 0;
  virtual absl::Status Synchronize() = 0;

  // Strides of `shape` are set and sizes are checked.
  virtual absl::Status Matmul(const MatmulShape& shape, const MatmulOperands& operands) = 0;

 protected:
  Platform() = default;
};

}  // namespace sparsebalance::kernels::cuda
