// Collectives between the ranks of a job.
//
//   absl::Status Step(Communicator& comm, std::span<float> gradients) {
//     std::array<int64_t, 2> vote = {has_plan ? 1 : 0, has_plan ? 1 : 0};
//     absl::Status status = comm.AllReduceMinInt64(vote);
//     if (!status.ok()) return status;
//     return comm.AllReduceSum(gradients);
//   }
//
// Rules that hold for every implementation:
//  * Every rank calls the same collectives in the same order with the same element counts.
//  * One thread at a time calls collectives on one communicator (calls are serialized); Abort() may
//    come from any thread at any time.
//  * Reductions add in rank order, ((x0 + x1) + x2) + ..., for every element. So the result is
//    bit-equal on every rank, from run to run, for every bucket size, and between implementations
//    that state this order (LocalCommunicator, GlooCommunicator). NcclCommunicator states none, as
//    NCCL does not: see nccl_communicator.h.
//  * Counts may be zero: the call is then a synchronization and nothing else.
//  * With size() == 1 no call waits for a peer.
//  * A call on a device buffer returns once it is enqueued. What goes wrong afterwards is returned
//    by Wait() or any later call.
//
// Errors, all of them with the rank, the operation and its number in the message:
//   INVALID_ARGUMENT  wrong sizes, a bad root, a buffer in memory this communicator cannot reach,
//                     or another rank called another operation or another count
//   UNAVAILABLE       a peer was lost, left or aborted, or made no progress within the timeout
//   CANCELLED         this rank's own Abort()
//   INTERNAL          a GPU or its libraries failed; RESOURCE_EXHAUSTED where its memory ran out
// The first error found while communicating is final: it also aborts this rank towards its peers,
// so that they do not wait for their timeout, and each later call returns it again. Build a new
// communicator then. An argument refused before anything was sent leaves the communicator usable.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "absl/status/status.h"

namespace sparsebalance {

// A view of float32 values and of where they live. Host memory converts implicitly from
// std::span<float>; a communicator for GPUs takes Device() views as well.
struct FloatBuffer {
  enum class Location { kHost, kDevice };

  FloatBuffer(std::span<float> host)  // NOLINT(google-explicit-constructor): a span is a host view
      : data(host.data()), size(host.size()) {}

  // `device_data` points to `count` floats in GPU memory. Work is ordered on `stream` (a
  // cudaStream_t, null for the default stream): a call returns once it is enqueued there.
  static FloatBuffer Device(float* device_data, size_t count, void* stream) {
    FloatBuffer buffer(std::span<float>(device_data, count));
    buffer.location = Location::kDevice;
    buffer.stream = stream;
    return buffer;
  }

  std::span<float> span() const { return {data, size}; }

  float* data = nullptr;
  size_t size = 0;  // elements
  Location location = Location::kHost;
  void* stream = nullptr;  // only for kDevice
};

class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Whether AllReduceSum and Broadcast take buffers at this location.
  virtual bool Supports(FloatBuffer::Location location) const = 0;

  // In place: every rank ends with the sum over ranks.
  virtual absl::Status AllReduceSum(FloatBuffer values) = 0;
  virtual absl::Status AllReduceSumDouble(std::span<double> values) = 0;
  virtual absl::Status AllReduceMaxInt64(std::span<int64_t> values) = 0;
  virtual absl::Status AllReduceMinInt64(std::span<int64_t> values) = 0;

  // `out` holds size() * in.size() elements, rank 0's first. `in` may not overlap `out`.
  virtual absl::Status AllGather(std::span<const double> in, std::span<double> out) = 0;
  virtual absl::Status AllGatherInt64(std::span<const int64_t> in, std::span<int64_t> out) = 0;

  // Every rank ends with the root's values.
  virtual absl::Status Broadcast(FloatBuffer values, int root) = 0;

  // Returns once every rank has called it.
  virtual absl::Status Barrier() = 0;

  // Returns once all that earlier calls enqueued on device buffers is done, or with the error that
  // stopped it. Call it before a stream with such work is waited for in any other way: a stream
  // behind a lost peer may never end, this wait does. At once where nothing is under way.
  virtual absl::Status Wait() = 0;

  // Makes the running and every later call on this rank return CANCELLED, and tells the peers by
  // closing the connections. Idempotent and thread-safe.
  virtual void Abort() = 0;

 protected:
  Communicator() = default;
};

}  // namespace sparsebalance
