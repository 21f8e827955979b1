#include "kernels/cuda/backend/cuda_staging.h"

#include <algorithm>
#include <cstring>

#include "kernels/cuda/backend/cuda_check.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {

absl::StatusOr<std::unique_ptr<PinnedStaging>> PinnedStaging::Create() {
  std::unique_ptr<PinnedStaging> out(new PinnedStaging());
  void* memory = nullptr;
  SB_CUDA_RETURN_IF_ERROR(cudaHostAlloc(&memory, kPieces * kPieceBytes, cudaHostAllocDefault));
  out->memory_ = static_cast<std::byte*>(memory);
  for (int i = 0; i < kPieces; ++i) {
    out->pieces_[i].data = out->memory_ + i * kPieceBytes;
    SB_CUDA_RETURN_IF_ERROR(
        cudaEventCreateWithFlags(&out->pieces_[i].used, cudaEventDisableTiming));
  }
  return out;
}

PinnedStaging::~PinnedStaging() {
  for (const Piece& piece : pieces_) {
    if (piece.used == nullptr) continue;
    cudaEventSynchronize(piece.used);
    cudaEventDestroy(piece.used);
  }
  cudaFreeHost(memory_);
}

absl::StatusOr<PinnedStaging::Piece*> PinnedStaging::Next() {
  Piece& piece = pieces_[next_];
  next_ = (next_ + 1) % kPieces;
  // An event that was never recorded counts as passed.
  SB_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(piece.used));
  return &piece;
}

absl::Status PinnedStaging::ToDevice(const void* from, void* to, int64_t bytes,
                                     cudaStream_t stream) {
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const auto count = static_cast<size_t>(std::min(kPieceBytes, bytes - begin));
    SB_ASSIGN_OR_RETURN(Piece* const piece, Next());
    std::memcpy(piece->data, static_cast<const std::byte*>(from) + begin, count);
    SB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(static_cast<std::byte*>(to) + begin, piece->data, count,
                                            cudaMemcpyHostToDevice, stream));
    SB_CUDA_RETURN_IF_ERROR(cudaEventRecord(piece->used, stream));
  }
  return absl::OkStatus();
}

// Two pieces are under way at a time: one arrives while the other is copied out.
absl::Status PinnedStaging::ToHost(const void* from, void* to, int64_t bytes, cudaStream_t stream) {
  struct {
    Piece* piece = nullptr;
    int64_t begin = 0;
    size_t count = 0;
  } last;
  const auto take = [&]() -> absl::Status {
    if (last.piece == nullptr) return absl::OkStatus();
    SB_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(last.piece->used));
    std::memcpy(static_cast<std::byte*>(to) + last.begin, last.piece->data, last.count);
    return absl::OkStatus();
  };
  for (int64_t begin = 0; begin < bytes; begin += kPieceBytes) {
    const auto count = static_cast<size_t>(std::min(kPieceBytes, bytes - begin));
    SB_ASSIGN_OR_RETURN(Piece* const piece, Next());
    SB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(piece->data,
                                            static_cast<const std::byte*>(from) + begin, count,
                                            cudaMemcpyDeviceToHost, stream));
    SB_CUDA_RETURN_IF_ERROR(cudaEventRecord(piece->used, stream));
    SB_RETURN_IF_ERROR(take());
    last = {piece, begin, count};
  }
  return take();
}

}  // namespace sparsebalance::kernels::cuda
