#include "worker/comm/nccl_rendezvous.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/comm/blob_fields.h"

namespace sparsebalance::comm_internal {
namespace {

constexpr std::string_view kNcclMagic = "SBNCC";
constexpr uint8_t kNcclVersion = 1;
constexpr size_t kNcclFixedBytes = 5 + 1 + 4 + 4 + 8 + 8 + 4;

}  // namespace

std::string EncodeNcclBlob(const NcclBlob& blob) {
  std::string out(kNcclMagic);
  AppendField(out, kNcclVersion);
  AppendField(out, blob.rank);
  AppendField(out, blob.size);
  AppendField(out, blob.bucket_bytes);
  AppendField(out, blob.staging_bytes);
  AppendField(out, blob.nccl_version);
  if (blob.rank == 0) out.append(blob.id.data(), blob.id.size());
  return out;
}

absl::StatusOr<NcclBlob> ParseNcclBlob(std::string_view bytes, int expected_rank,
                                       const NcclBlob& self) {
  const absl::StatusOr<std::string_view> fields =
      FieldsOfBlob(bytes, expected_rank, kNcclMagic, kNcclVersion, kNcclFixedBytes,
                   "a worker of this job that uses NCCL: choose one communicator on all ranks");
  if (!fields.ok()) return fields.status();
  std::string_view in = *fields;
  NcclBlob blob;
  blob.rank = TakeField<uint32_t>(in);
  blob.size = TakeField<uint32_t>(in);
  blob.bucket_bytes = TakeField<uint64_t>(in);
  blob.staging_bytes = TakeField<uint64_t>(in);
  blob.nccl_version = TakeField<uint32_t>(in);
  const absl::Status head =
      CheckBlobHead({blob.rank, blob.size, blob.bucket_bytes},
                    {static_cast<uint32_t>(expected_rank), self.size, self.bucket_bytes});
  if (!head.ok()) return head;
  if (blob.staging_bytes != self.staging_bytes) {
    return BadBlob(expected_rank,
                   absl::StrCat("its staging has ", blob.staging_bytes, " bytes, this rank's ",
                                self.staging_bytes, "; use one value on all ranks"));
  }
  if (blob.nccl_version != self.nccl_version) {
    return BadBlob(expected_rank,
                   absl::StrCat("it runs NCCL ", blob.nccl_version, ", this rank ",
                                self.nccl_version, "; install one version of NCCL on all nodes"));
  }
  const size_t expected_bytes = kNcclFixedBytes + (expected_rank == 0 ? blob.id.size() : 0);
  if (bytes.size() != expected_bytes) {
    return BadBlob(expected_rank, absl::StrCat("it has ", bytes.size(), " bytes; rank ",
                                               expected_rank, "'s has ", expected_bytes));
  }
  if (expected_rank == 0) std::memcpy(blob.id.data(), in.data(), blob.id.size());
  return blob;
}

}  // namespace sparsebalance::comm_internal
