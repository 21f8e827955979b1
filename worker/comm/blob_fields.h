// What the rendezvous blobs of all communicators share: little-endian fields behind a magic and a
// version, the first three being rank, size and bucket bytes.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::comm_internal {

static_assert(std::endian::native == std::endian::little, "blobs are written in host order");

template <typename T>
void AppendField(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T TakeField(std::string_view& in) {
  T value;
  std::memcpy(&value, in.data(), sizeof(value));
  in.remove_prefix(sizeof(value));
  return value;
}

inline absl::Status BadBlob(int rank, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the rendezvous blob of rank ", rank, " is unusable: ", what));
}

// What comes after magic and version. INVALID_ARGUMENT where they are others, with `hint` for
// another magic, or where there are fewer than `fixed_bytes`.
inline absl::StatusOr<std::string_view> FieldsOfBlob(std::string_view bytes, int rank,
                                                     std::string_view magic, uint8_t version,
                                                     size_t fixed_bytes, const char* hint) {
  if (bytes.substr(0, magic.size()) != magic) {
    return BadBlob(
        rank, absl::StrCat("its ", bytes.size(),
                           " bytes do not begin with the magic; it was not written by ", hint));
  }
  if (bytes.size() < fixed_bytes) {
    return BadBlob(rank, absl::StrCat("it has ", bytes.size(), " bytes of at least ", fixed_bytes));
  }
  std::string_view in = bytes.substr(magic.size());
  const auto found = TakeField<uint8_t>(in);
  if (found == version) return in;
  return BadBlob(rank, absl::StrCat("version ", found, ", this worker speaks version ", version,
                                    "; run one release on all nodes"));
}

struct BlobHead {
  uint32_t rank = 0;
  uint32_t size = 0;
  uint64_t bucket_bytes = 0;
};

// INVALID_ARGUMENT that names the first field that is not as expected.
inline absl::Status CheckBlobHead(const BlobHead& head, const BlobHead& expected) {
  const int rank = static_cast<int>(expected.rank);
  if (head.rank != expected.rank) {
    return BadBlob(rank, absl::StrCat("it was written by rank ", head.rank,
                                      "; the exchange must return blobs in rank order"));
  }
  if (head.size != expected.size) {
    return BadBlob(rank,
                   absl::StrCat("it is for a group of ", head.size, " ranks, not ", expected.size));
  }
  if (head.bucket_bytes != expected.bucket_bytes) {
    return BadBlob(rank,
                   absl::StrCat("its buckets have ", head.bucket_bytes, " bytes, this rank's ",
                                expected.bucket_bytes, "; use one value on all ranks"));
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance::comm_internal
