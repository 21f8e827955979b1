// What claims do while processes and members of etcd die, stop and come back.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/etcd/etcd_cluster.h"
#include "coordinator/store/etcd/replica_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Pair;
using testing_support::ChildProcess;
using testing_support::EtcdCluster;

class OutageTest : public testing::Test {
 protected:
  void SetUp() override { SPARSEBALANCE_SKIP_WITHOUT_ETCD(); }
  const std::string prefix_ = "/outage/";
};

TEST_F(OutageTest, WhileEtcdStandsStillAJobStopsBeingHeldBeforeAnotherCanHaveIt) {
  EtcdCluster cluster({});
  Replica a(cluster, prefix_, "a:1", absl::Seconds(3), {.ttl = kShortLease});
  const uint64_t first = a.MustClaim(kJob);
  cluster.Pause(0);
  EXPECT_TRUE(Eventually([&] { return !a.holds(kJob); }));
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 1; }));
  EXPECT_THAT(a.lost(), ElementsAre(Pair(kJob, first)));
  const absl::Status away = a->Claim(kJob, 0).status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_FALSE(NotOwnerDetail(away).has_value());
  JobClaims::Health health = a->CheckHealth();
  EXPECT_FALSE(health.lease_alive);
  EXPECT_FALSE(health.store_answers);
  EXPECT_NE(health.problem, "");
  cluster.Resume(0);
  ASSERT_TRUE(cluster.WaitUntilServing());
  Replica b(cluster, prefix_, "b:1");
  const uint64_t second = b.ClaimEventually(kJob);
  EXPECT_GT(second, first);
  EXPECT_FALSE(a.holds(kJob));
  EXPECT_TRUE(Eventually([&] { return a->CheckHealth().lease_alive; }));
  EXPECT_TRUE(b->Release(kJob).ok());
  EXPECT_GT(a.ClaimEventually(kJob), second);
}

TEST_F(OutageTest, AShortOutageLosesNothing) {
  EtcdCluster cluster({});
  Replica a(cluster, prefix_, "a:1", absl::Seconds(3));
  const uint64_t epoch = a.MustClaim(kJob);
  cluster.Kill(0);
  EXPECT_TRUE(absl::IsUnavailable(a->Claim({"x", "1"}, 0).status()));
  EXPECT_EQ(*a->Held(kJob), epoch);
  EXPECT_EQ(a.MustClaim(kJob), epoch);
  cluster.Start(0);
  ASSERT_TRUE(cluster.WaitUntilServing());
  EXPECT_GT(a.ClaimEventually({"x", "1"}), epoch);
  EXPECT_EQ(*a->Held(kJob), epoch);
  EXPECT_THAT(a.lost(), IsEmpty());
}

TEST_F(OutageTest, AReleaseThatEtcdDidNotHearIsMadeUpFor) {
  EtcdCluster cluster({});
  Replica a(cluster, prefix_, "a:1", absl::Seconds(3));
  const uint64_t epoch = a.MustClaim(kJob);
  cluster.Kill(0);
  EXPECT_TRUE(absl::IsUnavailable(a->Release(kJob)));
  EXPECT_FALSE(a.holds(kJob));
  cluster.Start(0);
  ASSERT_TRUE(cluster.WaitUntilServing());
  Replica b(cluster, prefix_, "b:1");
  EXPECT_GT(b.ClaimEventually(kJob), epoch);  // long before the lease could run out
  EXPECT_THAT(a.lost(), IsEmpty());
}

TEST_F(OutageTest, EpochsStillRiseWhenEtcdHasLostItsMemory) {
  EtcdCluster cluster({});
  Replica a(cluster, prefix_, "a:1", absl::Seconds(3), {.ttl = 2 * kShortLease});
  Replica b(cluster, prefix_, "b:1", absl::Seconds(3), {.ttl = 2 * kShortLease});
  for (int i = 0; i < 20; ++i) {  // revisions that the new etcd will not reach soon
    a.MustClaim(kJob);
    ASSERT_TRUE(a->Release(kJob).ok());
  }
  const uint64_t known = a.MustClaim(kJob);
  cluster.Wipe();
  EXPECT_TRUE(Eventually([&] { return !a.holds(kJob); }));
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 1; }));
  const uint64_t again = b.ClaimEventually(kJob, known);
  EXPECT_GT(again, known);
  EXPECT_GT(a.ClaimEventually({"x", "1"}), known);  // whoever asks, of whatever job
  EXPECT_TRUE(Eventually([&] {
    const auto detail = NotOwnerDetail(a->Held(kJob).status());
    return detail && detail->owner_address() == "b:1" && detail->owner_epoch() == again;
  }));
}

TEST_F(OutageTest, OneOfThreeMembersMayDieOrStandStill) {
  EtcdCluster cluster({.members = 3});
  Replica a(cluster, prefix_, "a:1", absl::Seconds(6));
  Replica b(cluster, prefix_, "b:1", absl::Seconds(6));
  const uint64_t epoch = a.MustClaim(kJob);
  for (size_t member = 0; member < 3; ++member) {
    SCOPED_TRACE(member);
    if (member == 1) {
      cluster.Pause(member);
    } else {
      cluster.Kill(member);
    }
    const JobId id{"x", absl::StrCat(member)};
    EXPECT_GT(a.ClaimEventually(id), epoch);
    // The watches go over to the other members too.
    EXPECT_TRUE(Eventually([&] { return b->Owners().size() == member + 2; }));
    EXPECT_EQ(*a->Held(kJob), epoch);
    if (member == 1) {
      cluster.Resume(member);
    } else {
      cluster.Start(member);
    }
    ASSERT_TRUE(cluster.WaitUntilServing(member));
  }
  EXPECT_THAT(a.lost(), IsEmpty());
}

TEST_F(OutageTest, WithoutAMajorityEtcdIsUnavailableInTimeAndComesBack) {
  EtcdCluster cluster({.members = 3});
  Replica a(cluster, prefix_, "a:1", absl::Seconds(3), {.ttl = 2 * kShortLease});
  const uint64_t first = a.MustClaim(kJob);
  cluster.Kill(0);
  cluster.Kill(1);
  EXPECT_TRUE(Eventually([&] { return !a.holds(kJob); }));
  EXPECT_TRUE(Eventually([&] { return a.lost().size() == 1; }));
  const absl::Status away = a->Claim(kJob, 0).status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_FALSE(NotOwnerDetail(away).has_value());
  cluster.Start(0);
  EXPECT_GT(a.ClaimEventually(kJob), first);
  cluster.Start(1);
  EXPECT_TRUE(cluster.WaitUntilServing(1));
}

TEST_F(OutageTest, AKilledProcessLosesItsJobWithinItsLease) {
  EtcdCluster cluster({});
  ChildProcess holder({testing_support::Program("sb_claim_holder"),
                       absl::StrJoin(cluster.endpoints(), ","), prefix_, "holder:1", kJob.ns,
                       kJob.name, "6"});
  ASSERT_TRUE(holder.WaitForLine("held").has_value()) << holder.Output();
  Replica b(cluster, prefix_, "b:1");
  EXPECT_EQ(NotOwnerDetail(b->Claim(kJob, 0).status())->owner_address(), "holder:1");
  holder.Signal(SIGKILL);
  const uint64_t epoch = b.ClaimEventually(kJob);
  EXPECT_EQ(*b->Held(kJob), epoch);
}

TEST_F(OutageTest, AStoppedProcessThatWakesUpKnowsThatTheJobIsNotItsOwn) {
  EtcdCluster cluster({});
  ChildProcess holder({testing_support::Program("sb_claim_holder"),
                       absl::StrJoin(cluster.endpoints(), ","), prefix_, "holder:1", kJob.ns,
                       kJob.name, "6"});
  ASSERT_TRUE(holder.WaitForLine("held").has_value()) << holder.Output();
  Replica b(cluster, prefix_, "b:1");
  holder.Signal(SIGSTOP);
  // It may have asked shortly before and say so afterwards.
  const int64_t stopped = absl::ToInt64Nanoseconds(BootTime());
  b.ClaimEventually(kJob);
  holder.Signal(SIGCONT);
  ASSERT_TRUE(holder.WaitForLine("lost").has_value()) << holder.Output();
  for (size_t i = 0; i < holder.lines(); ++i) {
    const std::string line = holder.Line(i);
    if (line.rfind("held", 0) != 0) continue;
    int64_t asked = 0;
    ASSERT_TRUE(absl::SimpleAtoi(line.substr(line.rfind(' ') + 1), &asked)) << line;
    EXPECT_LE(asked, stopped) << line;
  }
}

TEST(EtcdClaimsStart, SaysWhereItLookedForEtcd) {
  EtcdClientOptions options;
  options.endpoints = {"127.0.0.1:1", "127.0.0.1:2"};
  options.call_timeout = absl::Milliseconds(300);
  const auto client = EtcdClient::Create(options);
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::Status away = EtcdClaims::Start(client->get(), {.address = "a:1"}).status();
  EXPECT_TRUE(absl::IsUnavailable(away)) << away;
  EXPECT_THAT(std::string(away.message()), HasSubstr("127.0.0.1:2"));
  EXPECT_TRUE(absl::IsInvalidArgument(EtcdClaims::Start(client->get(), {}).status()));
}

}  // namespace
}  // namespace sparsebalance
