// One collective over a mesh: which bytes go where, and in which order they are added.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "worker/comm/collective_op.h"
#include "worker/comm/gloo_mesh.h"

namespace sparsebalance::comm_internal {

class GlooExchange {
 public:
  GlooExchange(GlooMesh* mesh, int rank, int size, size_t bucket_bytes, const CollectiveOp& op);

  // `in` has op.count elements; `out` has size * op.count for a gather, else it is `in`.
  // INVALID_ARGUMENT where a peer's header describes another call.
  absl::Status Run(const std::byte* in, std::byte* out);

 private:
  // Sent to every peer ahead of the data.
  struct Header {
    uint64_t magic;
    uint64_t sequence;
    uint64_t count;
    uint32_t kind;
    uint32_t root;
  };
  using Transfers = std::vector<std::unique_ptr<Transfer>>;

  // A part of the buffer under way: elements [begin, begin + count).
  struct Bucket {
    size_t begin = 0;
    size_t count = 0;
    uint64_t index = 0;
    // [peer][elements of this rank's part]. Declared ahead of the transfers that write to it.
    std::vector<std::vector<std::byte>> received;
    Transfers scatter;
    Transfers gather;
  };

  absl::Status StartHeaders();
  absl::Status CheckHeaders();

  absl::Status Reduce(std::byte* data);
  absl::Status ReduceDirect(std::byte* data);
  absl::Status ReduceBuckets(std::byte* data);
  absl::Status StartScatter(std::byte* data, Bucket& bucket);
  absl::Status StartGather(std::byte* data, Bucket& bucket);
  absl::Status Gather(const std::byte* in, std::byte* out);
  absl::Status Broadcast(std::byte* data);

  // First element of `rank`'s part of `bucket`; rank == size gives its end.
  size_t PartBegin(const Bucket& bucket, int rank) const;
  void AddInRankOrder(std::byte* own, std::vector<std::vector<std::byte>>& received, size_t count);

  absl::Status Send(Transfers& into, int peer, uint32_t phase, uint64_t index,
                    const std::byte* data, size_t bytes);
  absl::Status Receive(Transfers& into, int peer, uint32_t phase, uint64_t index, std::byte* data,
                       size_t bytes);
  // Waits for the headers first, so that a disagreement is found before a missing message is.
  absl::Status WaitAll(Transfers& transfers);
  uint64_t Slot(uint32_t phase, uint64_t index) const;

  GlooMesh* const mesh_;
  const int rank_;
  const int size_;
  const size_t bucket_bytes_;
  const CollectiveOp op_;
  const size_t element_bytes_;

  Header own_header_ = {};
  std::vector<Header> headers_;  // [peer]
  Transfers header_transfers_;
  bool headers_checked_ = false;
  // Members, not locals: after a failure messages stay whole until the mesh has closed, so that
  // what this rank says last is not stuck behind half a message.
  std::array<Bucket, 2> buckets_;
};

}  // namespace sparsebalance::comm_internal
