// Collectives between processes over TCP, by Gloo's transport: a connection from every rank to
// every other, no service of its own.
//
//   GlooOptions options;
//   options.bind_host = "10.0.0.7";
//   auto comm = GlooCommunicator::Connect(rank, size, options, [&](std::string own_blob) {
//     return coordinator.ExchangeBlobs(own_blob);  // all ranks' blobs, in rank order
//   });
//
// An all-reduce goes bucket by bucket: every rank owns a part of the bucket, receives it from all
// peers, adds in rank order, and sends the sum to all. A rank sends and receives 2 * (size-1)/size
// of the buffer, as a ring does, in two steps instead of 2 * (size-1); two buckets are under way at
// once. Up to kDirectBytes every rank sends all to all and adds by itself: one step.
// Broadcast sends from the root to every peer.
//
// Every call begins with a header to each peer, sent together with the data, so that ranks that
// call different collectives get INVALID_ARGUMENT and not each other's bytes.
//
// A rank that goes says why, and the reason is passed on: when rank 3 dies, every rank's error
// names rank 3, also where it reached a rank through a peer that gave up because of it.
//
// Connections are plain TCP, without authentication or encryption, as collectives are: bind to a
// network that only the job's nodes can reach. Connect() sets SIGPIPE to be ignored, for the whole
// process, where it still has its default action (Gloo writes to sockets whose peer may have died).
#pragma once

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/comm/communicator.h"
#include "worker/comm/rendezvous_exchange.h"

namespace sparsebalance {

struct GlooOptions {
  // Address or name that this rank listens on and that its peers reach it by; a wildcard such as
  // 0.0.0.0 is refused. Not used where `interface` is set.
  std::string bind_host = "127.0.0.1";
  // Name of a network interface whose address to take, such as "eth0".
  std::string interface;
  // How long a peer may make no progress, in a collective and while connecting.
  absl::Duration timeout = absl::Minutes(5);
  // An all-reduce is cut into buckets of this many bytes; at least 1024, the same on every rank.
  // Two buckets of memory are needed beside the buffer.
  size_t bucket_bytes = 4 << 20;
};

class GlooCommunicator final : public Communicator {
 public:
  // Reductions of up to this many bytes take one step instead of two.
  static constexpr size_t kDirectBytes = 8192;

  // INVALID_ARGUMENT: bad rank, size, options or blobs. UNAVAILABLE: the address cannot be bound,
  // or a peer did not connect in time. An error of `exchange` keeps its code.
  // size == 1 opens nothing and does not call `exchange`.
  static absl::StatusOr<std::unique_ptr<GlooCommunicator>> Connect(
      int rank, int size, const GlooOptions& options, const RendezvousExchange& exchange);

  ~GlooCommunicator() override;

  int rank() const override;
  int size() const override;
  bool Supports(FloatBuffer::Location location) const override {
    return location == FloatBuffer::Location::kHost;
  }
  absl::Status AllReduceSum(FloatBuffer values) override;
  absl::Status AllReduceSumDouble(std::span<double> values) override;
  absl::Status AllReduceMaxInt64(std::span<int64_t> values) override;
  absl::Status AllReduceMinInt64(std::span<int64_t> values) override;
  absl::Status AllGather(std::span<const double> in, std::span<double> out) override;
  absl::Status AllGatherInt64(std::span<const int64_t> in, std::span<int64_t> out) override;
  absl::Status Broadcast(FloatBuffer values, int root) override;
  absl::Status Barrier() override;
  absl::Status Wait() override;
  void Abort() override;

  // The rank that was lost, -1 while none is known. For the caller's report to the coordinator.
  int lost_rank() const;

 private:
  class Impl;
  explicit GlooCommunicator(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace sparsebalance
