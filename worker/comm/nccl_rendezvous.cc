#include "worker/comm/nccl_rendezvous.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sparsebalance::comm_internal {
namespace {

static_assert(std::endian::native == std::endian::little, "blobs are written in host order");

constexpr std::string_view kMagic = "SBNCC";
constexpr uint8_t kVersion = 1;
constexpr size_t kFixedBytes = 5 + 1 + 4 + 4 + 8 + 8 + 4;

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

absl::Status Bad(int rank, const std::string& what) {
  return absl::InvalidArgumentError(
      absl::StrCat("the rendezvous blob of rank ", rank, " is unusable: ", what));
}

}  // namespace

std::string EncodeNcclBlob(const NcclBlob& blob) {
  std::string out(kMagic);
  Append(out, kVersion);
  Append(out, blob.rank);
  Append(out, blob.size);
  Append(out, blob.bucket_bytes);
  Append(out, blob.staging_bytes);
  Append(out, blob.nccl_version);
  if (blob.rank == 0) out.append(blob.id.data(), blob.id.size());
  return out;
}

absl::StatusOr<NcclBlob> ParseNcclBlob(std::string_view bytes, int expected_rank,
                                       const NcclBlob& self) {
  if (bytes.substr(0, kMagic.size()) != kMagic) {
    return Bad(expected_rank,
               absl::StrCat("its ", bytes.size(),
                            " bytes do not begin with the magic; it was not written by a worker "
                            "of this job that uses NCCL: choose one communicator on all ranks"));
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
  NcclBlob blob;
  blob.rank = Take<uint32_t>(in);
  blob.size = Take<uint32_t>(in);
  blob.bucket_bytes = Take<uint64_t>(in);
  blob.staging_bytes = Take<uint64_t>(in);
  blob.nccl_version = Take<uint32_t>(in);
  if (blob.rank != static_cast<uint32_t>(expected_rank)) {
    return Bad(expected_rank, absl::StrCat("it was written by rank ", blob.rank,
                                           "; the exchange must return blobs in rank order"));
  }
  if (blob.size != self.size) {
    return Bad(expected_rank,
               absl::StrCat("it is for a group of ", blob.size, " ranks, not ", self.size));
  }
  if (blob.bucket_bytes != self.bucket_bytes) {
    return Bad(expected_rank,
               absl::StrCat("its buckets have ", blob.bucket_bytes, " bytes, this rank's ",
                            self.bucket_bytes, "; use one value on all ranks"));
  }
  if (blob.staging_bytes != self.staging_bytes) {
    return Bad(expected_rank,
               absl::StrCat("its staging has ", blob.staging_bytes, " bytes, this rank's ",
                            self.staging_bytes, "; use one value on all ranks"));
  }
  if (blob.nccl_version != self.nccl_version) {
    return Bad(expected_rank,
               absl::StrCat("it runs NCCL ", blob.nccl_version, ", this rank ", self.nccl_version,
                            "; install one version of NCCL on all nodes"));
  }
  const size_t expected_bytes = kFixedBytes + (expected_rank == 0 ? blob.id.size() : 0);
  if (bytes.size() != expected_bytes) {
    return Bad(expected_rank, absl::StrCat("it has ", bytes.size(), " bytes; rank ", expected_rank,
                                           "'s has ", expected_bytes));
  }
  if (expected_rank == 0) std::memcpy(blob.id.data(), in.data(), blob.id.size());
  return blob;
}

}  // namespace sparsebalance::comm_internal
