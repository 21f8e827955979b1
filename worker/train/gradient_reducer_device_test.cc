// Device memory: the reducer's streams and events with NcclCommunicator, both over a fake GPU that
// runs streams as threads, and the way by copies where the communicator reaches host memory only.
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/fake_nccl.h"
#include "worker/comm/local_communicator.h"
#include "worker/train/gradient_reducer.h"
#include "worker/train/opless_backend.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::ConnectFakeNccl;
using ::sparsebalance::comm_testing::FakeNcclNode;
using ::sparsebalance::comm_testing::RunRanks;
using ::sparsebalance::train_testing::OplessBackend;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr int64_t kSize = 1000;  // four buckets

// A rank's device, gradients and reducer; the gradients are zero.
struct DeviceRank {
  DeviceRank(FakeNcclNode& node, Communicator* comm, int r) : gpu(node.gpu(r)), backend(&gpu) {
    gradients = *backend.Allocate<float>(kSize);
    (void)backend.CopyToDevice(std::vector<float>(kSize), gradients.span());
    GradientReducerOptions options;
    options.bucket_bytes = 1024;
    reducer = *GradientReducer::Create(comm, &backend, gradients.span(), options);
  }
  // Backward of [begin, end): on the compute stream.
  absl::Status Backward(int64_t begin, int64_t end, float value) {
    backend.EnqueueWrite(std::vector<float>(static_cast<size_t>(end - begin), value),
                         gradients.span().Slice(begin, end - begin));
    return reducer->MarkReady(begin, end);
  }

  comm_testing::FakeGpu& gpu;
  OplessBackend backend;
  kernels::DeviceArray<float> gradients;
  std::unique_ptr<GradientReducer> reducer;
};

TEST(GradientReducerDeviceTest, BucketsFollowBackwardOnTheComputeStreamAndItGoesOn) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    DeviceRank rank(node, (*ranks)[r].get(), r);
    void* const compute = rank.backend.current_stream();
    absl::Status status;
    for (int step = 1; status.ok() && step <= 3; ++step) {
      const int before = node.gpu(r).calls("AllReduce");
      status = rank.reducer->Begin();
      for (const auto& [begin, end] : {std::pair{600, 1000}, {300, 600}, {0, 300}}) {
        if (status.ok()) status = rank.Backward(begin, end, static_cast<float>(step * (r + 1)));
        EXPECT_EQ(rank.backend.current_stream(), compute);
      }
      // All was started before Finish().
      EXPECT_EQ(node.gpu(r).calls("AllReduce") - before, 4);
      if (status.ok()) status = rank.reducer->Finish();
      EXPECT_THAT(rank.backend.Peek(rank.gradients.span()), Each(3.0F * step));
      EXPECT_EQ(rank.backend.current_stream(), compute);
    }
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(GradientReducerDeviceTest, NothingIsReducedBeforeTheComputeStreamHasGotThere) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    DeviceRank rank(node, (*ranks)[r].get(), r);
    absl::Status status = rank.reducer->Begin();
    node.gpu(r).Hold(rank.backend.current_stream());
    if (status.ok()) status = rank.Backward(0, kSize, 5.0F);
    EXPECT_THAT(rank.backend.Peek(rank.gradients.span()), Each(0.0F));
    node.gpu(r).Release();
    if (status.ok()) status = rank.reducer->Finish();
    EXPECT_THAT(rank.backend.Peek(rank.gradients.span()), Each(10.0F));
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(GradientReducerDeviceTest, RankWithoutMicroBatchesReducesWhatItHas) {
  FakeNcclNode node(3);
  auto ranks = ConnectFakeNccl(node, 3, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(3, [&](int r) -> absl::Status {
    DeviceRank rank(node, (*ranks)[r].get(), r);
    absl::Status status = rank.reducer->Begin();
    if (status.ok() && r != 1) status = rank.Backward(0, kSize, 2.0F);
    if (status.ok()) status = rank.reducer->Finish();
    EXPECT_THAT(rank.backend.Peek(rank.gradients.span()), Each(4.0F));
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(GradientReducerDeviceTest, PeerThatNeverComesIsAnErrorOfFinish) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  node.gpu(0).UseVirtualTime();
  DeviceRank rank(node, (*ranks)[0].get(), 0);
  ASSERT_EQ(rank.reducer->Begin(), absl::OkStatus());
  ASSERT_EQ(rank.Backward(0, kSize, 1.0F), absl::OkStatus());
  const absl::Status status = rank.reducer->Finish();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: waiting for AllReduceSum of 256"));
  EXPECT_EQ(rank.reducer->Begin(), status);
  // The compute stream, which follows the buckets, is not stuck behind them.
  EXPECT_EQ(rank.backend.Synchronize(), absl::OkStatus());
}

TEST(GradientReducerDeviceTest, BackendThatFailsEndsTheStepOfThePeersToo) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    DeviceRank rank(node, (*ranks)[r].get(), r);
    absl::Status status = rank.reducer->Begin();
    if (r == 0) {
      rank.backend.FailNextEvent(absl::InternalError("no event"));
      EXPECT_EQ(rank.Backward(512, kSize, 1.0F), absl::InternalError("no event"));
    } else if (status.ok()) {
      status = rank.Backward(0, kSize, 1.0F);
    }
    const absl::Status finished = rank.reducer->Finish();
    return status.ok() ? finished : status;
  });
  EXPECT_EQ(statuses[0], absl::InternalError("no event"));
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kUnavailable) << statuses[1];
}

TEST(GradientReducerDeviceTest, LeavingInTheMiddleOfAStepFreesTheStreams) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  DeviceRank rank(node, (*ranks)[0].get(), 0);
  ASSERT_EQ(rank.reducer->Begin(), absl::OkStatus());
  ASSERT_EQ(rank.Backward(300, kSize, 1.0F), absl::OkStatus());
  rank.reducer.reset();
  EXPECT_EQ(node.gpu(0).calls("Abort"), 1);
  EXPECT_EQ((*ranks)[0]->Wait().code(), absl::StatusCode::kCancelled);
}

TEST(GradientReducerDeviceTest, CommunicatorForHostMemoryGetsCopiesInTheEnd) {
  FakeNcclNode node(2);
  auto ranks = CreateLocalGroup(2);
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    DeviceRank rank(node, (*ranks)[r].get(), r);
    absl::Status status = rank.reducer->Begin();
    if (status.ok()) status = rank.Backward(300, kSize, static_cast<float>(r + 1));
    if (status.ok()) status = rank.reducer->Finish();
    std::vector<float> expected(kSize, 3.0F);
    std::fill(expected.begin(), expected.begin() + 300, 0.0F);
    EXPECT_EQ(rank.backend.Peek(rank.gradients.span()), expected);
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

}  // namespace
}  // namespace sparsebalance
