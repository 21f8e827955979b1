// What a rank publishes so that all can join one NCCL communicator: rank 0 the id, the others
// nothing but what shows that they belong together.
//
// Layout, little-endian: "SBNCC" | u8 version = 1 | u32 rank | u32 size | u64 bucket_bytes |
// u64 staging_bytes | u32 NCCL's version code | 128 bytes id, on rank 0 only.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "worker/comm/nccl_api.h"

namespace sparsebalance::comm_internal {

struct NcclBlob {
  uint32_t rank = 0;
  uint32_t size = 0;
  // Every rank must cut buffers at the same places.
  uint64_t bucket_bytes = 0;
  uint64_t staging_bytes = 0;
  uint32_t nccl_version = 0;
  NcclId id = {};  // written and read for rank 0 only

  friend bool operator==(const NcclBlob&, const NcclBlob&) = default;
};

std::string EncodeNcclBlob(const NcclBlob& blob);

// Checks everything against the reader's own `self` but for the rank, which must be
// `expected_rank`. INVALID_ARGUMENT names the rank and the field.
absl::StatusOr<NcclBlob> ParseNcclBlob(std::string_view bytes, int expected_rank,
                                       const NcclBlob& self);

}  // namespace sparsebalance::comm_internal
