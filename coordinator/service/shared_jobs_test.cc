// Coordinators that share a store: a job is answered for by one of them at a time.

#include "coordinator/service/fake_claims.h"
#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using namespace testing_support;  // NOLINT(google-build-using-namespace)

class SharedJobsTest : public testing::Test {
 protected:
  static v1::RegisterJobRequest Request(const std::string& name, uint64_t known = 0) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = MakeSpec(name);
    request.set_known_leader_epoch(known);
    return request;
  }
  // Registering waits for the store, so it is answered from the background.
  static absl::StatusOr<v1::RegisterJobResponse> Register(Coordinator& coordinator,
                                                          const std::string& name,
                                                          uint64_t known = 0) {
    absl::StatusOr<v1::RegisterJobResponse> answer = absl::InternalError("not answered");
    coordinator.registry->RegisterJob(
        Request(name, known),
        [&](absl::StatusOr<v1::RegisterJobResponse> given) { answer = std::move(given); });
    coordinator.background.RunAll();
    return answer;
  }
  static void JoinBoth(Coordinator& coordinator, const std::string& name) {
    const JoinPending a = coordinator.Join(name, "a", {0});
    const JoinPending b = coordinator.Join(name, "b", {1});
    ASSERT_TRUE(a.answered() && a.get().ok());
    ASSERT_TRUE(b.answered() && b.get().ok());
  }

  const JobId id_{"default", "job"};
  MemoryStore store_;
  ClaimBoard board_;
  FakeClaims one_claims_{&board_, "one:7070"};
  FakeClaims two_claims_{&board_, "two:7070"};
  Coordinator one_{&store_, {}, &one_claims_};
  Coordinator two_{&store_, {}, &two_claims_};
};

TEST_F(SharedJobsTest, TheReplicaThatIsAskedFirstAnswersAndTheOtherNamesIt) {
  ASSERT_TRUE(Register(one_, "job").ok());
  JoinBoth(one_, "job");
  const auto refused = Register(two_, "job");
  EXPECT_THAT(refused.status(), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_EQ(Detail<v1::NotOwner>(refused.status()).owner_address(), "one:7070");
  const absl::Status heartbeat = two_.Heartbeat(Coordinator::Key("job", "a"));
  EXPECT_EQ(Detail<v1::NotOwner>(heartbeat).owner_address(), "one:7070");
}

TEST_F(SharedJobsTest, AJobOfAnotherReplicaIsListedWithItsAddress) {
  ASSERT_TRUE(Register(one_, "job").ok());
  ASSERT_TRUE(Register(two_, "other").ok());
  const auto listed = two_.registry->ListJobs({});
  ASSERT_TRUE(listed.ok());
  ASSERT_EQ(listed->jobs_size(), 2);
  EXPECT_EQ(listed->jobs(0).job().name(), "job");
  EXPECT_EQ(listed->jobs(0).owner_address(), "one:7070");
  EXPECT_EQ(listed->jobs(1).job().name(), "other");
  EXPECT_EQ(listed->jobs(1).owner_address(), "");
}

TEST_F(SharedJobsTest, AJobThatIsTakenOverKeepsGenerationJournalAndCoverage) {
  ASSERT_TRUE(Register(one_, "job").ok());
  JoinBoth(one_, "job");
  v1::ConsumedBatch consumed;
  consumed.set_step(0);
  consumed.add_sequence_ids(5);
  ASSERT_TRUE(
      one_.Report(Coordinator::Key("job", "a"), {MakeTelemetry(0, 0)}, {consumed}).get().ok());
  one_.registry->WriteKnowledge();
  ASSERT_TRUE(one_.writer->Flush().ok());
  const uint64_t before = one_.Status("job").leader_epoch();

  one_claims_.Lose(id_);
  ASSERT_TRUE(Register(two_, "job", before).ok());
  EXPECT_GT(two_.Status("job").leader_epoch(), before);
  EXPECT_EQ(two_.Status("job").sequences_consumed(), 1u);
  EXPECT_EQ(two_.Status("job").remembered_sequences(), 1u);
  const JoinPending a = two_.Rejoin("job", "a", {0}, /*held=*/1, /*next_step=*/1);
  const JoinPending b = two_.Rejoin("job", "b", {1}, /*held=*/1, /*next_step=*/1);
  ASSERT_TRUE(a.answered() && a.get().ok()) << a.status();
  EXPECT_EQ(a->generation(), 1u) << "nobody has died";
}

TEST_F(SharedJobsTest, WhoWaitsIsToldAtOnceThatTheJobIsLost) {
  ASSERT_TRUE(Register(one_, "job").ok());
  JoinBoth(one_, "job");
  const ExchangePending waiting = one_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  EXPECT_FALSE(waiting.answered());
  one_claims_.Lose(id_);
  ASSERT_TRUE(waiting.answered());
  EXPECT_THAT(waiting.status(), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_EQ(Detail<v1::NotOwner>(waiting.status()).owner_address(), "");
  EXPECT_THAT(one_.registry->Statuses(), testing::IsEmpty());
}

TEST_F(SharedJobsTest, APlanThatWasBeingMadeWhenTheJobWasLostIsNotGiven) {
  ASSERT_TRUE(Register(one_, "job").ok());
  JoinBoth(one_, "job");
  const ExchangePending a = one_.Ask(Coordinator::Key("job", "a"), MakeBatch(0));
  const ExchangePending b = one_.Ask(Coordinator::Key("job", "b"), MakeBatch(0));
  // Another has it already, and nothing has told this replica: its clock alone knows.
  board_.entries[id_] = {"two:7070", board_.last_epoch + 1};
  one_.executor.RunAll();
  ASSERT_TRUE(a.answered() && b.answered());
  EXPECT_EQ(Detail<v1::NotOwner>(a.status()).owner_address(), "two:7070");
  EXPECT_EQ(Detail<v1::NotOwner>(b.status()).owner_address(), "two:7070");
}

TEST_F(SharedJobsTest, AJobThatWasLostAndWonBackIsReadAgainFromTheStore) {
  ASSERT_TRUE(Register(one_, "job").ok());
  JoinBoth(one_, "job");
  ASSERT_TRUE(one_.writer->Flush().ok());
  // Lost, held by the other one for a generation, and back before anybody said so.
  const auto lost = board_.entries.at(id_);
  board_.entries.erase(id_);
  ASSERT_TRUE(Register(two_, "job").ok());
  JoinBoth(two_, "job");
  ASSERT_TRUE(two_.writer->Flush().ok());
  const uint64_t generation = two_.Status("job").generation();
  EXPECT_GT(generation, 1u);
  two_claims_.Lose(id_);
  ASSERT_TRUE(Register(one_, "job").ok());
  EXPECT_EQ(one_.Status("job").generation(), generation);
  EXPECT_FALSE(one_.Status("job").ranks_size() > 0) << "nobody has joined it here yet";
  EXPECT_GT(board_.entries.at(id_).epoch, lost.epoch);
}

TEST_F(SharedJobsTest, ARegistrationThatFindsNoRoomIsAskedToComeBack) {
  one_.background.set_capacity(0);
  const auto refused = Register(one_, "job");
  EXPECT_THAT(refused.status(), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_GT(Detail<v1::RetryLater>(refused.status()).retry_after_ms(), 0u);
}

TEST_F(SharedJobsTest, AStoreThatDoesNotAnswerLeavesTheJobWhereItWas) {
  one_claims_.SetUnreachable(absl::UnavailableError("etcd does not answer"));
  const auto refused = Register(one_, "job");
  EXPECT_THAT(refused.status(), HasCode(absl::StatusCode::kUnavailable));
  EXPECT_THAT(std::string(refused.status().message()), HasSubstr("etcd does not answer"));
  one_claims_.SetUnreachable(absl::OkStatus());
  EXPECT_TRUE(Register(one_, "job").ok());
}

TEST_F(SharedJobsTest, ARemovedJobIsReleasedOnceItIsGoneFromTheStore) {
  ASSERT_TRUE(Register(one_, "job").ok());
  v1::RemoveJobRequest remove;
  remove.mutable_job()->set_name("job");
  ASSERT_TRUE(one_.registry->RemoveJob(remove).ok());
  EXPECT_TRUE(board_.entries.contains(id_));
  one_.background.RunAll();
  EXPECT_FALSE(board_.entries.contains(id_));
  EXPECT_THAT(*store_.LoadJobs(), testing::IsEmpty());
}

TEST_F(SharedJobsTest, JobsThatNobodyAnswersForAreForgottenAfterTheirTime) {
  ASSERT_TRUE(Register(one_, "job").ok());
  ASSERT_TRUE(one_.writer->Flush().ok());
  one_claims_.Lose(id_);
  const auto look = [&] {
    two_.scheduler.Advance(two_.options.shared_look_interval + two_.options.sweep_interval);
    two_.background.RunAll();
  };
  look();
  EXPECT_EQ(store_.LoadJobs()->size(), 1u);
  two_.scheduler.Advance(two_.options.job_retention);
  two_.background.RunAll();
  look();
  look();
  ASSERT_TRUE(two_.writer->Flush().ok());
  EXPECT_THAT(*store_.LoadJobs(), testing::IsEmpty());
  EXPECT_THAT(two_claims_.Owners(), testing::IsEmpty());
}

}  // namespace
}  // namespace sparsebalance
