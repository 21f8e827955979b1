#include "worker/comm/rendezvous_blob.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sparsebalance::comm_internal {
namespace {

static_assert(std::endian::native == std::endian::little, "blobs are written in host order");

constexpr std::string_view kMagic = "SBRDV";
constexpr uint8_t kVersion = 1;
constexpr size_t kFixedBytes = 5 + 1 + 4 + 4 + 8 + 1 + 16 + 4;

template <typename T>
void Append(std::string& out, const T& value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof(value));
}

template <typename T>
T Take(std::string_view& in) {
  T value;
  std::memcpy(&value, in.data(), sizeof(value));
  in.remove_prefix(sizeof(value));
  return value;
}

absl::Status Bad(int rank, std::string what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the rendezvous blob of rank ", rank, " is unusable: ", what));
}

}  // namespace

std::string EncodeRendezvousBlob(const RendezvousBlob& blob) {
  std::string out(kMagic);
  out.reserve(kFixedBytes + 2 * blob.ports.size());
  Append(out, kVersion);
  Append(out, blob.rank);
  Append(out, blob.size);
  Append(out, blob.bucket_bytes);
  Append(out, blob.family);
  out.append(reinterpret_cast<const char*>(blob.address.data()), blob.address.size());
  Append(out, blob.scope_id);
  for (uint16_t port : blob.ports) Append(out, port);
  return out;
}

absl::StatusOr<RendezvousBlob> ParseRendezvousBlob(std::string_view bytes, int expected_rank,
                                                   int expected_size,
                                                   uint64_t expected_bucket_bytes) {
  const size_t expected_bytes = kFixedBytes + 2 * static_cast<size_t>(expected_size);
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Bad(expected_rank, absl::StrCat("its ", bytes.size(),
                                           " bytes do not begin with the magic; it was not "
                                           "written by a worker of this job"));
  }
  if (bytes.size() < kFixedBytes) {
    return Bad(expected_rank,
               absl::StrCat("it has ", bytes.size(), " bytes of at least ", kFixedBytes));
  }
  std::string_view in = bytes.substr(kMagic.size());
  const auto version = Take<uint8_t>(in);
  if (version != kVersion) {
    return Bad(expected_rank, absl::StrCat("version ", version, ", this worker speaks version ",
                                           kVersion, "; run one release on all nodes"));
  }
  RendezvousBlob blob;
  blob.rank = Take<uint32_t>(in);
  blob.size = Take<uint32_t>(in);
  blob.bucket_bytes = Take<uint64_t>(in);
  blob.family = Take<uint8_t>(in);
  std::memcpy(blob.address.data(), in.data(), blob.address.size());
  in.remove_prefix(blob.address.size());
  blob.scope_id = Take<uint32_t>(in);
  if (blob.rank != static_cast<uint32_t>(expected_rank)) {
    return Bad(expected_rank, absl::StrCat("it was written by rank ", blob.rank,
                                           "; the exchange must return blobs in rank order"));
  }
  if (blob.size != static_cast<uint32_t>(expected_size)) {
    return Bad(expected_rank,
               absl::StrCat("it is for a group of ", blob.size, " ranks, not ", expected_size));
  }
  if (blob.bucket_bytes != expected_bucket_bytes) {
    return Bad(expected_rank,
               absl::StrCat("its buckets have ", blob.bucket_bytes, " bytes, this rank's ",
                            expected_bucket_bytes, "; use one value on all ranks"));
  }
  if (blob.family != 4 && blob.family != 6) {
    return Bad(expected_rank, absl::StrCat("address family ", blob.family, " is neither 4 nor 6"));
  }
  if (bytes.size() != expected_bytes) {
    return Bad(expected_rank, absl::StrCat("it has ", bytes.size(), " bytes; ", expected_size,
                                           " ranks need ", expected_bytes));
  }
  blob.ports.reserve(expected_size);
  for (int r = 0; r < expected_size; ++r) {
    blob.ports.push_back(Take<uint16_t>(in));
    if ((blob.ports.back() == 0) != (r == expected_rank)) {
      return Bad(expected_rank,
                 absl::StrCat("port ", blob.ports.back(), " for rank ", r, " cannot be"));
    }
  }
  return blob;
}

}  // namespace sparsebalance::comm_internal
