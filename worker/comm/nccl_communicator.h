// Collectives between GPUs, by NCCL.
//
//   absl::StatusOr<std::shared_ptr<NcclApi>> api = SystemNcclApi();
//   NcclOptions options;
//   options.device = local_rank;
//   auto comm = NcclCommunicator::Connect(*api, rank, size, options, exchange);  // as for Gloo
//   status = (*comm)->AllReduceSum(FloatBuffer::Device(gradients, count, stream));  // enqueued
//   ...
//   status = (*comm)->Wait();  // the sums are there, or this says why not
//
// Device buffers: the collective goes onto the buffer's stream in buckets, and the call returns.
// Collectives on several streams are ordered among each other. Nothing is enqueued for zero
// elements, and no rank waits.
//
// Host buffers, doubles and integers pass through pinned memory, in two slots: while one is reduced
// the other is filled or emptied. Such a call first exchanges what each rank is about to call, and
// a digest of all calls before: ranks that disagree get INVALID_ARGUMENT. It returns when the
// result is there. A call on a device buffer that the ranks disagree about is found at the next
// such call, or hangs until the timeout, as NCCL compares nothing.
//
// How this differs from the rules of communicator.h:
//  * No order of additions is promised, as NCCL promises none: not among ranks, nor from one
//    topology, version or bucket size to the next. Its rings and trees add each element in one
//    place and send the result to all, so equal bits on all ranks, and the same ones again on the
//    same topology, are to be expected; no GPU has confirmed it yet. Minima, maxima, gathers and
//    broadcasts are exact, as anywhere.
//  * NCCL does not say which rank was lost: errors name this rank and the operation, no peer. A
//    peer on the same node that dies may show as nothing but the timeout.
//  * The timeout runs from the begin of a wait to its end, whatever progress there is between, and
//    what the stream has to do before the collective counts.
//  * With size() == 1 all goes the same way through the GPU.
//
// Every wait polls, heeds Abort() and the timeout, and is followed by ncclCommAbort where it fails:
// a stream with a collective on it then ends, with undefined values. Every call makes the device
// current for its thread.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/nccl_api.h"
#include "worker/comm/rendezvous_exchange.h"

namespace sparsebalance {

struct NcclOptions {
  int device = 0;  // CUDA's number of this rank's GPU
  // How long a collective, or the meeting of all ranks in Connect(), may take.
  absl::Duration timeout = absl::Minutes(5);
  // How long a rank that leaves waits for its own work to end before it aborts it.
  absl::Duration leave_timeout = absl::Seconds(10);
  // An all-reduce on a device buffer is cut into buckets of this many bytes; a multiple of 256, the
  // same on every rank.
  size_t bucket_bytes = 32 << 20;
  // Bytes of a slot of pinned memory, and as many of device memory; there are two. At least 1024
  // and 8 a rank, a multiple of 8, the same on every rank.
  size_t staging_bytes = 4 << 20;
};

class NcclCommunicator final : public Communicator {
 public:
  // INVALID_ARGUMENT: bad rank, size, options or blobs. FAILED_PRECONDITION, at once: no driver or
  // no GPU. UNAVAILABLE: not all ranks came in time. RESOURCE_EXHAUSTED, INTERNAL: the GPU's.
  // An error of `exchange` keeps its code; with size == 1 it is not called.
  static absl::StatusOr<std::unique_ptr<NcclCommunicator>> Connect(
      std::shared_ptr<NcclApi> api, int rank, int size, const NcclOptions& options,
      const RendezvousExchange& exchange);

  // Lets work under way end, for at most leave_timeout.
  ~NcclCommunicator() override;

  int rank() const override;
  int size() const override;
  bool Supports(FloatBuffer::Location location) const override { return true; }
  absl::Status AllReduceSum(FloatBuffer values) override;
  absl::Status AllReduceSumDouble(std::span<double> values) override;
  absl::Status AllReduceMaxInt64(std::span<int64_t> values) override;
  absl::Status AllReduceMinInt64(std::span<int64_t> values) override;
  absl::Status AllGather(std::span<const double> in, std::span<double> out) override;
  absl::Status AllGatherInt64(std::span<const int64_t> in, std::span<int64_t> out) override;
  absl::Status Broadcast(FloatBuffer values, int root) override;
  absl::Status Barrier() override;
  absl::Status Wait() override;
  // Frees the communicator at once where no call runs, else as soon as the running one has noticed.
  void Abort() override;

 private:
  class Impl;
  explicit NcclCommunicator(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsebalance
