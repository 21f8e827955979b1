#include "coordinator/store/sole_claims.h"

#include <stdlib.h>

#include <filesystem>
#include <memory>
#include <string>

#include "coordinator/store/memory_store.h"
#include "coordinator/store/sqlite_store.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

const JobId kJob{"default", "job"};

TEST(SoleClaimsTest, EveryJobIsItsOwnUnderOneEpoch) {
  MemoryStore store;
  const auto claims = *SoleClaims::Open(&store, "here:1");
  EXPECT_EQ(*claims->Held(kJob), 1u);
  EXPECT_EQ(*claims->Claim(kJob, 0), 1u);
  EXPECT_EQ(*claims->Claim(kJob, 1), 1u);  // our own epoch, reported by our own client
  EXPECT_THAT(claims->Owners(), ElementsAre(JobClaims::Owned{kJob, "here:1", 1}));
  EXPECT_TRUE(claims->Release(kJob).ok());
  EXPECT_TRUE(claims->Release(kJob).ok());
  EXPECT_THAT(claims->Owners(), IsEmpty());
  EXPECT_EQ(*claims->Held(kJob), 1u);
  EXPECT_TRUE(claims->CheckHealth().lease_alive);
}

TEST(SoleClaimsTest, TheEpochRisesForAllJobsAboveWhatAClientHasSeen) {
  MemoryStore store;
  const auto claims = *SoleClaims::Open(&store, "here:1");
  int lost = 0;
  claims->OnLost([&](const JobId&, uint64_t) { ++lost; });
  EXPECT_EQ(*claims->Claim(kJob, 41), 42u);
  EXPECT_EQ(claims->current(), 42u);
  EXPECT_EQ(*claims->Held({"other", "job"}), 42u);
  EXPECT_EQ(lost, 0);
}

TEST(SoleClaimsTest, AnEpochThatNoCoordinatorCanHaveHadIsRefused) {
  MemoryStore store;
  const auto claims = *SoleClaims::Open(&store, "here:1");
  const absl::Status refused = claims->Claim(kJob, ~uint64_t{0}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_TRUE(
      refused.GetPayload("type.googleapis.com/sparsebalance.v1.FieldViolation").has_value());
  EXPECT_EQ(claims->current(), 1u);
}

TEST(SoleClaimsTest, TheEpochRisesWithEveryStart) {
  std::string pattern = (std::filesystem::temp_directory_path() / "sb-claims-XXXXXX").string();
  ASSERT_NE(mkdtemp(pattern.data()), nullptr);
  for (uint64_t start = 1; start <= 3; ++start) {
    const auto opened = SqliteStore::Open(pattern + "/store.db", absl::UnixEpoch());
    ASSERT_TRUE(opened.ok()) << opened.status();
    const auto claims = *SoleClaims::Open(opened->store.get(), "here:1");
    EXPECT_EQ(claims->current(), start);
  }
  std::filesystem::remove_all(pattern);
}

}  // namespace
}  // namespace sparsebalance
