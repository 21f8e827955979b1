// Host memory: ranks as threads, with and without sockets.
#include "worker/train/gradient_reducer.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/create_backend.h"
#include "worker/comm/comm_test_util.h"
#include "worker/comm/local_communicator.h"

namespace sparsebalance {
namespace {

using ::sparsebalance::comm_testing::RunRanks;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Ranks = std::vector<std::unique_ptr<Communicator>>;
using Range = std::pair<int64_t, int64_t>;

constexpr size_t kBucketBytes = 1024;
constexpr int64_t kBucket = 256;

// Values whose sum depends on the order of addition.
float Value(int rank, int64_t i) {
  const float magnitude = std::ldexp(1.0F, static_cast<int>((i * 7 + rank * 11) % 40) - 20);
  return magnitude * (1.0F + 0.37F * static_cast<float>(rank)) * (i % 3 == 0 ? -1.0F : 1.0F);
}

// Cuts [0, size) at random places, some of them twice, in random order.
std::vector<Range> ShuffledRanges(int64_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int64_t> cuts = {0, size};
  for (int i = 0; i < 17; ++i) cuts.push_back(static_cast<int64_t>(random() % (size + 1)));
  cuts.push_back(cuts.back());
  std::sort(cuts.begin(), cuts.end());
  std::vector<Range> ranges;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) ranges.emplace_back(cuts[i], cuts[i + 1]);
  std::shuffle(ranges.begin(), ranges.end(), random);
  return ranges;
}

// A rank's backend, gradients and reducer.
class Rank {
 public:
  Rank(Communicator* comm, int64_t size, size_t bucket_bytes = kBucketBytes) : comm_(comm) {
    backend_ = *kernels::CreateBackend("cpu");
    gradients_ = *backend_->Allocate<float>(size);
    values_ = *backend_->MapHost(gradients_.span());
    Fill();
    GradientReducerOptions options;
    options.bucket_bytes = bucket_bytes;
    reducer_ = *GradientReducer::Create(comm, backend_.get(), gradients_.span(), options);
  }

  void Fill() {
    for (int64_t i = 0; i < gradients_.size(); ++i) values_[i] = Value(comm_->rank(), i);
  }
  GradientReducer& reducer() { return *reducer_; }
  std::vector<float> values() const { return {values_, values_ + gradients_.size()}; }
  absl::Status Step(const std::vector<Range>& ranges) {
    absl::Status status = reducer_->Begin();
    for (const auto& [begin, end] : ranges) {
      if (status.ok()) status = reducer_->MarkReady(begin, end);
    }
    const absl::Status finished = reducer_->Finish();
    return status.ok() ? finished : status;
  }
  void Destroy() { reducer_.reset(); }

 private:
  Communicator* const comm_;
  std::unique_ptr<kernels::Backend> backend_;
  kernels::DeviceArray<float> gradients_;
  float* values_ = nullptr;
  std::unique_ptr<GradientReducer> reducer_;
};

Ranks Local(int size, LocalGroupOptions options = {}) {
  return *CreateLocalGroup(size, std::move(options));
}

// Notes what each rank calls.
class Journal {
 public:
  explicit Journal(int size) : calls_(size) {}

  LocalFault Hook() {
    return [this](int rank, uint64_t, std::string_view operation) {
      absl::MutexLock lock(&mutex_);
      calls_[rank].emplace_back(operation);
      return absl::OkStatus();
    };
  }
  void AwaitCall(int rank) {
    absl::MutexLock lock(&mutex_);
    const auto called = [&] { return !calls_[rank].empty(); };
    mutex_.Await(absl::Condition(&called));
  }
  std::vector<std::string> calls(int rank) {
    absl::MutexLock lock(&mutex_);
    return calls_[rank];
  }

 private:
  absl::Mutex mutex_;
  std::vector<std::vector<std::string>> calls_ ABSL_GUARDED_BY(mutex_);
};

TEST(CutGradientsTest, CutsAtMultiplesFromTheEndToTheBegin) {
  using Bucket = GradientBucket;
  EXPECT_THAT(CutGradients(600, 1024),
              ElementsAre(Bucket{512, 600}, Bucket{256, 512}, Bucket{0, 256}));
  EXPECT_THAT(CutGradients(512, 1024), ElementsAre(Bucket{256, 512}, Bucket{0, 256}));
  EXPECT_THAT(CutGradients(1, 1024), ElementsAre(Bucket{0, 1}));
  EXPECT_THAT(CutGradients(0, 1024), IsEmpty());
  // 1279 bytes are rounded down to 1024.
  EXPECT_THAT(CutGradients(600, 1279), CutGradients(600, 1024));
}

class AnyCommunicatorTest : public ::testing::TestWithParam<std::tuple<std::string, int>> {
 protected:
  Ranks Connect() const {
    const int size = std::get<1>(GetParam());
    return std::get<0>(GetParam()) == "Local" ? Local(size) : *comm_testing::ConnectGloo(size, {});
  }
};

INSTANTIATE_TEST_SUITE_P(All, AnyCommunicatorTest,
                         ::testing::Combine(::testing::Values("Local", "Gloo"),
                                            ::testing::Values(1, 2, 3)),
                         [](const auto& test) {
                           return std::get<0>(test.param) + std::to_string(std::get<1>(test.param));
                         });

TEST_P(AnyCommunicatorTest, SumsHaveTheBitsOfOneAllReduceInWhateverOrderRangesAreReady) {
  Ranks ranks = Connect();
  // Less than a bucket, whole buckets, and a rest.
  for (const int64_t size : {int64_t{1}, int64_t{100}, 4 * kBucket, 20 * kBucket + 77}) {
    const std::vector<absl::Status> statuses =
        RunRanks(static_cast<int>(ranks.size()), [&](int r) -> absl::Status {
          Rank rank(ranks[r].get(), size);
          std::vector<float> expected = rank.values();
          absl::Status status = ranks[r]->AllReduceSum(std::span<float>(expected));
          for (uint32_t step = 0; status.ok() && step < 5; ++step) {
            rank.Fill();
            // Each rank in an order of its own.
            status = rank.Step(ShuffledRanges(size, 100 * step + r));
            if (std::memcmp(rank.values().data(), expected.data(), size * sizeof(float)) != 0) {
              return absl::InternalError("other bits");
            }
          }
          return status;
        });
    EXPECT_THAT(statuses, Each(absl::OkStatus())) << size << " elements";
  }
}

TEST_P(AnyCommunicatorTest, RankThatMarksNothingTakesPartInEveryBucket) {
  Ranks ranks = Connect();
  const std::vector<absl::Status> statuses =
      RunRanks(static_cast<int>(ranks.size()), [&](int r) -> absl::Status {
        Rank rank(ranks[r].get(), 1000);
        std::vector<float> expected = rank.values();
        absl::Status status = ranks[r]->AllReduceSum(std::span<float>(expected));
        if (status.ok())
          status = rank.Step(r == 0 ? std::vector<Range>{} : ShuffledRanges(1000, r));
        EXPECT_EQ(rank.values(), expected);
        return status;
      });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
}

TEST(GradientReducerTest, CompleteBucketIsReducedBeforeTheRestIsReady) {
  Journal journal(2);
  LocalGroupOptions options;
  options.before_collective = journal.Hook();
  Ranks ranks = Local(2, options);
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    Rank rank(ranks[r].get(), 600);
    absl::Status status = rank.reducer().Begin();
    if (status.ok()) status = rank.reducer().MarkReady(400, 600);
    // Nothing else is marked until the last bucket is under way.
    journal.AwaitCall(r);
    if (status.ok()) status = rank.reducer().MarkReady(0, 400);
    return status.ok() ? rank.reducer().Finish() : status;
  });
  EXPECT_THAT(statuses, Each(absl::OkStatus()));
  EXPECT_THAT(journal.calls(0), ElementsAre("AllReduceSum of 88 elements, call 1",
                                            "AllReduceSum of 256 elements, call 2",
                                            "AllReduceSum of 256 elements, call 3"));
  EXPECT_EQ(journal.calls(1), journal.calls(0));
}

TEST(GradientReducerTest, BucketsKeepTheirOrderWhereTheLastIsReadyLast) {
  Journal journal(1);
  LocalGroupOptions options;
  options.before_collective = journal.Hook();
  Ranks ranks = Local(1, options);
  Rank rank(ranks[0].get(), 600);
  EXPECT_EQ(rank.reducer().bucket_count(), 3);
  ASSERT_EQ(rank.reducer().Begin(), absl::OkStatus());
  ASSERT_EQ(rank.reducer().MarkReady(0, 512), absl::OkStatus());
  ASSERT_EQ(rank.reducer().MarkReady(512, 600), absl::OkStatus());
  ASSERT_EQ(rank.reducer().Finish(), absl::OkStatus());
  ASSERT_EQ(journal.calls(0).size(), 3U);
  EXPECT_THAT(journal.calls(0)[0], HasSubstr("of 88 elements"));
}

TEST(GradientReducerTest, NoGradientsAreReducedByNoCollective) {
  Journal journal(1);
  LocalGroupOptions options;
  options.before_collective = journal.Hook();
  Ranks ranks = Local(1, options);
  Rank rank(ranks[0].get(), 0);
  EXPECT_EQ(rank.Step({{0, 0}}), absl::OkStatus());
  EXPECT_THAT(journal.calls(0), IsEmpty());
}

TEST(GradientReducerTest, RefusesMisuseWithoutHarmToTheStep) {
  Ranks ranks = Local(1);
  Rank rank(ranks[0].get(), 600);
  GradientReducer& reducer = rank.reducer();
  EXPECT_EQ(reducer.MarkReady(0, 1).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(reducer.Finish().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_EQ(reducer.Begin(), absl::OkStatus());
  EXPECT_EQ(reducer.Begin().code(), absl::StatusCode::kFailedPrecondition);
  for (const auto& [begin, end] : std::vector<Range>{{-1, 5}, {5, 4}, {0, 601}, {601, 601}}) {
    EXPECT_EQ(reducer.MarkReady(begin, end).code(), absl::StatusCode::kInvalidArgument) << begin;
  }
  ASSERT_EQ(reducer.MarkReady(100, 200), absl::OkStatus());
  ASSERT_EQ(reducer.MarkReady(300, 400), absl::OkStatus());
  for (const auto& [begin, end] :
       std::vector<Range>{{100, 200}, {199, 201}, {50, 101}, {0, 600}, {150, 160}, {250, 301}}) {
    const absl::Status status = reducer.MarkReady(begin, end);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << begin;
    EXPECT_THAT(std::string(status.message()), HasSubstr("marked before"));
  }
  EXPECT_EQ(reducer.MarkReady(200, 300), absl::OkStatus());
  EXPECT_EQ(reducer.MarkReady(0, 100), absl::OkStatus());
  EXPECT_EQ(reducer.MarkReady(400, 600), absl::OkStatus());
  EXPECT_EQ(reducer.Finish(), absl::OkStatus());
}

TEST(GradientReducerTest, RefusesBucketsWithoutRoom) {
  Ranks ranks = Local(1);
  auto backend = *kernels::CreateBackend("cpu");
  GradientReducerOptions options;
  options.bucket_bytes = 255;
  EXPECT_EQ(GradientReducer::Create(ranks[0].get(), backend.get(), {}, options).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(GradientReducerTest, BucketThatFailsStopsTheOthersOnEveryRank) {
  Journal journal(2);
  LocalGroupOptions options;
  options.before_collective = [note = journal.Hook(),
                               fail = FailAt(1, 2, absl::DataLossError("unplugged"))](
                                  int rank, uint64_t call, std::string_view operation) {
    (void)note(rank, call, operation);
    return fail(rank, call, operation);
  };
  Ranks ranks = Local(2, options);
  std::vector<absl::Status> again(2);
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) {
    Rank rank(ranks[r].get(), 10 * kBucket);
    const absl::Status status = rank.Step({{5 * kBucket, 10 * kBucket}, {0, 5 * kBucket}});
    again[r] = rank.reducer().Begin();
    return status;
  });
  EXPECT_EQ(statuses[1], absl::DataLossError("unplugged"));
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1"));
  EXPECT_EQ(again, statuses);
  EXPECT_EQ(journal.calls(0).size(), 2U);
  EXPECT_EQ(journal.calls(1).size(), 2U);
}

TEST(GradientReducerTest, MarkingTellsOfABucketThatHasFailed) {
  LocalGroupOptions options;
  options.before_collective = FailAt(0, 1, absl::DataLossError("unplugged"));
  Ranks ranks = Local(1, options);
  Rank rank(ranks[0].get(), 600);
  ASSERT_EQ(rank.reducer().Begin(), absl::OkStatus());
  absl::Status status = rank.reducer().MarkReady(512, 600);
  // The helper thread finds out at some time.
  while (status.ok()) status = rank.reducer().MarkReady(0, 0);
  EXPECT_EQ(status, absl::DataLossError("unplugged"));
  EXPECT_EQ(rank.reducer().MarkReady(0, 512), status);
  EXPECT_EQ(rank.reducer().Finish(), status);
}

TEST(GradientReducerTest, LeavingInTheMiddleOfAStepReturnsAndFreesThePeers) {
  Ranks ranks = Local(3);
  const std::vector<absl::Status> statuses = RunRanks(3, [&](int r) -> absl::Status {
    Rank rank(ranks[r].get(), 1000);
    if (r != 1) return rank.Step({{0, 1000}});
    absl::Status status = rank.reducer().Begin();
    if (status.ok()) status = rank.reducer().MarkReady(700, 1000);
    rank.Destroy();
    return status;
  });
  for (const int r : {0, 2}) {
    EXPECT_EQ(statuses[r].code(), absl::StatusCode::kUnavailable) << statuses[r];
    EXPECT_THAT(std::string(statuses[r].message()), HasSubstr("rank 1 aborted"));
  }
  EXPECT_EQ(ranks[1]->Wait().code(), absl::StatusCode::kCancelled);
}

TEST(GradientReducerTest, AbortFromAnotherThreadEndsAStepThatWaitsForPeers) {
  Journal journal(2);
  LocalGroupOptions options;
  options.before_collective = journal.Hook();
  Ranks ranks = Local(2, options);
  Rank rank(ranks[0].get(), 1000);
  std::thread aborter([&] {
    journal.AwaitCall(0);
    ranks[0]->Abort();
  });
  EXPECT_EQ(rank.Step({{0, 1000}}).code(), absl::StatusCode::kCancelled);
  aborter.join();
  EXPECT_EQ(journal.calls(0).size(), 1U);
}

TEST(GradientReducerTest, PeerLostOverSocketsEndsTheStep) {
  Ranks ranks = *comm_testing::ConnectGloo(2, {});
  const std::vector<absl::Status> statuses = RunRanks(2, [&](int r) -> absl::Status {
    if (r == 1) {
      // Takes part in one bucket of many.
      std::vector<float> values(kBucket);
      absl::Status status = ranks[1]->AllReduceSum(std::span<float>(values));
      ranks[1].reset();
      return status;
    }
    Rank rank(ranks[r].get(), 10 * kBucket);
    return rank.Step({{0, 10 * kBucket}});
  });
  EXPECT_EQ(statuses[1], absl::OkStatus());
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kUnavailable) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 1"));
}

}  // namespace
}  // namespace sparsebalance
