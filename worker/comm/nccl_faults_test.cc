// What goes wrong under way: a peer that hangs or goes, a device that fails, an abort. Each ends
// with one clear status, with NCCL's communicator given up, and never with a wait for ever.
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/fake_nccl.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/comm/nccl_test_util.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::ConnectFakeNccl;
using ::sparsebalance::comm_testing::DeviceFloats;
using ::sparsebalance::comm_testing::FakeNcclNode;
using ::sparsebalance::comm_testing::RunRanks;
using ::testing::AllOf;
using ::testing::HasSubstr;

class NcclFaultsTest : public ::testing::Test {
 protected:
  void SetUp() override {
    NcclOptions options;
    options.bucket_bytes = 1024;
    options.staging_bytes = 1024;
    auto ranks = ConnectFakeNccl(node_, 2, options);
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ranks_ = *std::move(ranks);
  }

  absl::Status SumOnHost(int rank, size_t count = 1000) {
    std::vector<float> values(count, 1.0F);
    return ranks_[rank]->AllReduceSum(std::span<float>(values));
  }

  FakeNcclNode node_{2};
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

TEST_F(NcclFaultsTest, PeerThatNeverComesIsAnErrorAfterTheTimeout) {
  node_.gpu(0).UseVirtualTime();
  const absl::Status status = SumOnHost(0);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0: AllReduceSum of 1000 elements, call 1"),
                    HasSubstr("no end within 5m"), HasSubstr("does not say which")));
  EXPECT_EQ(node_.gpu(0).calls("Abort"), 1);
  // The first error is final, and the other rank learns of it.
  EXPECT_EQ(ranks_[0]->Barrier(), status);
  EXPECT_EQ(ranks_[0]->Wait(), status);
  EXPECT_EQ(ranks_[1]->Barrier().code(), absl::StatusCode::kUnavailable);
}

TEST_F(NcclFaultsTest, EnqueuedWorkThatNeverEndsIsAnErrorOfWaitAndTheStreamEnds) {
  node_.gpu(0).UseVirtualTime();
  DeviceFloats values(node_.gpu(0), std::vector<float>(1000, 1.0F));
  ASSERT_EQ(ranks_[0]->AllReduceSum(values.buffer()), absl::OkStatus());
  const absl::Status status = ranks_[0]->Wait();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(
      std::string(status.message()),
      HasSubstr("rank 0: waiting for AllReduceSum of 1000 elements, call 1: no end within"));
  EXPECT_EQ(ranks_[0]->AllReduceSum(values.buffer()), status);
  void* event = nullptr;
  ASSERT_TRUE(node_.gpu(0).CreateEvent(&event).ok());
  ASSERT_TRUE(node_.gpu(0).RecordEvent(event, values.stream()).ok());
  for (bool done = false; !done;) ASSERT_TRUE(node_.gpu(0).QueryEvent(event, &done).ok());
}

TEST_F(NcclFaultsTest, ErrorOfAHostCallTellsWhatWasEnqueuedBefore) {
  node_.gpu(0).UseVirtualTime();
  DeviceFloats values(node_.gpu(0), {1, 2, 3});
  ASSERT_EQ(ranks_[0]->AllReduceSum(values.buffer()), absl::OkStatus());
  EXPECT_THAT(std::string(ranks_[0]->Barrier().message()),
              AllOf(HasSubstr("rank 0: Barrier, call 2"),
                    HasSubstr("(AllReduceSum of 3 elements, call 1, was enqueued before")));
}

TEST_F(NcclFaultsTest, ErrorThatNcclFindsByItselfEndsTheWait) {
  absl::Notification waiting;
  node_.gpu(0).OnPause([&] {
    if (!waiting.HasBeenNotified()) waiting.Notify();
  });
  absl::Status status;
  std::thread caller([&] { status = SumOnHost(0); });
  waiting.WaitForNotification();
  node_.gpu(0).SetAsyncError({"NCCL", 6, "remote process exited or there was a network error"});
  caller.join();
  node_.gpu(0).OnPause(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("AllReduceSum of 1000 elements, call 1"), HasSubstr("NCCL error 6"),
                    HasSubstr("network error"), HasSubstr("a peer was lost")));
  EXPECT_EQ(node_.gpu(0).calls("Abort"), 1);
}

TEST_F(NcclFaultsTest, ErrorThatNcclFindsBetweenCallsIsReturnedByTheNext) {
  node_.gpu(0).SetAsyncError({"NCCL", 3, "internal error"});
  DeviceFloats values(node_.gpu(0), {1});
  const absl::Status status = ranks_[0]->AllReduceSum(values.buffer());
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL error 3, internal error"));
}

TEST_F(NcclFaultsTest, EveryFailingCallIsReportedWithItsPlaceAndEndsBothRanks) {
  for (const std::string function : {"SetDevice", "CopyAsync", "AllGather", "AllReduce",
                                     "RecordEvent", "QueryEvent", "AsyncError"}) {
    FakeNcclNode node(2);
    auto ranks = ConnectFakeNccl(node, 2, {});
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    node.gpu(0).FailCall(function, 1, {"CUDA", 700, "an illegal memory access was encountered"});
    const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) {
      std::vector<float> values(1000, 1.0F);
      return (*ranks)[r]->AllReduceSum(std::span<float>(values));
    });
    EXPECT_EQ(statuses[0].code(), absl::StatusCode::kInternal) << function << ": " << statuses[0];
    EXPECT_THAT(
        std::string(statuses[0].message()),
        AllOf(HasSubstr("rank 0: AllReduceSum of 1000 elements, call 1: gpu 0: "),
              testing::ContainsRegex("at nccl_[a-z]*\\.cc:[0-9]+: CUDA error 700, an ille")))
        << function;
    EXPECT_EQ(statuses[1].code(), absl::StatusCode::kUnavailable) << function << statuses[1];
    EXPECT_EQ(node.gpu(0).calls("Abort"), 1) << function;
  }
}

TEST_F(NcclFaultsTest, BucketThatFailsEndsTheCallBehindTheBucketsBefore) {
  node_.gpu(0).FailCall("AllReduce", 3, {"NCCL", 2, "unhandled system error"});
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) {
    DeviceFloats values(node_.gpu(r), std::vector<float>(1000, 1.0F));
    absl::Status status = ranks_[r]->AllReduceSum(values.buffer());
    if (status.ok()) status = ranks_[r]->Wait();
    // Gives the memory back only when nothing runs on it.
    ranks_[r].reset();
    return status;
  });
  EXPECT_EQ(node_.gpu(0).calls("AllReduce"), 3);
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("NCCL error 2, unhandled system error"));
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  }
}

TEST_F(NcclFaultsTest, AbortFromAnotherThreadEndsAWaitForTheDevice) {
  DeviceFloats values(node_.gpu(0), {1, 2, 3});
  ASSERT_EQ(ranks_[0]->AllReduceSum(values.buffer()), absl::OkStatus());
  absl::Notification waiting;
  node_.gpu(0).OnPause([&] {
    if (!waiting.HasBeenNotified()) waiting.Notify();
  });
  absl::Status status;
  std::thread caller([&] { status = ranks_[0]->Wait(); });
  waiting.WaitForNotification();
  ranks_[0]->Abort();
  caller.join();
  node_.gpu(0).OnPause(nullptr);
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
  EXPECT_EQ(node_.gpu(0).calls("Abort"), 1);
}

TEST_F(NcclFaultsTest, AbortWhileNoCallRunsStopsWhatIsOnTheDeviceAtOnce) {
  DeviceFloats values(node_.gpu(0), {1, 2, 3});
  ASSERT_EQ(ranks_[0]->AllReduceSum(values.buffer()), absl::OkStatus());
  ranks_[0]->Abort();
  ranks_[0]->Abort();
  EXPECT_EQ(node_.gpu(0).calls("Abort"), 1);
  EXPECT_EQ(ranks_[0]->AllReduceSum(values.buffer()).code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(ranks_[0]->Wait().code(), absl::StatusCode::kCancelled);
}

TEST_F(NcclFaultsTest, LeavingWithWorkThatCannotEndAbortsItAfterATime) {
  node_.gpu(0).UseVirtualTime();
  DeviceFloats values(node_.gpu(0), {1, 2, 3});
  ASSERT_EQ(ranks_[0]->AllReduceSum(values.buffer()), absl::OkStatus());
  ranks_[0].reset();
  EXPECT_EQ(node_.gpu(0).calls("Finalize"), 1);
  EXPECT_EQ(node_.gpu(0).calls("Abort"), 1);
  EXPECT_EQ(node_.gpu(0).live_allocations(), 1);  // the test's own
}

TEST_F(NcclFaultsTest, MemoryThatTheGpuDoesNotLetGoOfIsNotFreedUnderIt) {
  node_.gpu(0).UseVirtualTime();
  node_.gpu(0).IgnoreAborts();
  const int before = node_.gpu(0).live_allocations();
  EXPECT_EQ(SumOnHost(0).code(), absl::StatusCode::kUnavailable);
  ranks_[0].reset();
  EXPECT_EQ(node_.gpu(0).live_allocations(), before);
  node_.gpu(0).Release();
}

}  // namespace
}  // namespace sparsebalance
