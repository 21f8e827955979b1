#include "worker/comm/gloo_communicator.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/rendezvous_blob.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::BlobBoard;
using ::sparsebalance::comm_testing::RunRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Long beside what a rank needs when other processes keep it from running.
GlooOptions ShortTimeout() {
  GlooOptions options;
  options.timeout = absl::Milliseconds(1500);
  return options;
}

absl::Status ConnectStatus(int rank, int size, const GlooOptions& options,
                           const RendezvousExchange& exchange) {
  return GlooCommunicator::Connect(rank, size, options, exchange).status();
}

absl::StatusOr<std::vector<std::string>> NoExchange(std::string) {
  ADD_FAILURE() << "the exchange must not be called";
  return absl::InternalError("called");
}

TEST(GlooCommunicatorTest, RefusesImpossibleGroupsAndOptions) {
  const auto code = [](int rank, int size, const GlooOptions& options) {
    return ConnectStatus(rank, size, options, NoExchange).code();
  };
  for (const auto& [rank, size] : std::vector<std::pair<int, int>>{{0, 0}, {-1, 2}, {2, 2}}) {
    EXPECT_EQ(code(rank, size, {}), absl::StatusCode::kInvalidArgument) << rank << " of " << size;
  }
  GlooOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(code(0, 2, options), absl::StatusCode::kInvalidArgument);
  options = {};
  options.bucket_bytes = 1023;
  EXPECT_EQ(code(0, 2, options), absl::StatusCode::kInvalidArgument);
}

TEST(GlooCommunicatorTest, RefusesAddressesThatCannotBeReached) {
  GlooOptions options;
  options.bind_host = "0.0.0.0";
  const absl::Status wildcard = ConnectStatus(0, 2, options, NoExchange);
  EXPECT_EQ(wildcard.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(wildcard.message()), HasSubstr("wildcard"));
  options.bind_host = "127.0.0.1";
  options.interface = "no-such-nic0";
  const absl::Status interface = ConnectStatus(0, 2, options, NoExchange);
  EXPECT_EQ(interface.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(interface.message()), HasSubstr("no-such-nic0"));
}

TEST(GlooCommunicatorTest, ListensOnAnInterfaceByName) {
  GlooOptions options;
  options.interface = "lo";
  auto ranks = comm_testing::ConnectGloo(2, options);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
}

TEST(GlooCommunicatorTest, PassesOnAFailedExchange) {
  const absl::Status status = ConnectStatus(
      0, 2, {}, [](std::string) { return absl::DeadlineExceededError("rank 1 never joined"); });
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 1 never joined"));
}

// Connects rank 0 of 2 with what `change` makes of both ranks' blobs.
absl::Status ConnectWith(const std::function<void(std::vector<std::string>&)>& change) {
  return ConnectStatus(
      0, 2, ShortTimeout(), [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
        auto blob = comm_internal::ParseRendezvousBlob(own, 0, 2, GlooOptions().bucket_bytes);
        if (!blob.ok()) return blob.status();
        blob->rank = 1;
        std::swap(blob->ports[0], blob->ports[1]);
        std::vector<std::string> blobs = {std::move(own),
                                          comm_internal::EncodeRendezvousBlob(*blob)};
        change(blobs);
        return blobs;
      });
}

TEST(GlooCommunicatorTest, RefusesWrongBlobs) {
  using Blobs = std::vector<std::string>;
  const std::vector<std::pair<std::function<void(Blobs&)>, std::string>> cases = {
      {[](Blobs& b) { b.pop_back(); }, "1 blobs for 2 ranks"},
      {[](Blobs& b) { b[0] = b[1]; }, "another blob for this rank"},
      {[](Blobs& b) { b[1] = "hello"; }, "magic"},
      {[](Blobs& b) { b[1].resize(20); }, "20 bytes"},
      {[](Blobs& b) { b[1].pop_back(); }, "2 ranks need"},
      {[](Blobs& b) { b[1][5] = 9; }, "version 9"},
      {[](Blobs& b) { b[1][6] = 7; }, "written by rank 7"},
      {[](Blobs& b) { b[1][10] = 5; }, "group of 5 ranks"},
      {[](Blobs& b) { b[1][14] = 1; }, "buckets"},
      {[](Blobs& b) { b[1][22] = 5; }, "family 5"},
      {[](Blobs& b) { b[1][43] = b[1][44] = 0; }, "port 0 for rank 0"},
  };
  for (const auto& [change, message] : cases) {
    const absl::Status status = ConnectWith(change);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << message;
    EXPECT_THAT(std::string(status.message()), HasSubstr(message));
  }
}

TEST(GlooCommunicatorTest, GivesUpOnAPeerThatNeverConnects) {
  BlobBoard board(2);
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) {
    return ConnectStatus(r, 2, ShortTimeout(),
                         [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
                           std::vector<std::string> blobs = board.Exchange(r, std::move(own));
                           if (r == 1) return absl::AbortedError("changed its mind");
                           return blobs;
                         });
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("connecting: lost rank 1"));
}

TEST(GlooCommunicatorTest, EveryRankNamesTheOneThatHangs) {
  constexpr int kSize = 4;
  constexpr int kHung = 2;
  auto ranks = comm_testing::ConnectGloo(kSize, ShortTimeout());
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  std::vector<absl::Status> statuses = RunRanks(kSize, [&](int r) -> absl::Status {
    if (r == kHung) return absl::OkStatus();
    std::vector<float> values(3000000, 1.0f);
    return (*ranks)[r]->AllReduceSum(std::span<float>(values));
  });
  for (int r = 0; r < kSize; ++r) {
    if (r == kHung) continue;
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
    EXPECT_THAT(std::string(statuses[r].message()),
                AllOf(HasSubstr("lost rank 2"), HasSubstr("no progress within 1.5s")));
    EXPECT_EQ(static_cast<GlooCommunicator&>(*(*ranks)[r]).lost_rank(), kHung);
  }
  const absl::Status late = (*ranks)[kHung]->Barrier();
  EXPECT_EQ(late.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(late.message()), HasSubstr("gave this rank up"));
}

TEST(GlooCommunicatorTest, SeveralGroupsShareAProcess) {
  std::vector<std::vector<std::unique_ptr<Communicator>>> groups;
  for (int g = 0; g < 3; ++g) {
    auto ranks = comm_testing::ConnectGloo(2, {});
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    groups.push_back(*std::move(ranks));
  }
  const std::vector<absl::Status> statuses = RunRanks(6, [&](int t) -> absl::Status {
    Communicator& comm = *groups[t / 2][t % 2];
    for (int i = 0; i < 50; ++i) {
      std::vector<int64_t> value = {t};
      absl::Status status = comm.AllReduceMinInt64(value);
      if (!status.ok()) return status;
      if (value[0] != t / 2 * 2) return absl::InternalError("a value of another group");
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, testing::Each(absl::OkStatus()));
}

}  // namespace
}  // namespace sparsebalance
