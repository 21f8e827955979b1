// The coordinator as the program that users run: starting, ending, being killed.

#include <signal.h>

#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/program_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::Program;
using testing_support::ProgramTest;

TEST_F(ProgramTest, SigtermDrainsAndExitsWithZero) {
  const auto program = Start();
  client_->Register("job");
  absl::Status status;
  v1::JoinJobResponse joined;
  std::thread waiting([&] { status = client_->Join("job", "a", 0, &joined); });
  client_->WaitForState("job", v1::JOB_STATE_JOINING);
  program->Signal(SIGTERM);
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(program->Wait(), 0) << program->Output();
  EXPECT_THAT(program->Output(), HasSubstr("everything is stored"));
}

TEST_F(ProgramTest, AKillIsSurvivedWithJobsGenerationsProfilesAndJournal) {
  uint64_t first_epoch = 0;
  {
    const auto program = Start();
    client_->FormPair("job");
    v1::ExchangeStepResponse answer;
    // Acknowledged means stored.
    while (answer.consumed_count() < 1) {
      ASSERT_TRUE(client_->Consume("job", "a", 0, {1, 2, 3}, &answer).ok());
    }
    first_epoch = answer.leader_epoch();
    program->Signal(SIGKILL);
    EXPECT_EQ(program->Wait(), 128 + SIGKILL);
  }
  const auto program = Start();
  const absl::Status stale = client_->Heartbeat("job", "a");
  EXPECT_EQ(stale.code(), absl::StatusCode::kAborted) << stale;
  const auto detail = planner::GetDetail<v1::StaleMember>(stale);
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->current_generation(), 1u);
  EXPECT_GT(detail->current_leader_epoch(), first_epoch);
  EXPECT_EQ(client_->Status("job").sequences_consumed(), 3u);
  client_->FormPair("job", /*held_generation=*/1, /*next_step=*/1);
  EXPECT_EQ(client_->Status("job").generation(), 1u);
  EXPECT_TRUE(client_->Heartbeat("job", "a").ok());
  EXPECT_EQ(client_->Status("job").sequences_consumed(), 3u);
}

TEST_F(ProgramTest, WhatCannotStartSaysSoInOneLineAndExitsWithTwo) {
  const auto program = Start();
  const std::string coordinator = Program("sparsebalance-coordinator");
  const auto expect_refused = [&](const std::vector<std::string>& arguments,
                                  const std::string& words) {
    std::vector<std::string> argv = {coordinator, "--metrics-listen", "off"};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    ChildProcess refused(argv);
    EXPECT_EQ(refused.Wait(), 2) << refused.Output();
    EXPECT_EQ(refused.lines(), 1u) << refused.Output();
    EXPECT_THAT(refused.Output(), HasSubstr(words));
  };
  const std::string any = "127.0.0.1:0";
  expect_refused({"--listen", address(), "--store", "memory"}, address());
  expect_refused({"--listen", any, "--store", folder_ / "store.db"}, "another coordinator");
  expect_refused({"--listen", any, "--store", folder_ / "."}, "is a directory");
  expect_refused({"--listen", "0.0.0.0:0", "--store", "memory"}, "--insecure");
  expect_refused({"--listen", "7070", "--store", "memory"}, "HOST:PORT");
  expect_refused({"--lease", "-3"}, "--lease");
  expect_refused({"--no-such-flag"}, "--no-such-flag");
  expect_refused({"--config", folder_ / "missing.conf"}, "missing.conf");
  std::ofstream(folder_ / "typo.conf") << "lisen=127.0.0.1:0\n";
  expect_refused({"--config", folder_ / "typo.conf"}, "lisen");
  expect_refused({"--listen", any, "--store", "memory", "--metrics-listen",
                  absl::StrCat("127.0.0.1:", metrics_port_)},
                 absl::StrCat("127.0.0.1:", metrics_port_));
}

TEST_F(ProgramTest, ADamagedStoreIsSetAsideAndTheProgramGoesOn) {
  {
    std::ofstream file(folder_ / "store.db");
    for (int i = 0; i < 200; ++i) file << "no database at all, line after line\n";
  }
  const auto program = Start();
  EXPECT_THAT(program->Output(), AllOf(HasSubstr("was damaged"), HasSubstr("store.db.corrupt-")));
  client_->Register("job");
}

TEST_F(ProgramTest, LogsAreJsonWhereAskedInAConfigurationFile) {
  std::ofstream(folder_ / "coordinator.conf") << "log-format=json\nlease=12.5\n";
  const auto program = Start({"--config", folder_ / "coordinator.conf"});
  EXPECT_THAT(program->Line(0), AllOf(HasSubstr("{\"time\":\"20"), HasSubstr("\"level\":\"info\""),
                                      HasSubstr("\"message\":\"")));
}

TEST_F(ProgramTest, SbctlShowsJobsAndPlans) {
  const auto program = Start();
  client_->FormPair("job");
  v1::ExchangeStepResponse a;
  v1::ExchangeStepResponse b;
  std::thread other([&] { EXPECT_TRUE(client_->Exchange("job", "b", 0, &b).ok()); });
  EXPECT_TRUE(client_->Exchange("job", "a", 0, &a).ok());
  other.join();

  auto jobs = Sbctl({"jobs"});
  EXPECT_EQ(jobs->Wait(), 0) << jobs->Output();
  EXPECT_THAT(jobs->Output(), AllOf(HasSubstr("JOB"), HasSubstr("default/job"),
                                    HasSubstr("training"), HasSubstr("2/2")));
  auto job = Sbctl({"job", "default/job"});
  EXPECT_EQ(job->Wait(), 0) << job->Output();
  EXPECT_THAT(job->Output(), AllOf(HasSubstr("TIME FACTOR"), HasSubstr("generation")));
  auto plan = Sbctl({"plan", "job", "0", "--explain"});
  EXPECT_EQ(plan->Wait(), 0) << plan->Output();
  EXPECT_THAT(plan->Output(), AllOf(HasSubstr("MICRO-BATCH"), HasSubstr("lower bound")));
  auto json = Sbctl({"job", "job", "--format", "json"});
  EXPECT_EQ(json->Wait(), 0) << json->Output();
  EXPECT_THAT(json->Output(), HasSubstr("\"spec_fingerprint\""));

  auto unknown = Sbctl({"job", "nobody"});
  EXPECT_EQ(unknown->Wait(), 1);
  EXPECT_EQ(unknown->lines(), 1u) << unknown->Output();
  EXPECT_THAT(unknown->Output(), HasSubstr("it knows default/job"));
  auto missing = Sbctl({"plan", "job", "7"});
  EXPECT_EQ(missing->Wait(), 1);
  EXPECT_THAT(missing->Output(), HasSubstr("it keeps step 0"));
  auto mistake = Sbctl({"jobs", "--format", "xml"});
  EXPECT_EQ(mistake->Wait(), 2);
  EXPECT_EQ(mistake->lines(), 1u) << mistake->Output();

  program->Signal(SIGTERM);
  EXPECT_EQ(program->Wait(), 0) << program->Output();
  auto alone = Sbctl({"--timeout", "5", "jobs"});
  EXPECT_EQ(alone->Wait(), 1);
  EXPECT_EQ(alone->lines(), 1u) << alone->Output();
  EXPECT_THAT(alone->Output(), HasSubstr(address()));
}

}  // namespace
}  // namespace sparsebalance
