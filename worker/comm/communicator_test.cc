// What every communicator promises, held against each implementation and group size.
#include "worker/comm/communicator.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <tuple>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/fake_nccl.h"
#include "worker/comm/local_communicator.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::RunRanks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr size_t kBucketBytes = 1024;

// Values whose sum depends on the order of addition.
float Value(int rank, size_t i) {
  const float magnitude = std::ldexp(1.0f, static_cast<int>((i * 7 + rank * 11) % 40) - 20);
  return magnitude * (1.0f + 0.37f * static_cast<float>(rank)) * (i % 3 == 0 ? -1.0f : 1.0f);
}

std::vector<float> Values(int rank, size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = Value(rank, i);
  return values;
}

bool SameBits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size_bytes()) == 0);
}

// Within the rounding of additions in any order.
void ExpectNearSum(std::span<const float> sums, int size) {
  double worst = 0;
  for (size_t i = 0; i < sums.size(); ++i) {
    double sum = 0;
    double magnitude = 0;
    for (int r = 0; r < size; ++r) {
      sum += Value(r, i);
      magnitude += std::abs(static_cast<double>(Value(r, i)));
    }
    worst = std::max(worst, std::abs(sums[i] - sum) / magnitude);
  }
  EXPECT_LT(worst, size * 0x1p-24);
}

class CommunicatorTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  void SetUp() override {
    size_ = std::get<1>(GetParam());
    absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> ranks;
    if (std::get<0>(GetParam()) == "Local") {
      ranks = CreateLocalGroup(size_);
    } else if (std::get<0>(GetParam()) == "Nccl") {
      nccl_ = true;
      node_ = std::make_unique<comm_testing::FakeNcclNode>(size_);
      NcclOptions options;
      options.bucket_bytes = kBucketBytes;
      options.staging_bytes = kBucketBytes;
      ranks = comm_testing::ConnectFakeNccl(*node_, size_, options);
    } else {
      GlooOptions options;
      options.bucket_bytes = kBucketBytes;
      ranks = comm_testing::ConnectGloo(size_, options);
    }
    ASSERT_TRUE(ranks.ok()) << ranks.status();
    ranks_ = *std::move(ranks);
  }

  // Runs on all ranks and expects OK from each.
  void OnAll(const std::function<absl::Status(Communicator&)>& body) {
    const std::vector<absl::Status> statuses =
        RunRanks(size_, [&](int r) { return body(*ranks_[r]); });
    EXPECT_THAT(statuses, Each(absl::OkStatus()));
  }

  int size_ = 0;
  // Over a fake of the library. It neither states an order of additions nor says who was lost.
  bool nccl_ = false;
  std::unique_ptr<comm_testing::FakeNcclNode> node_;
  // Of calls that fail. Gloo lets go of it through atomics inside libgloo before the call returns,
  // which ThreadSanitizer does not see: it outlives Gloo's threads.
  std::vector<std::vector<float>> values_;
  std::vector<std::unique_ptr<Communicator>> ranks_;
};

INSTANTIATE_TEST_SUITE_P(All, CommunicatorTest,
                         ::testing::Combine(::testing::Values("Local", "Gloo", "Nccl"),
                                            ::testing::Values(1, 2, 3, 4)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + std::to_string(std::get<1>(test.param));
                         });

TEST_P(CommunicatorTest, KnowsItsPlace) {
  for (int r = 0; r < size_; ++r) {
    EXPECT_EQ(ranks_[r]->rank(), r);
    EXPECT_EQ(ranks_[r]->size(), size_);
    EXPECT_TRUE(ranks_[r]->Supports(FloatBuffer::Location::kHost));
    EXPECT_EQ(ranks_[r]->Supports(FloatBuffer::Location::kDevice), nccl_);
  }
}

TEST_P(CommunicatorTest, SumsAlikeOnAllRanksAndInTheirOrderWhereThatIsStated) {
  // Below and above one step, one bucket, several buckets, and sizes that do not divide.
  for (const size_t count : {1u, 2u, 3u, 7u, 255u, 256u, 257u, 2048u, 2049u, 5000u, 100003u}) {
    std::vector<float> expected = Values(0, count);
    for (int r = 1; r < size_; ++r) {
      for (size_t i = 0; i < count; ++i) expected[i] += Value(r, i);
    }
    std::vector<std::vector<float>> results(size_);
    OnAll([&](Communicator& comm) {
      results[comm.rank()] = Values(comm.rank(), count);
      return comm.AllReduceSum(std::span<float>(results[comm.rank()]));
    });
    // Without a stated order: what rank 0 has, and that near the sum.
    if (nccl_) {
      ExpectNearSum(results[0], size_);
      expected = results[0];
    }
    for (int r = 0; r < size_; ++r) {
      EXPECT_TRUE(SameBits(results[r], expected)) << "rank " << r << ", " << count << " elements";
    }
  }
}

TEST_P(CommunicatorTest, ReducesIntegersAtTheirLimitsAndDoubles) {
  constexpr int64_t kMin = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax = std::numeric_limits<int64_t>::max();
  OnAll([&](Communicator& comm) -> absl::Status {
    const int r = comm.rank();
    const bool last = r == size_ - 1;
    std::vector<int64_t> highest = {last ? kMax : kMin, r, -r};
    absl::Status status = comm.AllReduceMaxInt64(highest);
    EXPECT_THAT(highest, ElementsAre(kMax, size_ - 1, 0));
    if (!status.ok()) return status;
    std::vector<int64_t> lowest = {last ? kMin : kMax, r, -r};
    status = comm.AllReduceMinInt64(lowest);
    EXPECT_THAT(lowest, ElementsAre(kMin, 0, 1 - size_));
    if (!status.ok()) return status;
    std::vector<double> sums(3000, r + 0.25);
    status = comm.AllReduceSumDouble(sums);
    EXPECT_THAT(sums, Each(0.5 * size_ * (size_ - 1) + 0.25 * size_));
    return status;
  });
}

TEST_P(CommunicatorTest, GathersInRankOrder) {
  OnAll([&](Communicator& comm) -> absl::Status {
    const std::vector<double> in = {comm.rank() * 10.0, comm.rank() * 10.0 + 1};
    std::vector<double> out(2 * size_);
    absl::Status status = comm.AllGather(in, out);
    for (int r = 0; r < size_; ++r) {
      EXPECT_EQ(out[2 * r], r * 10.0);
      EXPECT_EQ(out[2 * r + 1], r * 10.0 + 1);
    }
    if (!status.ok()) return status;
    const std::vector<int64_t> ids(5000, comm.rank());
    std::vector<int64_t> all(ids.size() * size_);
    status = comm.AllGatherInt64(ids, all);
    for (size_t i = 0; i < all.size(); ++i) {
      if (all[i] != static_cast<int64_t>(i / ids.size())) return absl::InternalError("misplaced");
    }
    return status;
  });
}

TEST_P(CommunicatorTest, BroadcastsFromEveryRoot) {
  for (int root = 0; root < size_; ++root) {
    OnAll([&](Communicator& comm) -> absl::Status {
      std::vector<float> values = Values(comm.rank(), 3000);
      absl::Status status = comm.Broadcast(std::span<float>(values), root);
      EXPECT_TRUE(SameBits(values, Values(root, 3000)));
      return status;
    });
  }
}

TEST_P(CommunicatorTest, TakesEmptySpansInEveryCollective) {
  OnAll([&](Communicator& comm) -> absl::Status {
    for (const absl::Status& status :
         {comm.AllReduceSum(std::span<float>()), comm.AllReduceSumDouble({}),
          comm.AllReduceMaxInt64({}), comm.AllReduceMinInt64({}), comm.AllGather({}, {}),
          comm.AllGatherInt64({}, {}), comm.Broadcast(std::span<float>(), 0), comm.Barrier()}) {
      if (!status.ok()) return status;
    }
    return absl::OkStatus();
  });
}

TEST_P(CommunicatorTest, RefusesBadArgumentsAndStaysUsable) {
  OnAll([&](Communicator& comm) -> absl::Status {
    std::vector<double> in(2), out(2 * size_ + 1);
    const absl::Status gather = comm.AllGather(in, out);
    EXPECT_EQ(gather.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(gather.message()), HasSubstr(std::to_string(2 * size_ + 1)));
    std::vector<float> values(4);
    for (const int root : {-1, size_}) {
      const absl::Status broadcast = comm.Broadcast(std::span<float>(values), root);
      EXPECT_EQ(broadcast.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(broadcast.message()), HasSubstr(std::to_string(root)));
    }
    if (nccl_) return comm.Barrier();
    const absl::Status device = comm.AllReduceSum(FloatBuffer::Device(values.data(), 4, nullptr));
    EXPECT_EQ(device.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(device.message()), HasSubstr("device memory"));
    return comm.Barrier();
  });
}

TEST_P(CommunicatorTest, WaitReturnsAtOnceAndRepeatsTheFirstError) {
  OnAll([](Communicator& comm) { return comm.Wait(); });
  for (const std::unique_ptr<Communicator>& rank : ranks_) {
    rank->Abort();
    EXPECT_EQ(rank->Wait().code(), absl::StatusCode::kCancelled);
  }
}

TEST_P(CommunicatorTest, SaysWhichRankCalledSomethingElse) {
  if (size_ == 1) GTEST_SKIP() << "one rank agrees with itself";
  for (int r = 0; r < size_; ++r) values_.emplace_back(r == 0 ? 5000 : 5001);
  const std::vector<absl::Status> statuses =
      RunRanks(size_, [&](int r) { return ranks_[r]->AllReduceSum(std::span<float>(values_[r])); });
  for (const absl::Status& status : statuses) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum of 5001 elements, call 1"));
    EXPECT_THAT(std::string(status.message()), HasSubstr("AllReduceSum of 5000 elements, call 1"));
  }
  // The first error is final.
  EXPECT_EQ(ranks_[0]->Barrier(), statuses[0]);
}

TEST_P(CommunicatorTest, AbortOfOneRankWakesAll) {
  const std::vector<absl::Status> statuses = RunRanks(size_, [&](int r) {
    if (r == size_ - 1) ranks_[r]->Abort();
    return ranks_[r]->Barrier();
  });
  for (int r = 0; r < size_; ++r) {
    if (r == size_ - 1) {
      EXPECT_EQ(statuses[r].code(), absl::StatusCode::kCancelled) << statuses[r];
    } else {
      EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
      const std::string message(statuses[r].message());
      if (nccl_) {
        EXPECT_THAT(message, HasSubstr("rank " + std::to_string(r) + ": Barrier, call 1"));
        continue;
      }
      EXPECT_THAT(message, HasSubstr("rank " + std::to_string(size_ - 1)));
      EXPECT_THAT(message, HasSubstr("abort"));
    }
  }
}

TEST_P(CommunicatorTest, AbortFromAnotherThreadEndsARunningCall) {
  if (size_ == 1) GTEST_SKIP() << "a call of one rank does not wait";
  absl::Status blocked;
  std::thread caller([&] { blocked = ranks_[0]->Barrier(); });
  ranks_[0]->Abort();
  caller.join();
  EXPECT_EQ(blocked.code(), absl::StatusCode::kCancelled) << blocked;
  EXPECT_EQ(ranks_[1]->Barrier().code(), absl::StatusCode::kUnavailable);
}

TEST_P(CommunicatorTest, NamesTheRankThatLeft) {
  if (size_ == 1) GTEST_SKIP() << "nobody is left";
  ranks_[0].reset();
  const std::vector<absl::Status> statuses =
      RunRanks(size_, [&](int r) { return r == 0 ? absl::OkStatus() : ranks_[r]->Barrier(); });
  for (int r = 1; r < size_; ++r) {
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
    if (nccl_) {
      EXPECT_THAT(std::string(statuses[r].message()), HasSubstr("a peer was lost"));
      continue;
    }
    EXPECT_THAT(std::string(statuses[r].message()), HasSubstr("rank 0"));
    EXPECT_THAT(std::string(statuses[r].message()), HasSubstr("left"));
  }
}

TEST_P(CommunicatorTest, LastCollectiveReachesPeersOfARankThatLeavesAtOnce) {
  OnAll([&](Communicator& comm) -> absl::Status {
    std::vector<float> values(20000, 1.0f);
    absl::Status status = comm.AllReduceSum(std::span<float>(values));
    EXPECT_THAT(values, Each(static_cast<float>(size_)));
    ranks_[comm.rank()].reset();
    return status;
  });
}

}  // namespace
}  // namespace sparsebalance
