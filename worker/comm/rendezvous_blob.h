// What a rank publishes so that its peers can connect to it: one IP address, and one TCP port a
// peer. A few bytes a rank, so that a job of hundreds of ranks exchanges kilobytes.
//
// Layout, little-endian: "SBRDV" | u8 version = 1 | u32 rank | u32 size | u64 bucket_bytes |
// u8 family (4 or 6) | 16 bytes address (IPv4: the first 4, rest 0) | u32 scope id |
// u16 port[size], indexed by the peer's rank, 0 for the rank itself.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance::comm_internal {

struct RendezvousBlob {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t bucket_bytes = 0;  // every rank must cut a buffer at the same places
  uint8_t family = 4;         // 4 or 6
  std::array<uint8_t, 16> address = {};
  uint32_t scope_id = 0;        // IPv6 link-local only
  std::vector<uint16_t> ports;  // [size]

  friend bool operator==(const RendezvousBlob&, const RendezvousBlob&) = default;
};

std::string EncodeRendezvousBlob(const RendezvousBlob& blob);

// Checks everything that can be checked against what the reader expects. INVALID_ARGUMENT names
// the rank and the field.
absl::StatusOr<RendezvousBlob> ParseRendezvousBlob(std::string_view bytes, int expected_rank,
                                                   int expected_size,
                                                   uint64_t expected_bucket_bytes);

}  // namespace sparsebalance::comm_internal
