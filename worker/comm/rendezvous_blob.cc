#include "worker/comm/rendezvous_blob.h"

#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/comm/blob_fields.h"

namespace sparsebalance::comm_internal {
namespace {

constexpr std::string_view kMagic = "SBRDV";
constexpr uint8_t kVersion = 1;
constexpr size_t kFixedBytes = 5 + 1 + 4 + 4 + 8 + 1 + 16 + 4;

}  // namespace

std::string EncodeRendezvousBlob(const RendezvousBlob& blob) {
  std::string out(kMagic);
  out.reserve(kFixedBytes + 2 * blob.ports.size());
  AppendField(out, kVersion);
  AppendField(out, blob.rank);
  AppendField(out, blob.size);
  AppendField(out, blob.bucket_bytes);
  AppendField(out, blob.family);
  out.append(reinterpret_cast<const char*>(blob.address.data()), blob.address.size());
  AppendField(out, blob.scope_id);
  for (uint16_t port : blob.ports) AppendField(out, port);
  return out;
}

absl::StatusOr<RendezvousBlob> ParseRendezvousBlob(std::string_view bytes, int expected_rank,
                                                   int expected_size,
                                                   uint64_t expected_bucket_bytes) {
  const size_t expected_bytes = kFixedBytes + 2 * static_cast<size_t>(expected_size);
  const absl::StatusOr<std::string_view> fields =
      FieldsOfBlob(bytes, expected_rank, kMagic, kVersion, kFixedBytes, "a worker of this job");
  if (!fields.ok()) return fields.status();
  std::string_view in = *fields;
  RendezvousBlob blob;
  blob.rank = TakeField<uint32_t>(in);
  blob.size = TakeField<uint32_t>(in);
  blob.bucket_bytes = TakeField<uint64_t>(in);
  blob.family = TakeField<uint8_t>(in);
  std::memcpy(blob.address.data(), in.data(), blob.address.size());
  in.remove_prefix(blob.address.size());
  blob.scope_id = TakeField<uint32_t>(in);
  const absl::Status head =
      CheckBlobHead({blob.rank, blob.size, blob.bucket_bytes},
                    {static_cast<uint32_t>(expected_rank), static_cast<uint32_t>(expected_size),
                     expected_bucket_bytes});
  if (!head.ok()) return head;
  if (blob.family != 4 && blob.family != 6) {
    return BadBlob(expected_rank,
                   absl::StrCat("address family ", blob.family, " is neither 4 nor 6"));
  }
  if (bytes.size() != expected_bytes) {
    return BadBlob(expected_rank, absl::StrCat("it has ", bytes.size(), " bytes; ", expected_size,
                                               " ranks need ", expected_bytes));
  }
  blob.ports.reserve(expected_size);
  for (int r = 0; r < expected_size; ++r) {
    blob.ports.push_back(TakeField<uint16_t>(in));
    if ((blob.ports.back() == 0) != (r == expected_rank)) {
      return BadBlob(expected_rank,
                     absl::StrCat("port ", blob.ports.back(), " for rank ", r, " cannot be"));
    }
  }
  return blob;
}

}  // namespace sparsebalance::comm_internal
