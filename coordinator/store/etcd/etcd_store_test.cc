#include "coordinator/store/etcd/etcd_store.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd/etcd_claims.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "coordinator/store/etcd/etcd_ops.h"
#include "coordinator/store/store_writer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using testing_support::EtcdCluster;

const JobId kJob{"team", "job"};
const JobId kOther{"team", "other"};

StoreConsumed Consumed(uint64_t step, const JobId& id = kJob) {
  StoreConsumed write{id, {}};
  write.batch.set_step(step);
  return write;
}

// A claim as a process believes in that does not know better.
class FixedFence : public ClaimFences {
 public:
  explicit FixedFence(ClaimFence fence) : fence_(fence) {}
  absl::StatusOr<ClaimFence> FenceOf(const JobId&, uint64_t) override { return fence_; }

 private:
  const ClaimFence fence_;
};

class EtcdStoreTest : public testing::Test {
 protected:
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    SPARSEBALANCE_SKIP_WITHOUT_ETCD();
    if (cluster_ == nullptr) cluster_ = std::make_unique<EtcdCluster>(EtcdCluster::Options{});
    prefix_ = absl::StrCat("/store/", ++count_, "/");
    client_ = cluster_->Client();
    claims_ = Claims("a:1");
    store_ = Open(claims_.get());
  }

  std::unique_ptr<EtcdClaims> Claims(const std::string& address) {
    auto claims = EtcdClaims::Start(
        client_.get(), {.prefix = prefix_, .address = address, .lease = {.ttl = absl::Minutes(2)}});
    EXPECT_TRUE(claims.ok()) << claims.status();
    return *std::move(claims);
  }
  std::unique_ptr<EtcdStore> Open(ClaimFences* fences) {
    auto store = EtcdStore::Open(client_.get(), fences, {.prefix = prefix_});
    EXPECT_TRUE(store.ok()) << store.status();
    return *std::move(store);
  }
  uint64_t MustClaim(const JobId& id) {
    const auto epoch = claims_->Claim(id, 0);
    EXPECT_TRUE(epoch.ok()) << epoch.status();
    return epoch.value_or(0);
  }
  // Keys under the prefix whose rest starts with `start`.
  std::vector<std::string> Keys(const std::string& start) {
    std::vector<std::string> keys;
    const auto read = client_->ReadRange(EtcdRange::Prefix(prefix_ + start));
    EXPECT_TRUE(read.ok()) << read.status();
    for (const auto& kv : read->kvs) keys.push_back(kv.key().substr(prefix_.size()));
    return keys;
  }

  static std::unique_ptr<EtcdCluster> cluster_;
  static int count_;
  std::string prefix_;
  std::unique_ptr<EtcdClient> client_;
  std::unique_ptr<EtcdClaims> claims_;
  std::unique_ptr<EtcdStore> store_;
};
std::unique_ptr<EtcdCluster> EtcdStoreTest::cluster_;
int EtcdStoreTest::count_ = 0;

TEST_F(EtcdStoreTest, RefusesWritesOfAJobThatIsNotClaimed) {
  MustClaim(kOther);
  const absl::Status refused = store_->Apply({StoreJob{{kJob, {}, 1, false}}});
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("team/job"));
  EXPECT_THAT(*store_->LoadJobs(), IsEmpty());
}

TEST_F(EtcdStoreTest, RefusesWritesOfAnOwnerWhoseClaimIsOver) {
  MustClaim(kJob);
  ASSERT_TRUE(store_->Apply({StoreLatencyState{kJob, "old"}}).ok());
  FixedFence old(*claims_->FenceOf(kJob, 0));
  const auto late = Open(&old);
  ASSERT_TRUE(late->Apply({StoreLatencyState{kJob, "still ours"}}).ok());

  ASSERT_TRUE(claims_->Release(kJob).ok());
  for (const bool taken_again : {false, true}) {
    if (taken_again) MustClaim(kJob);
    const absl::Status refused =
        late->Apply({StoreLatencyState{kJob, "late"}, StoreJob{{kJob, {}, 1, false}},
                     StoreCoverage{kJob, {{0, std::string(1'000'000, 'x')}}}, RemoveJob{kJob}});
    EXPECT_TRUE(absl::IsAborted(refused)) << refused;
    EXPECT_THAT(std::string(refused.message()), HasSubstr("team/job"));
    EXPECT_EQ(*store_->LoadLatencyState(kJob), "still ours");
    EXPECT_THAT(*store_->LoadJobs(), IsEmpty());
    EXPECT_THAT(Keys("parts/"), IsEmpty());
  }
  EXPECT_TRUE(store_->Apply({StoreLatencyState{kJob, "new"}}).ok());
}

TEST_F(EtcdStoreTest, RefusesWritesUnderALeaseThatEtcdDoesNotKnow) {
  MustClaim(kJob);
  ClaimFence fence = *claims_->FenceOf(kJob, 0);
  fence.lease += 1;  // as after etcd was wiped and came to the same revision again
  FixedFence old(fence);
  const auto late = Open(&old);
  const absl::Status refused = late->Apply({StoreLatencyState{kJob, "late"}});
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_EQ(*store_->LoadLatencyState(kJob), "");
}

TEST_F(EtcdStoreTest, RefusesWritesOfAnEarlierEpochOfTheSameProcess) {
  const uint64_t first = MustClaim(kJob);
  ASSERT_TRUE(store_->Apply({StoreLatencyState{kJob, "first", first}}).ok());
  ASSERT_TRUE(claims_->Release(kJob).ok());
  const uint64_t second = MustClaim(kJob);
  const absl::Status refused = store_->Apply({StoreLatencyState{kJob, "late", first}});
  EXPECT_TRUE(absl::IsAborted(refused)) << refused;
  EXPECT_EQ(*store_->LoadLatencyState(kJob), "first");
  // Of writes of two epochs, those of the right one come through.
  StoreWriter writer(store_.get());
  ASSERT_TRUE(writer.Write(StoreConsumed{kJob, Consumed(1).batch, first}).ok());
  ASSERT_TRUE(writer.Write(StoreConsumed{kJob, Consumed(2).batch, second}).ok());
  EXPECT_TRUE(absl::IsAborted(writer.Flush()));
  ASSERT_THAT(*store_->LoadConsumed(kJob), SizeIs(1));
  EXPECT_EQ(store_->LoadConsumed(kJob)->front().step(), 2u);
}

TEST_F(EtcdStoreTest, AJobThatIsLostDoesNotTakeTheOthersAlong) {
  MustClaim(kOther);
  StoreWriter writer(store_.get());
  for (uint64_t step = 0; step < 300; ++step) {
    ASSERT_TRUE(writer.Write(Consumed(step, step % 2 == 0 ? kJob : kOther)).ok());
  }
  EXPECT_TRUE(absl::IsAborted(writer.Flush()));
  EXPECT_EQ(writer.failed_writes(), 150u);
  EXPECT_THAT(*store_->LoadConsumed(kJob), IsEmpty());
  EXPECT_THAT(*store_->LoadConsumed(kOther), SizeIs(150));
}

TEST_F(EtcdStoreTest, AnExpiredJobIsForgottenByClaimingIt) {
  MustClaim(kJob);
  ASSERT_TRUE(store_->Apply({StoreJob{{kJob, {}, 1, false}}, Consumed(1)}).ok());
  ASSERT_TRUE(claims_->Release(kJob).ok());

  const auto other_claims = Claims("b:1");
  const auto other = Open(other_claims.get());
  ASSERT_TRUE(other_claims->Claim(kJob, 0).ok());
  ASSERT_TRUE(other->Apply({RemoveJob{kJob}}).ok());
  ASSERT_TRUE(other_claims->Release(kJob).ok());
  EXPECT_THAT(*store_->LoadJobs(), IsEmpty());
  // Nothing is left, nor in the way of the same job's next life.
  EXPECT_THAT(Keys(""), IsEmpty());
  MustClaim(kJob);
  EXPECT_TRUE(store_->Apply({StoreJob{{kJob, {}, 1, false}}}).ok());
}

TEST_F(EtcdStoreTest, ATransactionThatIsCarriedOutLateChangesNothing) {
  MustClaim(kJob);
  ASSERT_TRUE(store_->Apply({Consumed(1)}).ok());
  // The next transaction, as it would be sent. Its answer is lost, the writer makes it again, and
  // goes on.
  const ClaimFence fence = *claims_->FenceOf(kJob, 0);
  const EtcdKeys keys(prefix_);
  const auto mark = client_->ReadRange(EtcdRange::Key(keys.Mark(kJob)));
  ASSERT_THAT(mark->kvs, SizeIs(1));
  EXPECT_EQ(mark->kvs[0].lease(), fence.lease);
  etcdserverpb::TxnRequest late;
  *late.add_compare() = CreatedAt(keys.Claim(kJob), fence.create_revision);
  *late.add_compare() = LastPutAt(keys.Mark(kJob), mark->kvs[0].mod_revision());
  *late.add_success() = DeleteOp(EtcdRange::Prefix(keys.Record("consumed/")));
  ASSERT_TRUE(store_->Apply({CutConsumed{kJob, 0}}).ok());
  ASSERT_TRUE(store_->Apply({Consumed(1), Consumed(2)}).ok());
  const auto response = client_->Txn(late);
  ASSERT_TRUE(response.ok()) << response.status();
  EXPECT_FALSE(response->succeeded());
  EXPECT_THAT(*store_->LoadConsumed(kJob), SizeIs(2));
}

TEST_F(EtcdStoreTest, ATransactionThatCameThroughUnnoticedDoesNotStopTheNext) {
  MustClaim(kJob);
  ASSERT_TRUE(store_->Apply({Consumed(1)}).ok());
  // Another writer of the same claim moves the mark, as a write does that was given up too early.
  FixedFence fence(*claims_->FenceOf(kJob, 0));
  ASSERT_TRUE(Open(&fence)->Apply({Consumed(2)}).ok());
  ASSERT_TRUE(store_->Apply({Consumed(3)}).ok());
  EXPECT_THAT(*store_->LoadConsumed(kJob), SizeIs(3));
}

TEST_F(EtcdStoreTest, ReadersSeeTheOldValueOrTheNewOneAndNothingInBetween) {
  MustClaim(kJob);
  constexpr size_t kBytes = 3'000'000;
  ASSERT_TRUE(store_->Apply({StoreLatencyState{kJob, std::string(kBytes, 'a')}}).ok());
  std::atomic<bool> done = false;
  std::thread reader([&] {
    int reads = 0;
    while (!done || reads < 3) {
      const auto value = store_->LoadLatencyState(kJob);
      ASSERT_TRUE(value.ok()) << value.status();
      const size_t size = value->size();
      ASSERT_TRUE(size == kBytes || size == 1) << size;
      EXPECT_EQ(std::count(value->begin(), value->end(), value->front()),
                static_cast<std::ptrdiff_t>(size));
      ++reads;
    }
  });
  for (int i = 0; i < 5; ++i) {
    for (const std::string& value :
         {std::string(kBytes, 'b'), std::string("c"), std::string(kBytes, 'd')}) {
      EXPECT_TRUE(store_->Apply({StoreLatencyState{kJob, value}}).ok());
    }
  }
  done = true;
  reader.join();
}

TEST_F(EtcdStoreTest, LeavesNoPartsOfValuesThatWereReplaced) {
  MustClaim(kJob);
  const std::string big(1'000'000, 'x');
  const auto all = [&](const std::string& bytes) {
    v1::LatencyProfile profile;
    profile.mutable_key()->set_device_class("cpu");
    profile.set_source(bytes);
    StoreConsumed consumed = Consumed(5);
    for (size_t i = 0; i < bytes.size(); ++i) consumed.batch.add_sequence_ids(i);
    return std::vector<StoreWrite>{StoreLatencyState{kJob, bytes},
                                   StoreCoverage{kJob, {{1, bytes}, {2, bytes}}},
                                   StoreProfile{profile}, consumed};
  };
  // A piece of an earlier writing that was never finished.
  etcdserverpb::TxnRequest orphan;
  *orphan.add_success() =
      PutOp(EtcdKeys(prefix_).Parts("latency/team/job", "unfinished") + "00000000", big);
  ASSERT_TRUE(client_->Txn(orphan).ok());
  ASSERT_TRUE(store_->Apply(all(big)).ok());
  const size_t parts = Keys("parts/").size();
  EXPECT_GE(parts, 5 * 3u);
  EXPECT_THAT(Keys("parts/latency/team/job/unfinished"), IsEmpty());
  ASSERT_TRUE(store_->Apply(all(big)).ok());
  EXPECT_EQ(Keys("parts/").size(), parts);
  ASSERT_TRUE(store_->Apply(all("small")).ok());
  EXPECT_THAT(Keys("parts/"), IsEmpty());
  for (const StoreWrite& removal :
       {StoreWrite{RemoveJob{kJob}}, StoreWrite{CutConsumed{kJob, 5}},
        StoreWrite{PruneConsumed{kJob, 1}}, StoreWrite{RemoveCoverage{kJob}},
        StoreWrite{StoreLatencyState{kJob, ""}}}) {
    ASSERT_TRUE(store_->Apply(all(big)).ok());
    ASSERT_TRUE(store_->Apply({removal}).ok());
    EXPECT_LT(Keys("parts/").size(), parts);
  }
}

TEST_F(EtcdStoreTest, AValueWithAPartMissingIsDataLoss) {
  MustClaim(kJob);
  ASSERT_TRUE(store_->Apply({StoreLatencyState{kJob, std::string(1'000'000, 'x')}}).ok());
  etcdserverpb::TxnRequest damage;
  *damage.add_success() = DeleteOp(EtcdRange::Key(prefix_ + Keys("parts/").back()));
  ASSERT_TRUE(client_->Txn(damage).ok());
  EXPECT_TRUE(absl::IsDataLoss(store_->LoadLatencyState(kJob).status()));
}

TEST_F(EtcdStoreTest, ReplicasMayWriteTheSameProfileAtTheSameTime) {
  const auto other = Open(claims_.get());
  std::vector<std::thread> threads;
  for (EtcdStore* store : {store_.get(), other.get()}) {
    threads.emplace_back([store, letter = store == other.get() ? 'o' : 's'] {
      v1::LatencyProfile profile;
      profile.mutable_key()->set_device_class("cpu");
      for (int i = 0; i < 5; ++i) {
        profile.set_source(std::string(700'000, letter));
        const absl::Status status = store->Apply({StoreProfile{profile}});
        // Whoever is too slow eight times over is told so.
        EXPECT_TRUE(status.ok() || absl::IsUnavailable(status)) << status;
        const auto profiles = store->LoadProfiles();
        EXPECT_TRUE(profiles.ok()) << profiles.status();
        const std::string& source = profiles->front().source();
        EXPECT_EQ(source, std::string(700'000, source.front()));
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_THAT(*store_->LoadProfiles(), SizeIs(1));
}

TEST_F(EtcdStoreTest, TheLeaderEpochIsAboveEveryClaimAndEveryLaterClaimAboveIt) {
  const uint64_t claim = MustClaim(kJob);
  const auto raised = store_->RaiseLeaderEpoch(claim + 5'000);
  ASSERT_TRUE(raised.ok()) << raised.status();
  EXPECT_GT(*raised, claim + 5'000);
  EXPECT_GT(MustClaim(kOther), *raised);
  EXPECT_EQ(MustClaim(kJob), claim);
}

TEST_F(EtcdStoreTest, KeepsToLimitsThatAreLowerThanUsual) {
  EtcdCluster small({.arguments = {"--max-txn-ops", "20", "--max-request-bytes", "40000"}});
  const auto client = small.Client();
  auto claims = EtcdClaims::Start(
      client.get(), {.prefix = prefix_, .address = "a:1", .lease = {.ttl = absl::Minutes(2)}});
  ASSERT_TRUE(claims.ok()) << claims.status();
  auto store = EtcdStore::Open(
      client.get(), claims->get(),
      {.prefix = prefix_,
       .limits = {.txn_operations = 20, .txn_bytes = 30'000, .part_bytes = 10'000}});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*claims)->Claim(kJob, 0).ok());
  std::vector<StoreWrite> writes;
  for (uint64_t step = 0; step < 100; ++step) writes.push_back(Consumed(step));
  writes.push_back(StoreLatencyState{kJob, std::string(500'000, 'x')});
  ASSERT_TRUE((*store)->Apply(writes).ok());
  EXPECT_THAT(*(*store)->LoadConsumed(kJob), SizeIs(100));
  EXPECT_EQ((*store)->LoadLatencyState(kJob)->size(), 500'000u);
  // Where the limits are not kept to, etcd refuses, in its own words.
  auto greedy = EtcdStore::Open(client.get(), claims->get(), {.prefix = prefix_});
  const absl::Status refused =
      (*greedy)->Apply({StoreLatencyState{kJob, std::string(500'000, 'x')}});
  EXPECT_FALSE(refused.ok());
  EXPECT_THAT(std::string(refused.message()), HasSubstr(small.endpoints()[0]));
}

TEST(EtcdStoreOutage, WritesFailInTimeAndComeThroughAfterwards) {
  SPARSEBALANCE_SKIP_WITHOUT_ETCD();
  EtcdCluster cluster({});
  const auto client = cluster.Client(absl::Seconds(2));
  auto claims =
      EtcdClaims::Start(client.get(), {.address = "a:1", .lease = {.ttl = absl::Seconds(120)}});
  ASSERT_TRUE(claims.ok()) << claims.status();
  auto store = EtcdStore::Open(client.get(), claims->get(), {});
  ASSERT_TRUE(store.ok()) << store.status();
  ASSERT_TRUE((*claims)->Claim(kJob, 0).ok());
  ASSERT_TRUE((*store)->Apply({Consumed(0)}).ok());
  {
    StoreWriter writer(store->get());
    cluster.Kill(0);
    const absl::Time begin = absl::Now();
    for (uint64_t step = 1; step <= 200; ++step) ASSERT_TRUE(writer.Write(Consumed(step)).ok());
    const absl::Status away = writer.Flush();
    EXPECT_TRUE(absl::IsUnavailable(away)) << away;
    EXPECT_THAT(std::string(away.message()), HasSubstr(cluster.endpoints()[0]));
    EXPECT_EQ(writer.failed_writes(), 200u);
    // Not one time-out for each.
    EXPECT_LT(absl::Now() - begin, absl::Seconds(60));
    EXPECT_TRUE(absl::IsUnavailable((*store)->LoadJobs().status()));
    cluster.Start(0);
    ASSERT_TRUE(cluster.WaitUntilServing());
    ASSERT_TRUE(writer.Write(Consumed(201)).ok());
    EXPECT_TRUE(writer.Flush().ok());
  }
  ASSERT_THAT(*(*store)->LoadConsumed(kJob), SizeIs(2));
}

}  // namespace
}  // namespace sparsebalance
