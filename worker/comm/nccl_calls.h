// The collectives of one rank over NcclDevice, without the bookkeeping of a communicator: what is
// enqueued, in which order, and what is waited for. NcclCommunicator serializes the calls and keeps
// the first error.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "worker/comm/collective_op.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_device.h"

namespace sparsebalance::comm_internal {

// What each rank says of its call before it begins; compared on all. One a rank.
struct NcclHeader {
  int64_t kind = 0;
  int64_t count = 0;
  int64_t root = 0;
  int64_t sequence = 0;
  int64_t history = 0;  // a digest of all calls before
};

class NcclCalls {
 public:
  // `device` has joined, with memory for a NcclHeader a rank, and outlives it.
  NcclCalls(NcclDevice* device, int rank, int size, size_t bucket_bytes, size_t staging_bytes)
      : device_(device),
        rank_(rank),
        size_(size),
        bucket_bytes_(bucket_bytes),
        staging_bytes_(staging_bytes) {}

  // Any collective on host memory; `in` and `out` are the same for everything but a gather. Done
  // when it returns.
  absl::Status RunHost(const CollectiveOp& op, const std::byte* in, std::byte* out);
  // kAllReduceSum or kBroadcast of a device buffer; enqueued when it returns.
  absl::Status RunDevice(const CollectiveOp& op, const FloatBuffer& values);
  // Returns once all that was enqueued is done.
  absl::Status Wait();

  // The last collective that was enqueued and not waited for; empty where there is none.
  std::string pending() const { return pending_ ? pending_op_.ToString() : std::string(); }

 private:
  // Compares the call and the history with every rank's.
  absl::Status Agree(const CollectiveOp& op);
  absl::Status Staged(const CollectiveOp& op, const std::byte* in, std::byte* out);
  // Puts the collective on `count` elements at `data`, in device memory, onto `stream`.
  absl::Status Enqueue(const CollectiveOp& op, void* data, size_t count, void* stream);
  absl::Status Copy(void* to, const void* from, size_t bytes);
  // Orders `stream` after the collectives on other streams.
  absl::Status Follow(void* stream);
  void Remember(const CollectiveOp& op);

  NcclDevice* const device_;
  const int rank_;
  const int size_;
  const size_t bucket_bytes_;
  const size_t staging_bytes_;
  uint64_t history_ = 0;
  bool pending_ = false;  // a device buffer's collective may run
  void* pending_stream_ = nullptr;
  CollectiveOp pending_op_;
};

}  // namespace sparsebalance::comm_internal
