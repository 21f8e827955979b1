#pragma once

// Pinned host memory that copies go through. Copies from pageable memory would make the caller wait
// for the device.

#include <cuda_runtime_api.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace sparsebalance::kernels::cuda {

class PinnedStaging {
 public:
  static absl::StatusOr<std::unique_ptr<PinnedStaging>> Create();
  ~PinnedStaging();
  PinnedStaging(const PinnedStaging&) = delete;
  PinnedStaging& operator=(const PinnedStaging&) = delete;

  // The host's side has been read when this returns.
  absl::Status ToDevice(const void* from, void* to, int64_t bytes, cudaStream_t stream);
  // Waits for the stream.
  absl::Status ToHost(const void* from, void* to, int64_t bytes, cudaStream_t stream);

 private:
  static constexpr int kPieces = 8;
  static constexpr int64_t kPieceBytes = int64_t{1} << 20;

  struct Piece {
    std::byte* data = nullptr;
    cudaEvent_t used = nullptr;  // the device has finished with it
  };

  PinnedStaging() = default;
  // A piece that the device has finished with.
  absl::StatusOr<Piece*> Next();

  std::byte* memory_ = nullptr;
  std::array<Piece, kPieces> pieces_ = {};
  int next_ = 0;
};

}  // namespace sparsebalance::kernels::cuda
