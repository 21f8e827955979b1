// Quotas of namespaces, as the registry holds them.

#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using namespace testing_support;  // NOLINT(google-build-using-namespace)

class NamespaceQuotaTest : public testing::Test {
 protected:
  absl::StatusOr<v1::RegisterJobResponse> Register(const std::string& ns, const std::string& name,
                                                   uint32_t batch = 8) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = MakeSpec(name);
    request.mutable_spec()->mutable_job()->set_namespace_(ns);
    request.mutable_spec()->set_global_batch_size(batch);
    return coordinator_.Register(request);
  }
  void SetQuotas(const std::vector<std::string>& entries) {
    const auto table = QuotaTable::Parse(entries);
    ASSERT_TRUE(table.ok()) << table.status();
    coordinator_.quotas = *table;
  }

  MemoryStore store_;
  Coordinator coordinator_{&store_};
};

TEST_F(NamespaceQuotaTest, HoldsTheJobsOfOneNamespaceAndNotThoseOfOthers) {
  SetQuotas({"ml:max-jobs=2"});
  EXPECT_TRUE(Register("ml", "one").ok());
  EXPECT_TRUE(Register("ml", "two").ok());
  const auto third = Register("ml", "three");
  EXPECT_THAT(third.status(), HasCode(absl::StatusCode::kResourceExhausted));
  EXPECT_EQ(Detail<v1::QuotaExceeded>(third.status()).quota(), "max-jobs");
  EXPECT_TRUE(Register("vision", "three").ok());
  EXPECT_TRUE(Register("ml", "one").ok()) << "to register again asks for nothing new";
}

TEST_F(NamespaceQuotaTest, CountsRanksAndSequencesOfAllUnfinishedJobs) {
  SetQuotas({"default:max-ranks=4,max-sequences=20"});
  EXPECT_TRUE(Register("", "one").ok());
  EXPECT_EQ(Detail<v1::QuotaExceeded>(Register("", "two", 13).status()).quota(), "max-sequences");
  EXPECT_TRUE(Register("", "two", 12).ok());
  EXPECT_EQ(Detail<v1::QuotaExceeded>(Register("", "three", 1).status()).quota(), "max-ranks");
}

TEST_F(NamespaceQuotaTest, GivesBackWhatAFinishedJobHad) {
  SetQuotas({"*:max-jobs=1"});
  coordinator_.FormPair("one");
  EXPECT_FALSE(Register("", "two").ok());
  for (const char* node : {"a", "b"}) {
    v1::LeaveJobRequest leave;
    *leave.mutable_node() = Coordinator::Key("one", node);
    leave.set_job_finished(true);
    ASSERT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
  }
  EXPECT_TRUE(Register("", "two").ok());
  // Training it on would be a second job.
  EXPECT_FALSE(Register("", "one").ok());
}

TEST_F(NamespaceQuotaTest, RefusesABatchOfMoreSequencesThanTheNamespaceMayHave) {
  SetQuotas({"*:max-sequences=8"});
  coordinator_.FormPair("job");
  const ExchangePending fits = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(0, 8));
  EXPECT_FALSE(fits.answered());
  const ExchangePending more = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(1, 9));
  ASSERT_TRUE(more.answered());
  EXPECT_EQ(Detail<v1::QuotaExceeded>(more.get().status()).requested(), 9u);
}

TEST_F(NamespaceQuotaTest, AFullMemoryStopsRememberingAndTrainingGoesOn) {
  SetQuotas({"*:max-bytes=1"});
  coordinator_.FormPair("job");
  ASSERT_TRUE(coordinator_.Report(Coordinator::Key("job", "a"), {MakeTelemetry(0, 0)}).get().ok());
  EXPECT_EQ(coordinator_.Status("job").remembered_sequences(), 1u);
  coordinator_.scheduler.Advance(coordinator_.options.sweep_interval);
  EXPECT_TRUE(coordinator_.Status("job").memory_full());
  EXPECT_GT(coordinator_.Status("job").state_bytes(), 0u);

  ASSERT_TRUE(coordinator_.Report(Coordinator::Key("job", "a"), {MakeTelemetry(0, 1)}).get().ok());
  EXPECT_EQ(coordinator_.Status("job").remembered_sequences(), 1u);
  v1::PutCoverageRequest put;
  *put.mutable_node() = Coordinator::Key("job", "a");
  put.add_entries()->set_sequence_id(7);
  EXPECT_EQ(Detail<v1::QuotaExceeded>(coordinator_.registry->PutCoverage(put).status()).quota(),
            "max-bytes");
  const ExchangePending a = coordinator_.Ask(Coordinator::Key("job", "a"), MakeBatch(2));
  const ExchangePending b = coordinator_.Ask(Coordinator::Key("job", "b"), MakeBatch(2));
  coordinator_.executor.RunAll();
  EXPECT_TRUE(a.answered() && a.get().ok());

  SetQuotas({"*:max-bytes=1GiB"});
  coordinator_.scheduler.Advance(coordinator_.options.sweep_interval);
  EXPECT_FALSE(coordinator_.Status("job").memory_full());
}

}  // namespace
}  // namespace sparsebalance
