// Connecting, device buffers and their order, over the fake of the libraries. What holds for every
// communicator is in communicator_test.cc, failures under way are in nccl_faults_test.cc.
#include "worker/comm/nccl_communicator.h"

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/fake_nccl.h"
#include "worker/comm/nccl_test_util.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::BlobBoard;
using ::sparsebalance::comm_testing::ConnectFakeNccl;
using ::sparsebalance::comm_testing::DeviceFloats;
using ::sparsebalance::comm_testing::FakeGpu;
using ::sparsebalance::comm_testing::FakeNcclNode;
using ::sparsebalance::comm_testing::RunRanks;
using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

constexpr GpuResult kNoMemory = {"CUDA", 2, "out of memory"};

NcclOptions SmallBuckets() {
  NcclOptions options;
  options.bucket_bytes = 1024;
  options.staging_bytes = 1024;
  return options;
}

absl::StatusOr<std::vector<std::string>> NoExchange(const std::string&) {
  ADD_FAILURE() << "the exchange must not be called";
  return absl::InternalError("called");
}

absl::Status ConnectStatus(const std::shared_ptr<FakeGpu>& gpu, int rank, int size,
                           const NcclOptions& options, const RendezvousExchange& exchange) {
  return NcclCommunicator::Connect(gpu, rank, size, options, exchange).status();
}

TEST(NcclCommunicatorTest, RefusesImpossibleGroupsAndOptions) {
  const auto refused = [](int rank, int size, const std::function<void(NcclOptions&)>& change) {
    NcclOptions options;
    change(options);
    const auto gpu = std::make_shared<FakeGpu>();
    const absl::Status status = ConnectStatus(gpu, rank, size, options, NoExchange);
    return status.code() == absl::StatusCode::kInvalidArgument;
  };
  const auto nothing = [](NcclOptions&) {};
  EXPECT_TRUE(refused(0, 0, nothing));
  EXPECT_TRUE(refused(-1, 2, nothing));
  EXPECT_TRUE(refused(2, 2, nothing));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.timeout = absl::ZeroDuration(); }));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.leave_timeout = absl::ZeroDuration(); }));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.bucket_bytes = 0; }));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.bucket_bytes = 1000; }));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.staging_bytes = 1020; }));
  EXPECT_TRUE(refused(0, 1000, [](NcclOptions& o) { o.staging_bytes = 4096; }));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.device = 1; }));
  EXPECT_TRUE(refused(0, 2, [](NcclOptions& o) { o.device = -1; }));
}

TEST(NcclCommunicatorTest, WithoutDriverOrDeviceItSaysSoBeforeItMeetsAnyone) {
  const auto gpu = std::make_shared<FakeGpu>();
  gpu->SetDeviceCount(0, {"CUDA", 35, "CUDA driver version is insufficient"});
  const absl::Status driver = ConnectStatus(gpu, 1, 2, {}, NoExchange);
  EXPECT_EQ(driver.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(driver.message()),
              AllOf(HasSubstr("rank 1"), HasSubstr("no CUDA driver or device"),
                    HasSubstr("driver version is insufficient"), HasSubstr("nvidia-smi")));
  gpu->SetDeviceCount(0, {});
  const absl::Status device = ConnectStatus(gpu, 1, 2, {}, NoExchange);
  EXPECT_EQ(device.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(device.message()), HasSubstr("no CUDA device is visible"));
}

TEST(NcclCommunicatorTest, PassesOnAFailedExchangeAndKeepsNoMemory) {
  const auto gpu = std::make_shared<FakeGpu>();
  const absl::Status status = ConnectStatus(gpu, 0, 2, {}, [](const std::string&) {
    return absl::DeadlineExceededError("rank 1 never joined");
  });
  EXPECT_EQ(status, absl::DeadlineExceededError("rank 1 never joined"));
  EXPECT_EQ(gpu->live_allocations(), 0);
}

TEST(NcclCommunicatorTest, RefusesAnExchangeThatReturnsTheWrongBlobs) {
  using Blobs = std::vector<std::string>;
  const auto connect = [](const std::function<Blobs(const std::string&)>& make) {
    return ConnectStatus(
        std::make_shared<FakeGpu>(), 0, 2, {},
        [&](const std::string& own) -> absl::StatusOr<Blobs> { return make(own); });
  };
  const absl::Status few = connect([](const std::string& own) { return Blobs{own}; });
  EXPECT_EQ(few.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(few.message()), HasSubstr("1 blobs for 2 ranks"));
  const absl::Status other = connect([](const std::string& own) {
    std::string changed = own;
    changed.back() ^= 1;
    return Blobs{changed, own};
  });
  EXPECT_EQ(other.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(other.message()), HasSubstr("another blob for this rank"));
}

TEST(NcclCommunicatorTest, RanksWithOtherVersionsOfNcclDoNotMeet) {
  FakeNcclNode node(2);
  node.gpu(1).SetVersion(22703);
  const absl::Status status = ConnectFakeNccl(node, 2, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("NCCL 22703, this rank 22809"));
}

TEST(NcclCommunicatorTest, ConnectingEndsWhereARankNeverComes) {
  FakeNcclNode node(2);
  node.gpu(0).UseVirtualTime();
  BlobBoard board(2);
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) {
    return ConnectStatus(node.api(r), r, 2, {},
                         [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
                           std::vector<std::string> blobs = board.Exchange(r, std::move(own));
                           if (r == 1) return absl::AbortedError("changed its mind");
                           return blobs;
                         });
  });
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()),
              HasSubstr("rank 0: connecting: no end within 5m"));
  EXPECT_EQ(node.gpu(0).calls("Abort"), 1);
  EXPECT_EQ(node.gpu(0).live_allocations(), 0);
}

TEST(NcclCommunicatorTest, WhatTheGpuRefusesWhileConnectingIsReportedWithItsPlace) {
  for (const std::string function :
       {"SetDevice", "CreateStream", "CreateEvent", "AllocatePinned", "AllocateDevice", "UniqueId",
        "Join", "AsyncError", "AllGather", "CopyAsync", "RecordEvent", "QueryEvent"}) {
    const auto gpu = std::make_shared<FakeGpu>();
    gpu->FailCall(function, 1, kNoMemory);
    const absl::Status status = ConnectStatus(gpu, 0, 1, {}, NoExchange);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << function << ": " << status;
    EXPECT_THAT(
        std::string(status.message()),
        testing::ContainsRegex("gpu 0: .* at nccl_[a-z]*\\.cc:[0-9]+: CUDA error 2, out of"))
        << function;
    EXPECT_EQ(gpu->live_allocations(), 0) << function;
  }
}

TEST(NcclCommunicatorTest, GivesBackAllMemory) {
  FakeNcclNode node(3);
  {
    auto ranks = ConnectFakeNccl(node, 3, {});
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    EXPECT_GT(node.gpu(1).live_allocations(), 0);
  }
  for (int r = 0; r < 3; ++r) {
    EXPECT_EQ(node.gpu(r).live_allocations(), 0);
    EXPECT_EQ(node.gpu(r).calls("Abort"), 0);
    EXPECT_EQ(node.gpu(r).calls("Destroy"), 1);
  }
}

TEST(NcclCommunicatorTest, DeviceBuffersAreReducedInBucketsAndKnownWhenWaitReturns) {
  constexpr int kSize = 3;
  FakeNcclNode node(kSize);
  auto ranks = ConnectFakeNccl(node, kSize, SmallBuckets());
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(kSize, [&](int r) {
    DeviceFloats values(node.gpu(r), std::vector<float>(1000, static_cast<float>(r + 1)));
    const int before = node.gpu(r).calls("AllReduce");
    absl::Status status = (*ranks)[r]->AllReduceSum(values.buffer());
    // 256 elements a bucket.
    EXPECT_EQ(node.gpu(r).calls("AllReduce") - before, 4);
    if (status.ok()) status = (*ranks)[r]->Wait();
    EXPECT_THAT(values.Read(), Each(6.0F));
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(NcclCommunicatorTest, CallOnADeviceBufferReturnsBeforeItsStreamGetsThere) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    DeviceFloats values(node.gpu(r), {1, 2, 3});
    node.gpu(r).Hold(values.stream());
    absl::Status status = (*ranks)[r]->AllReduceSum(values.buffer());
    if (status.ok()) status = (*ranks)[r]->Broadcast(values.buffer(), 1);
    if (!status.ok()) return status;
    EXPECT_THAT(values.Read(), testing::ElementsAre(1, 2, 3));
    node.gpu(r).Release();
    // A collective on host memory comes after all on device buffers.
    status = (*ranks)[r]->Barrier();
    EXPECT_THAT(values.Read(), testing::ElementsAre(2, 4, 6));
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(NcclCommunicatorTest, CollectivesOnDifferentStreamsKeepTheirOrder) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    DeviceFloats values(node.gpu(r), {r == 0 ? 1.0F : 10.0F});
    DeviceFloats other(node.gpu(r), {});
    node.gpu(r).Hold(values.stream());
    absl::Status status = (*ranks)[r]->AllReduceSum(values.buffer());
    // The other way round it would be the sum of what rank 0 has.
    if (status.ok()) status = (*ranks)[r]->Broadcast(values.buffer_on(other.stream()), 0);
    if (!status.ok()) return status;
    EXPECT_EQ(node.gpu(r).calls("StreamWaitEvent"), 1);
    EXPECT_EQ(values.Read()[0], r == 0 ? 1.0F : 10.0F);
    node.gpu(r).Release();
    status = (*ranks)[r]->Wait();
    EXPECT_EQ(values.Read()[0], 11.0F);
    return status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(NcclCommunicatorTest, NothingIsEnqueuedForNoElements) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const int before = node.gpu(0).calls("AllReduce");
  // Rank 1 takes no part: it would hang if it had to.
  EXPECT_EQ((*ranks)[0]->AllReduceSum(FloatBuffer::Device(nullptr, 0, nullptr)), absl::OkStatus());
  EXPECT_EQ((*ranks)[0]->Wait(), absl::OkStatus());
  EXPECT_EQ(node.gpu(0).calls("AllReduce"), before);
}

TEST(NcclCommunicatorTest, RanksThatDisagreedOnADeviceBufferFindOutAtTheNextHostCall) {
  FakeNcclNode node(2);
  auto ranks = ConnectFakeNccl(node, 2, {});
  ASSERT_TRUE(ranks.ok()) << ranks.status();
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    const FloatBuffer none = FloatBuffer::Device(nullptr, 0, nullptr);
    absl::Status status =
        r == 0 ? (*ranks)[r]->AllReduceSum(none) : (*ranks)[r]->Broadcast(none, 1);
    return status.ok() ? (*ranks)[r]->Barrier() : status;
  });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("a collective before this one"));
  }
}

}  // namespace
}  // namespace sparsebalance
