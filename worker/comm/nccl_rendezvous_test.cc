#include "worker/comm/nccl_rendezvous.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::comm_internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

NcclBlob BlobOf(uint32_t rank) {
  NcclBlob blob;
  blob.rank = rank;
  blob.size = 3;
  blob.bucket_bytes = 4096;
  blob.staging_bytes = 2048;
  blob.nccl_version = 22809;
  if (rank == 0) blob.id.fill('i');
  return blob;
}

TEST(NcclRendezvousTest, BlobsReadBackAsWrittenAndOnlyRankZeroSendsAnId) {
  for (const uint32_t rank : {0U, 2U}) {
    const std::string bytes = EncodeNcclBlob(BlobOf(rank));
    const auto parsed = ParseNcclBlob(bytes, static_cast<int>(rank), BlobOf(1));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(*parsed, BlobOf(rank));
  }
  EXPECT_EQ(EncodeNcclBlob(BlobOf(0)).size(), EncodeNcclBlob(BlobOf(2)).size() + 128);
}

TEST(NcclRendezvousTest, EveryDisagreementIsNamed) {
  using Change = std::function<void(NcclBlob&)>;
  const std::vector<std::pair<Change, std::string>> cases = {
      {[](NcclBlob& b) { b.rank = 2; }, "written by rank 2"},
      {[](NcclBlob& b) { b.size = 4; }, "group of 4 ranks, not 3"},
      {[](NcclBlob& b) { b.bucket_bytes = 512; }, "buckets have 512 bytes, this rank's 4096"},
      {[](NcclBlob& b) { b.staging_bytes = 8; }, "staging has 8 bytes, this rank's 2048"},
      {[](NcclBlob& b) { b.nccl_version = 22703; }, "NCCL 22703, this rank 22809"},
  };
  for (const auto& [change, message] : cases) {
    NcclBlob blob = BlobOf(1);
    change(blob);
    const absl::Status status = ParseNcclBlob(EncodeNcclBlob(blob), 1, BlobOf(0)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("blob of rank 1"), HasSubstr(message)));
  }
}

TEST(NcclRendezvousTest, BytesOfOthersAndOfOtherReleasesAreRefused) {
  const std::string good = EncodeNcclBlob(BlobOf(0));
  std::string other_version = good;
  other_version[5] = 9;
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"", "0 bytes do not begin with the magic"},
      {"SBRDV and what Gloo writes after it", "choose one communicator on all ranks"},
      {good.substr(0, 20), "20 bytes of at least 34"},
      {other_version, "version 9"},
      {good.substr(0, good.size() - 1), "161 bytes; rank 0's has 162"},
      {good + "x", "163 bytes; rank 0's has 162"},
  };
  for (const auto& [bytes, message] : cases) {
    const absl::Status status = ParseNcclBlob(bytes, 0, BlobOf(1)).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

}  // namespace
}  // namespace sparsebalance::comm_internal
