// The whole coordinator over real channels: in this process, and as the program that users run.

#include "coordinator/service/coordinator_server.h"

#include <httplib.h>
#include <signal.h>
#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/digest.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/server_test_client.h"
#include "coordinator/service/status_conversion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"
#include "tests/support/child_process.h"

namespace sparsebalance {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing_support::ChildProcess;
using testing_support::Program;
using testing_support::TestClient;

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (fs::temp_directory_path() / "sb-server-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { fs::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string Get(int port, const std::string& path, int* status = nullptr) {
  httplib::Client client("127.0.0.1", port);
  const httplib::Result result = client.Get(path.c_str());
  if (!result) return "no answer";
  if (status != nullptr) *status = result->status;
  return result->body;
}

class InProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    ServerConfig config;
    config.listen = {"127.0.0.1", 0};
    config.metrics_listen = ListenAddress{"127.0.0.1", 0};
    config.store_path = folder_ / "store.db";
    config.version = "9.9";
    auto started = CoordinatorServer::Start(config);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    client_ = std::make_unique<TestClient>(server_->grpc_address().ToString());
  }

  TempFolder folder_;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<TestClient> client_;
};

TEST_F(InProcessTest, AJobGoesItsWholeWay) {
  TestClient& client = *client_;
  v1::PutProfileRequest put;
  put.mutable_profile()->mutable_key()->set_device_class("cpu");
  put.mutable_profile()->mutable_key()->set_model_class("tiny");
  put.mutable_profile()->mutable_model()->set_per_token_ms(0.01);
  put.mutable_profile()->mutable_model()->set_forward_fraction(0.3);
  put.mutable_profile()->mutable_model()->set_block_tokens(64);
  v1::PutProfileResponse put_answer;
  ASSERT_TRUE(client.Call(&TestClient::Stub::PutProfile, put, &put_answer).ok());

  client.FormPair("job");
  EXPECT_TRUE(client.Heartbeat("job", "a").ok());

  v1::ExchangeStepResponse a;
  v1::ExchangeStepResponse b;
  absl::Status b_status;
  std::thread other([&] { b_status = client.Exchange("job", "b", 0, &b); });
  const absl::Status a_status = client.Exchange("job", "a", 0, &a);
  other.join();
  ASSERT_TRUE(a_status.ok()) << a_status;
  ASSERT_TRUE(b_status.ok()) << b_status;
  EXPECT_EQ(a.plan_digest(), b.plan_digest());
  EXPECT_EQ(a.plan().ranks(0).rank(), 0u);
  EXPECT_EQ(b.plan().ranks(0).rank(), 1u);

  for (const auto& [node, rank] : {std::pair{"a", 0u}, {"b", 1u}}) {
    ASSERT_TRUE(client.Report("job", node, rank, 0).ok());
  }
  v1::GetJobRequest get;
  get.mutable_job()->set_name("job");
  v1::GetJobResponse job;
  ASSERT_TRUE(client.Call(&TestClient::Stub::GetJob, get, &job).ok());
  EXPECT_EQ(job.status().state(), v1::JOB_STATE_TRAINING);
  EXPECT_EQ(job.status().steps_reported(), 1u);

  v1::GetPlanRequest get_plan;
  get_plan.mutable_job()->set_name("job");
  get_plan.set_explain(true);
  v1::GetPlanResponse plan;
  ASSERT_TRUE(client.Call(&TestClient::Stub::GetPlan, get_plan, &plan).ok());
  EXPECT_EQ(plan.plan().ranks_size(), 2);
  EXPECT_EQ(planner::Digest(plan.plan()), a.plan_digest());
  EXPECT_GT(plan.explanation_size(), 0);

  v1::GetProfileRequest get_profile;
  *get_profile.mutable_key() = put.profile().key();
  v1::GetProfileResponse profile;
  ASSERT_TRUE(client.Call(&TestClient::Stub::GetProfile, get_profile, &profile).ok());
  EXPECT_EQ(profile.profile().model().per_token_ms(), 0.01);

  const std::string metrics = Get(server_->metrics_address()->port, "/metrics");
  for (const char* line : {"sparsebalance_coordinator_build_info{version=\"9.9\"} 1",
                           "sparsebalance_coordinator_leader_epoch 1",
                           "sparsebalance_coordinator_jobs{state=\"training\"} 1",
                           "sparsebalance_coordinator_members 2",
                           "sparsebalance_coordinator_plans_total{policy=\"sparsebalance\"} 1",
                           "sparsebalance_coordinator_plan_seconds_count 1",
                           "sparsebalance_coordinator_barrier_wait_seconds_count 2",
                           "sparsebalance_coordinator_rpcs_total{grpc_code=\"OK\",grpc_method="
                           "\"ExchangeStep\"} 4",
                           "sparsebalance_coordinator_job_step_imbalance{namespace=\"default\","
                           "job=\"job\"} 1",
                           "sparsebalance_coordinator_job_fallback_steps_total{namespace="
                           "\"default\",job=\"job\"} 0"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  for (const char* label : {"rank=", "sequence=", "step=", "generation="}) {
    EXPECT_THAT(metrics, Not(HasSubstr(label)));
  }
  EXPECT_THAT(Get(server_->metrics_address()->port, "/"),
              AllOf(HasSubstr("default/job"), HasSubstr("training")));

  for (const char* node : {"a", "b"}) ASSERT_TRUE(client.Leave("job", node).ok());
  v1::ListJobsResponse jobs;
  ASSERT_TRUE(client.Call(&TestClient::Stub::ListJobs, v1::ListJobsRequest(), &jobs).ok());
  ASSERT_EQ(jobs.jobs_size(), 1);
  EXPECT_EQ(jobs.jobs(0).state(), v1::JOB_STATE_FINISHED);
  EXPECT_EQ(jobs.server_version(), "9.9");
  // A finished job's figures are gone.
  EXPECT_THAT(Get(server_->metrics_address()->port, "/metrics"), Not(HasSubstr("job=\"job\"")));
}

TEST_F(InProcessTest, ErrorsCarryTheirDetails) {
  v1::RegisterJobRequest request;
  *request.mutable_spec() = TestClient::Spec("job");
  request.mutable_spec()->mutable_plan()->set_policy("fastest");
  v1::RegisterJobResponse answer;
  const absl::Status status = client_->Call(&TestClient::Stub::RegisterJob, request, &answer);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  const auto violation = planner::GetDetail<v1::FieldViolation>(status);
  ASSERT_TRUE(violation.has_value()) << status;
  EXPECT_EQ(violation->field(), "spec.plan.policy");
}

TEST_F(InProcessTest, ACallerThatGoesAwayEndsItsWait) {
  client_->Register("job");
  grpc::ClientContext context;
  v1::JoinJobResponse joined;
  absl::Status status;
  std::thread waiting([&] { status = client_->Join("job", "a", 0, &joined, &context); });
  client_->WaitForState("job", v1::JOB_STATE_JOINING);
  context.TryCancel();
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled);
  // The seat stays, but nobody is made to wait for it: rank 0 is missing again.
  client_->WaitFor("job", [](const v1::JobStatus& job) {
    return job.missing_ranks_size() == 2 && job.ranks_size() == 1;
  });
}

TEST_F(InProcessTest, HealthAndReflectionAreServed) {
  // grpc.health.v1.HealthCheckRequest{service: ...}; the response's field 1 is 1: SERVING.
  const std::string name = "sparsebalance.v1.Coordinator";
  const std::string ask =
      absl::StrCat("\x0a", std::string(1, static_cast<char>(name.size())), name);
  EXPECT_EQ(client_->Raw("/grpc.health.v1.Health/Check", ask), "\x08\x01");
  // ServerReflectionRequest{list_services: "*"}.
  EXPECT_THAT(client_->Raw("/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
                           std::string("\x3a\x01*")),
              HasSubstr(name));
}

TEST_F(InProcessTest, DrainTurnsHealthOffAndAnswersWaiters) {
  client_->Register("job");
  absl::Status status;
  v1::JoinJobResponse joined;
  std::thread waiting([&] { status = client_->Join("job", "a", 0, &joined); });
  client_->WaitForState("job", v1::JOB_STATE_JOINING);
  EXPECT_TRUE(server_->Drain().ok());
  waiting.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_TRUE(planner::GetDetail<v1::RetryLater>(status).has_value()) << status;
  int http = 0;
  Get(server_->metrics_address()->port, "/healthz", &http);
  EXPECT_EQ(http, 503);
}

TEST(ServerStartTest, PlaintextForOtherMachinesNeedsAWord) {
  ServerConfig config;
  config.listen = {"0.0.0.0", 0};
  EXPECT_EQ(CoordinatorServer::Start(config).status().code(),
            absl::StatusCode::kFailedPrecondition);
  config.insecure = true;
  EXPECT_TRUE(CoordinatorServer::Start(config).ok());
}

class ProgramTest : public testing::Test {
 protected:
  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& more = {}) {
    fs::remove(folder_ / "ports");
    std::vector<std::string> argv = {Program("sparsebalance-coordinator"),
                                     "--listen",
                                     absl::StrCat("127.0.0.1:", port_),
                                     "--metrics-listen",
                                     "127.0.0.1:0",
                                     "--store",
                                     folder_ / "store.db",
                                     "--port-file",
                                     folder_ / "ports"};
    argv.insert(argv.end(), more.begin(), more.end());
    auto program = std::make_unique<ChildProcess>(argv);
    EXPECT_TRUE(program->WaitForLine("serving").has_value()) << program->Output();
    std::ifstream ports(folder_ / "ports");
    for (std::string line; std::getline(ports, line);) {
      if (line.rfind("grpc=", 0) == 0) port_ = std::stoi(line.substr(5));
      if (line.rfind("metrics=", 0) == 0) metrics_port_ = std::stoi(line.substr(8));
    }
    EXPECT_GT(port_, 0);
    client_ = std::make_unique<TestClient>(address());
    return program;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  std::unique_ptr<ChildProcess> Sbctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {Program("sbctl"), "--coordinator", address()});
    return std::make_unique<ChildProcess>(std::move(arguments));
  }

  TempFolder folder_;
  int port_ = 0;
  int metrics_port_ = 0;
  std::unique_ptr<TestClient> client_;
};

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
