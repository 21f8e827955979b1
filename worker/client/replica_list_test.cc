#include "worker/client/replica_list.h"

#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

const absl::Time kStart = absl::UnixEpoch() + absl::Hours(1);

TEST(ReplicaList, GoesRoundThroughTheKnownOnes) {
  ReplicaList replicas("a:1, b:2,c:3");
  EXPECT_EQ(replicas.ToString(), "a:1,b:2,c:3");
  EXPECT_EQ(replicas.current(), "a:1");
  replicas.Unreachable("a:1", kStart);
  EXPECT_EQ(replicas.current(), "b:2");
  // Two calls that failed together move on once.
  replicas.Unreachable("a:1", kStart);
  EXPECT_EQ(replicas.current(), "b:2");
  replicas.Unreachable("b:2", kStart);
  replicas.Unreachable("c:3", kStart);
  EXPECT_EQ(replicas.current(), "a:1");
}

TEST(ReplicaList, FollowsARedirectAlsoToAnAddressThatItDidNotKnow) {
  ReplicaList replicas("a:1,b:2");
  replicas.Redirected("z:9", kStart);
  EXPECT_EQ(replicas.current(), "z:9");
  replicas.Unreachable("z:9", kStart);
  EXPECT_EQ(replicas.current(), "a:1");
}

TEST(ReplicaList, DoesNotGoBackAtOnceToOneThatWasUnreachable) {
  ReplicaList replicas("a:1,b:2");
  replicas.Unreachable("a:1", kStart);
  replicas.Redirected("a:1", kStart + absl::Seconds(1));
  EXPECT_EQ(replicas.current(), "b:2");
  replicas.Redirected("a:1", kStart + absl::Seconds(3));
  EXPECT_EQ(replicas.current(), "a:1");
  replicas.Unreachable("a:1", kStart + absl::Seconds(4));
  replicas.Answered("a:1");
  replicas.Redirected("a:1", kStart + absl::Seconds(5));
  EXPECT_EQ(replicas.current(), "a:1");
}

TEST(ReplicaList, OfOneStaysWithIt) {
  ReplicaList replicas("a:1");
  replicas.Unreachable("a:1", kStart);
  EXPECT_EQ(replicas.current(), "a:1");
}

}  // namespace
}  // namespace sparsebalance
