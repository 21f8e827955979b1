// The whole coordinator over real channels, in this process.

#include "coordinator/service/coordinator_server.h"

#include <httplib.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "coordinator/planner/digest.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/program_test_util.h"
#include "coordinator/service/server_test_client.h"
#include "coordinator/service/status_conversion.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using testing::Not;
using testing_support::TempFolder;
using testing_support::TestClient;

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
    config.health_listen = ListenAddress{"127.0.0.1", 0};
    config.state.location = *StoreLocation::Parse(folder_ / "store.db");
    config.reflection = true;
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
  for (const char* line :
       {"sparsebalance_coordinator_build_info{version=\"9.9\"} 1",
        "sparsebalance_coordinator_leader_epoch 1",
        "sparsebalance_coordinator_jobs{state=\"training\"} 1",
        "sparsebalance_coordinator_members 2",
        "sparsebalance_coordinator_plans_total{policy=\"sparsebalance\"} 1",
        "sparsebalance_coordinator_plan_seconds_count{policy=\"sparsebalance\"} 1",
        "sparsebalance_coordinator_barrier_wait_seconds_count 2",
        "sparsebalance_coordinator_rpcs_total{grpc_code=\"OK\",grpc_method="
        "\"ExchangeStep\"} 4",
        "sparsebalance_coordinator_job_step_imbalance_ratio{namespace=\"default\","
        "job=\"job\"} 1",
        "sparsebalance_coordinator_job_fallback_steps_total{namespace="
        "\"default\",job=\"job\",reason=\"late\"} 0"}) {
    EXPECT_THAT(metrics, HasSubstr(line));
  }
  for (const char* label : {"rank=", "sequence=", "step=", "generation="}) {
    EXPECT_THAT(metrics, Not(HasSubstr(label)));
  }
  for (const char* path : {"/", "/overview.txt", "/api/v1/jobs", "/api/v1/job?name=job"}) {
    const std::string page = Get(server_->metrics_address()->port, path);
    EXPECT_THAT(page, HasSubstr("job")) << path;
    EXPECT_THAT(absl::AsciiStrToLower(page), HasSubstr("training")) << path;
  }

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
  TestClient probe(server_->health_address()->ToString());
  EXPECT_EQ(probe.Raw("/grpc.health.v1.Health/Check", ask), "\x08\x01");
  // Only there: on the service's own port a probe would need a certificate, and a role.
  EXPECT_EQ(client_->Raw("/grpc.health.v1.Health/Check", ask), "no answer");
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
  config.state.location.kind = StoreLocation::Kind::kMemory;
  EXPECT_EQ(CoordinatorServer::Start(config).status().code(),
            absl::StatusCode::kFailedPrecondition);
  config.insecure = true;
  EXPECT_TRUE(CoordinatorServer::Start(config).ok());
}

}  // namespace
}  // namespace sparsebalance
