#include "worker/comm/local_communicator.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/comm_test_util.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::RunRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

TEST(LocalCommunicatorTest, RefusesEmptyGroupsAndTimeoutsOfNothing) {
  EXPECT_EQ(CreateLocalGroup(0).status().code(), absl::StatusCode::kInvalidArgument);
  LocalGroupOptions options;
  options.timeout = absl::ZeroDuration();
  EXPECT_EQ(CreateLocalGroup(2, options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(LocalCommunicatorTest, InjectedFaultStrikesAtItsCallAndPeersNameTheRank) {
  LocalGroupOptions options;
  options.before_collective = FailAt(/*rank=*/1, /*call=*/3, absl::DataLossError("unplugged"));
  auto ranks = CreateLocalGroup(3, options);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  std::vector<int> completed(3);
  const std::vector<absl::Status> statuses = RunRanks(3, [&](int r) {
    absl::Status status;
    while ((status = (*ranks)[r]->Barrier()).ok()) ++completed[r];
    return status;
  });
  EXPECT_THAT(completed, testing::Each(2));
  EXPECT_EQ(statuses[1], absl::DataLossError("unplugged"));
  for (const int r : {0, 2}) {
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
    EXPECT_THAT(std::string(statuses[r].message()),
                AllOf(HasSubstr("rank 1"), HasSubstr("Barrier, call 3"), HasSubstr("unplugged")));
  }
}

TEST(LocalCommunicatorTest, NamesTheRanksThatDoNotComeInTime) {
  LocalGroupOptions options;
  options.timeout = absl::Milliseconds(20);
  auto ranks = CreateLocalGroup(4, options);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses =
      RunRanks(4, [&](int r) { return r % 2 == 0 ? (*ranks)[r]->Barrier() : absl::OkStatus(); });
  for (const int r : {0, 2}) {
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
    EXPECT_THAT(std::string(statuses[r].message()), HasSubstr("1, 3 did not come within 20ms"));
  }
}

TEST(LocalCommunicatorTest, FastRankMayRunAheadOfOneThatHasNotLeftTheLastCollective) {
  auto ranks = CreateLocalGroup(4);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(4, [&](int r) -> absl::Status {
    for (int64_t step = 0; step < 500; ++step) {
      std::vector<int64_t> value = {step * 10 + r};
      absl::Status status = (*ranks)[r]->AllReduceMaxInt64(value);
      if (!status.ok()) return status;
      if (value[0] != step * 10 + 3) return absl::InternalError("a result of another step");
    }
    return absl::OkStatus();
  });
  EXPECT_THAT(statuses, testing::Each(absl::OkStatus()));
}

}  // namespace
}  // namespace sparsebalance
