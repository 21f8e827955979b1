// Between Gloo's addresses, one structure of 136 bytes a connection, and rendezvous blobs. Both
// functions may throw what Gloo throws.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/rendezvous_blob.h"

namespace sparsebalance::comm_internal {

// The address of the blob's rank at `port`, as Gloo's Pair::connect() takes it.
std::vector<char> GlooAddress(const RendezvousBlob& blob, uint16_t port);

// Puts the host part of a listening address, as Gloo gives it, into `blob` and returns the port.
// INVALID_ARGUMENT where it is no internet address.
absl::StatusOr<uint16_t> ReadAddress(const std::vector<char>& bytes, RendezvousBlob& blob);

}  // namespace sparsebalance::comm_internal
