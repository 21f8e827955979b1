// What one collective call is, independent of how its bytes travel. Shared by the communicators, so
// that all of them check the same things and describe a call in the same words.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "worker/comm/communicator.h"

namespace sparsebalance::comm_internal {

// The values travel in headers between processes: never renumber.
enum class OpKind : uint32_t {
  kAllReduceSum = 1,
  kAllReduceSumDouble = 2,
  kAllReduceMaxInt64 = 3,
  kAllReduceMinInt64 = 4,
  kAllGather = 5,
  kAllGatherInt64 = 6,
  kBroadcast = 7,
  kBarrier = 8,
};

struct CollectiveOp {
  OpKind kind = OpKind::kBarrier;
  uint64_t count = 0;     // elements a rank contributes
  uint32_t root = 0;      // kBroadcast only
  uint64_t sequence = 0;  // number of the call on its communicator, from 1

  // "AllReduceSum of 12 elements, call 3".
  std::string ToString() const;

  // True where both describe the same call.
  friend bool operator==(const CollectiveOp&, const CollectiveOp&) = default;
};

// Bytes an element of this operation has; 1 for a barrier.
size_t ElementBytes(OpKind kind);

// into[i] = into[i] op from[i] for `count` elements of the type that `kind` implies. Sums are plain
// IEEE additions. `kind` must be a reduction.
void Reduce(OpKind kind, void* into, const void* from, size_t count);

// Argument checks; OK or INVALID_ARGUMENT.
absl::Status CheckHostBuffer(const FloatBuffer& values, OpKind kind);
absl::Status CheckGatherSizes(size_t in, size_t out, int size, OpKind kind);
absl::Status CheckRoot(int root, int size);

}  // namespace sparsebalance::comm_internal
