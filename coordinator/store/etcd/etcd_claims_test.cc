#include "coordinator/store/etcd/etcd_claims.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "coordinator/store/etcd/etcd_ops.h"
#include "coordinator/store/etcd/replica_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing_support::EtcdCluster;

// One member for all tests that leave it as it is.
class EtcdClaimsTest : public testing::Test {
 protected:
  static void TearDownTestSuite() { cluster_.reset(); }
  void SetUp() override {
    SPARSEBALANCE_SKIP_WITHOUT_ETCD();
    if (cluster_ == nullptr) cluster_ = std::make_unique<EtcdCluster>(EtcdCluster::Options{});
    prefix_ = absl::StrCat("/claims/", ++count_, "/");
  }

  static std::unique_ptr<EtcdCluster> cluster_;
  static int count_;
  std::string prefix_;
};
std::unique_ptr<EtcdCluster> EtcdClaimsTest::cluster_;
int EtcdClaimsTest::count_ = 0;

TEST_F(EtcdClaimsTest, OfTwoReplicasOneHasTheJobAndTheOtherSaysWho) {
  Replica a(*cluster_, prefix_, "a:1");
  Replica b(*cluster_, prefix_, "b:1");
  const uint64_t epoch = a.MustClaim(kJob);
  EXPECT_GT(epoch, 0u);
  EXPECT_EQ(*a->Held(kJob), epoch);
  EXPECT_EQ(a.MustClaim(kJob), epoch);
  EXPECT_EQ(a.MustClaim(kJob, epoch), epoch);

  const absl::Status refused = b->Claim(kJob, 0).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("team/job is with the coordinator at a:1"));
  const auto detail = NotOwnerDetail(refused);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->job().namespace_(), "team");
  EXPECT_EQ(detail->owner_address(), "a:1");
  EXPECT_EQ(detail->owner_epoch(), epoch);

  // Without asking, it knows too, as soon as the watch has told it.
  EXPECT_TRUE(Eventually([&] {
    const auto known = NotOwnerDetail(b->Held(kJob).status());
    return known && known->owner_address() == "a:1" && known->owner_epoch() == epoch;
  }));
  const std::vector<JobClaims::Owned> owners = {{kJob, "a:1", epoch}};
  EXPECT_EQ(a->Owners(), owners);
  EXPECT_TRUE(Eventually([&] { return b->Owners() == owners; }));
  EXPECT_THAT(a.lost(), IsEmpty());
}

TEST_F(EtcdClaimsTest, AJobOfNobodyIsSaidToBeFreeForAnyReplica) {
  Replica a(*cluster_, prefix_, "a:1");
  const absl::Status free = a->Held(kJob).status();
  EXPECT_TRUE(absl::IsUnavailable(free)) << free;
  const auto detail = NotOwnerDetail(free);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->owner_address(), "");
  EXPECT_EQ(detail->owner_epoch(), 0u);
}

TEST_F(EtcdClaimsTest, OfManyThatClaimAtOnceOneGetsTheJob) {
  std::vector<std::unique_ptr<Replica>> replicas;
  for (int i = 0; i < 4; ++i) {
    replicas.push_back(std::make_unique<Replica>(*cluster_, prefix_, absl::StrCat("r:", i)));
  }
  for (int round = 0; round < 5; ++round) {
    const JobId id{"race", absl::StrCat(round)};
    std::atomic<int> won = 0;
    std::vector<std::thread> threads;
    for (const auto& replica : replicas) {
      for (int i = 0; i < 2; ++i) {
        threads.emplace_back([&won, &id, replica = replica.get(), first = i == 0] {
          const auto claimed = (*replica)->Claim(id, 0);
          if (claimed.ok() && first) ++won;
          EXPECT_TRUE(claimed.ok() || NotOwnerDetail(claimed.status())) << claimed.status();
        });
      }
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(won, 1);
    int holders = 0;
    for (const auto& replica : replicas) holders += replica->holds(id) ? 1 : 0;
    EXPECT_EQ(holders, 1);
  }
}

TEST_F(EtcdClaimsTest, AReleaseHandsTheJobOverAtOnceUnderAHigherEpoch) {
  Replica a(*cluster_, prefix_, "a:1");
  Replica b(*cluster_, prefix_, "b:1");
  const uint64_t first = a.MustClaim(kJob);
  ASSERT_TRUE(a->Release(kJob).ok());
  EXPECT_FALSE(a.holds(kJob));
  const uint64_t second = b.MustClaim(kJob);
  EXPECT_GT(second, first);
  EXPECT_TRUE(a->Release(kJob).ok());  // again, and though it is b's by now
  EXPECT_EQ(*b->Held(kJob), second);
  EXPECT_TRUE(Eventually([&] {
    const auto known = NotOwnerDetail(a->Held(kJob).status());
    return known && known->owner_address() == "b:1";
  }));
  // What was released is not lost, then or later.
  EXPECT_TRUE(b->Release(kJob).ok());
  EXPECT_GT(a.MustClaim(kJob), second);
  EXPECT_THAT(a.lost(), IsEmpty());
  EXPECT_THAT(b.lost(), IsEmpty());
}

TEST_F(EtcdClaimsTest, ADrainGivesEverythingUpAtOnceAndTakesNothingMore) {
  Replica a(*cluster_, prefix_, "a:1");
  Replica b(*cluster_, prefix_, "b:1");
  const std::vector<JobId> ids = {kJob, {"x", "1"}, {"x", "2"}};
  for (const JobId& id : ids) a.MustClaim(id);
  ASSERT_TRUE(a->ReleaseAll().ok());
  for (const JobId& id : ids) {
    EXPECT_FALSE(a.holds(id));
    b.MustClaim(id);
  }
  const absl::Status closed = a->Claim({"x", "3"}, 0).status();
  EXPECT_TRUE(absl::IsUnavailable(closed)) << closed;
  EXPECT_FALSE(NotOwnerDetail(closed).has_value());
  EXPECT_TRUE(a->ReleaseAll().ok());
  EXPECT_FALSE(a->CheckHealth().lease_alive);
  EXPECT_THAT(a.lost(), IsEmpty());
}

TEST_F(EtcdClaimsTest, AnotherTakesOverOnceTheLeaseOfADeadReplicaHasRunOut) {
  Replica a(*cluster_, prefix_, "a:1", kLong, {.ttl = kShortLease});
  Replica b(*cluster_, prefix_, "b:1");
  const uint64_t first = a.MustClaim(kJob);
  a.Die();
  EXPECT_TRUE(NotOwnerDetail(b->Claim(kJob, 0).status()).has_value());
  EXPECT_GT(b.ClaimEventually(kJob), first);
}

TEST_F(EtcdClaimsTest, AProcessThatComesBackAtItsAddressSendsNobodyToItself) {
  uint64_t first = 0;
  {
    Replica before(*cluster_, prefix_, "a:1", kLong, {.ttl = kShortLease});
    first = before.MustClaim(kJob);
    before.Die();
  }
  Replica after(*cluster_, prefix_, "a:1");
  const absl::Status refused = after->Claim(kJob, 0).status();
  ASSERT_TRUE(NotOwnerDetail(refused).has_value()) << refused;
  EXPECT_EQ(NotOwnerDetail(refused)->owner_address(), "");
  EXPECT_EQ(NotOwnerDetail(after->Held(kJob).status())->owner_address(), "");
  EXPECT_GT(after.ClaimEventually(kJob), first);
}

TEST_F(EtcdClaimsTest, ALeaseLivesForAsLongAsItIsKept) {
  Replica a(*cluster_, prefix_, "a:1", kLong, {.ttl = kShortLease});
  const uint64_t epoch = a.MustClaim(kJob);
  const int64_t lease = a.lease_of(kJob);
  const absl::Time begin = absl::Now();
  EXPECT_TRUE(Eventually([&] {
    EXPECT_EQ(a->Held(kJob).value_or(0), epoch);
    const JobClaims::Health health = a->CheckHealth();
    EXPECT_TRUE(health.lease_alive);
    EXPECT_TRUE(health.store_answers) << health.problem;
    EXPECT_LE(health.lease_left, kShortLease);
    return absl::Now() - begin > 2 * kShortLease;
  }));
  EXPECT_EQ(a.lease_of(kJob), lease);
  EXPECT_THAT(a.lost(), IsEmpty());
}

TEST_F(EtcdClaimsTest, ALeaseThatEtcdHasEndedLosesAllJobsOnceAndANewOneIsMade) {
  Replica a(*cluster_, prefix_, "a:1");
  Replica b(*cluster_, prefix_, "b:1");
  const JobId other{"x", "1"};
  const uint64_t first = a.MustClaim(kJob);
  const uint64_t second = a.MustClaim(other);
  const int64_t lease = a.lease_of(kJob);
  ASSERT_TRUE(b.client().LeaseRevoke(lease).ok());
  // The watch tells of the keys before the lease's next renewal does.
  EXPECT_TRUE(Eventually([&] { return !a.holds(kJob) && !a.holds(other); }));
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 2; }));
  EXPECT_THAT(a.lost(), testing::UnorderedElementsAre(Pair(kJob, first), Pair(other, second)));
  const uint64_t taken = b.MustClaim(kJob);
  EXPECT_GT(taken, first);
  // Jobs come back only by Claim, under the new lease.
  EXPECT_FALSE(a.holds(other));
  EXPECT_GT(a.MustClaim(other), second);
  EXPECT_NE(a.lease_of(other), lease);
  EXPECT_FALSE(a.holds(kJob));
}

TEST_F(EtcdClaimsTest, AClaimThatSomebodyDeletesIsLostAtOnce) {
  Replica a(*cluster_, prefix_, "a:1");
  const JobId other{"x", "1"};
  const uint64_t first = a.MustClaim(kJob);
  const uint64_t kept = a.MustClaim(other);
  etcdserverpb::TxnRequest txn;
  *txn.add_success() = DeleteOp(EtcdRange::Key(EtcdKeys(prefix_).Claim(kJob)));
  ASSERT_TRUE(a.client().Txn(txn).ok());
  EXPECT_TRUE(Eventually([&] { return !a.holds(kJob); }));
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 1; }));
  EXPECT_THAT(a.lost(), ElementsAre(Pair(kJob, first)));
  EXPECT_EQ(*a->Held(other), kept);
  EXPECT_GT(a.MustClaim(kJob), first);
}

TEST_F(EtcdClaimsTest, AnEpochThatAClientHasSeenSurpassedIsReplacedByAHigherOne) {
  Replica a(*cluster_, prefix_, "a:1");
  Replica b(*cluster_, prefix_, "b:1");
  const JobId other{"x", "1"};
  const uint64_t first = a.MustClaim(kJob);
  const uint64_t known = first + 1'000'000;
  const uint64_t second = a.MustClaim(kJob, known);
  EXPECT_GT(second, known);
  EXPECT_EQ(*a->Held(kJob), second);
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 1; }));
  EXPECT_THAT(a.lost(), ElementsAre(Pair(kJob, first)));
  // The base is for all jobs and replicas from now on, and what was claimed before keeps its epoch.
  EXPECT_GT(b.MustClaim(other), second);
  EXPECT_EQ(a.MustClaim(kJob, known), second);
  EXPECT_EQ(NotOwnerDetail(b->Claim(kJob, 0).status())->owner_epoch(), second);
}

TEST_F(EtcdClaimsTest, AnEpochThatNoCoordinatorCanHaveHadIsRefused) {
  Replica a(*cluster_, prefix_, "a:1");
  const absl::Status refused = a->Claim(kJob, ~uint64_t{0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_TRUE(
      refused.GetPayload("type.googleapis.com/sparsebalance.v1.FieldViolation").has_value());
}

TEST_F(EtcdClaimsTest, AProcessWhoseClockSaysThatTheTimeIsOverHoldsNothing) {
  // The clock jumps, as it does for a process that was stopped, or a machine that slept.
  std::atomic<int64_t> jump = 0;
  EtcdLeaseOptions lease{.ttl = kShortLease,
                         .now = [&jump] { return BootTime() + absl::Seconds(jump.load()); }};
  Replica a(*cluster_, prefix_, "a:1", absl::Seconds(10), lease);
  const uint64_t first = a.MustClaim(kJob);
  jump = 100;
  EXPECT_FALSE(a.holds(kJob));
  EXPECT_TRUE(absl::IsAborted(a->FenceOf(kJob, 0).status()));
  // Though etcd still knows the lease: it is over for good.
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 1; }));
  EXPECT_THAT(a.lost(), ElementsAre(Pair(kJob, first)));
  EXPECT_FALSE(a.holds(kJob));
  EXPECT_GT(a.ClaimEventually(kJob), first);
}

}  // namespace
}  // namespace sparsebalance
