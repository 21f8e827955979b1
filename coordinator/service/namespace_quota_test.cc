#include "coordinator/service/namespace_quota.h"

#include "coordinator/planner/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;

TEST(Quotas, AreUnlimitedWhereNothingIsSaid) {
  const auto table = QuotaTable::Parse({});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_TRUE(
      CheckQuota("ml", table->For("ml"), {1'000'000, 1'000'000, 1'000'000, 1'000'000}, {1, 1, 1, 1})
          .ok());
}

TEST(Quotas, OfANamespaceStartFromThoseOfAllOthersWhereverTheseStand) {
  const auto table = QuotaTable::Parse(
      {"ml:max-jobs=50,max-bytes=2GiB", "*:max-jobs=3,max-ranks=64", "a:b:max-ranks=unlimited"});
  ASSERT_TRUE(table.ok()) << table.status();
  EXPECT_EQ(table->For("ml").max_jobs, 50u);
  EXPECT_EQ(table->For("ml").max_ranks, 64u);
  EXPECT_EQ(table->For("ml").max_bytes, uint64_t{2} << 30);
  EXPECT_EQ(table->For("other").max_jobs, 3u);
  EXPECT_EQ(table->For("other").max_bytes, NamespaceQuota::kUnlimited);
  EXPECT_EQ(table->For("a:b").max_ranks, NamespaceQuota::kUnlimited);
}

TEST(Quotas, AreRefusedWithTheEntryAndWhatIsWrongWithIt) {
  const auto problem = [](const std::vector<std::string>& entries) {
    return std::string(QuotaTable::Parse(entries).status().message());
  };
  EXPECT_THAT(problem({"ml"}), HasSubstr("quota 'ml': must be NAMESPACE:KEY=VALUE"));
  EXPECT_THAT(problem({":max-jobs=1"}), HasSubstr("must be NAMESPACE:KEY=VALUE"));
  EXPECT_THAT(problem({"ml:max-job=1"}), HasSubstr("'max-job' is not one of max-jobs"));
  EXPECT_THAT(problem({"ml:max-jobs=-1"}), HasSubstr("max-jobs: '-1' is not a whole number"));
  EXPECT_THAT(problem({"ml:max-jobs=0"}), HasSubstr("max-jobs: '0' is not a whole number"));
  EXPECT_THAT(problem({"ml:max-bytes=5 parsecs"}),
              HasSubstr("'5 parsecs' is not a number of bytes"));
  EXPECT_THAT(problem({"ml:max-jobs=1", "ml:max-jobs=2"}), HasSubstr("has an entry before"));
}

TEST(Quotas, NameTheLimitThatARequestWouldPass) {
  NamespaceQuota quota;
  quota.max_jobs = 10;
  quota.max_ranks = 100;
  const absl::Status status = CheckQuota("ml", quota, {9, 90, 0, 0}, {1, 16, 0, 0});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(status.message(),
            "namespace ml may have 100 ranks and has 90, so 16 more are refused; end or remove a "
            "job, or raise its max-ranks");
  const auto detail = planner::GetDetail<v1::QuotaExceeded>(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->quota(), "max-ranks");
  EXPECT_EQ(detail->limit(), 100u);
  EXPECT_EQ(detail->used(), 90u);
  EXPECT_EQ(detail->requested(), 16u);
  EXPECT_TRUE(CheckQuota("ml", quota, {9, 90, 0, 0}, {1, 10, 0, 0}).ok());
}

TEST(Quotas, ThatWereLoweredTakeNothingFromWhatIsThere) {
  NamespaceQuota quota;
  quota.max_jobs = 5;
  EXPECT_TRUE(CheckQuota("ml", quota, {9, 0, 0, 0}, {0, 10, 0, 0}).ok());
  EXPECT_FALSE(CheckQuota("ml", quota, {9, 0, 0, 0}, {1, 0, 0, 0}).ok());
}

}  // namespace
}  // namespace sparsebalance
