// Sessions against a real coordinator in this process, over real sockets.
#include "worker/client/node_session.h"

#include <thread>

#include "absl/synchronization/notification.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/coordinator_server.h"
#include "gmock/gmock.h"
#include "grpcpp/server_builder.h"
#include "gtest/gtest.h"
#include "worker/data/data_test_util.h"

namespace sparsebalance {
namespace {

using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(60);

v1::JobSpec TestSpec() {
  v1::JobSpec spec;
  spec.mutable_job()->set_namespace_("test");
  spec.mutable_job()->set_name("sessions");
  spec.mutable_parallelism()->set_data(2);
  spec.mutable_parallelism()->set_pipeline(1);
  spec.mutable_parallelism()->set_sequence(1);
  spec.mutable_plan()->set_policy("sparsebalance");
  spec.mutable_plan()->set_data_parallel_size(2);
  spec.mutable_plan()->set_pipeline_parallel_size(1);
  spec.mutable_plan()->set_block_tokens(16);
  spec.mutable_plan()->set_base_budget_blocks(4);
  spec.mutable_plan()->set_max_tokens_per_micro_batch(256);
  spec.mutable_plan()->set_coverage_guard(0.1);
  spec.set_num_layers(2);
  spec.set_global_batch_size(4);
  spec.set_device_class("test");
  spec.set_model_class("test");
  return spec;
}

v1::GlobalBatch Batch(uint64_t step) {
  v1::GlobalBatch batch;
  batch.set_step(step);
  for (uint64_t i = 0; i < 4; ++i) {
    v1::BatchSequence& sequence = *batch.add_sequences();
    sequence.set_id(step * 4 + i);
    sequence.set_tokens(40 * (i + 1));
    sequence.set_supervised_tokens(40 * (i + 1) - 1);
  }
  batch.set_digest(BatchDigest(batch));
  return batch;
}

class NodeSessionTest : public ::testing::Test {
 protected:
  void StartServer() {
    ServerConfig config;
    config.listen = {"127.0.0.1", port_};
    config.state.location = *StoreLocation::Parse(folder_ / "store.sqlite");
    auto server = CoordinatorServer::Start(config);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = server_->grpc_address().port;
  }

  NodeSessionOptions Options(const std::string& node, uint64_t incarnation = 1) {
    NodeSessionOptions options;
    options.address = "127.0.0.1:" + std::to_string(port_);
    options.node_id = node;
    options.incarnation = incarnation;
    options.start_timeout = kPatience;
    options.backoff_max = absl::Milliseconds(200);
    options.join_poll = absl::Seconds(1);
    return options;
  }

  std::unique_ptr<NodeSession> Register(const std::string& node, uint64_t incarnation = 1) {
    auto session = NodeSession::Register(Options(node, incarnation), TestSpec(), &stop_);
    EXPECT_TRUE(session.ok()) << session.status();
    return session.ok() ? *std::move(session) : nullptr;
  }

  static std::vector<v1::RankInfo> Rank(uint32_t rank) {
    v1::RankInfo info;
    info.set_rank(rank);
    info.set_rendezvous("address of " + std::to_string(rank));
    return {info};
  }

  // Both nodes, joined.
  void JoinBoth() {
    a_ = Register("a");
    b_ = Register("b");
    absl::StatusOr<v1::JoinJobResponse> joined_b;
    std::thread other([&] { joined_b = b_->Join(Rank(1), 0); });
    const absl::StatusOr<v1::JoinJobResponse> joined_a = a_->Join(Rank(0), 0);
    other.join();
    ASSERT_TRUE(joined_a.ok()) << joined_a.status();
    ASSERT_TRUE(joined_b.ok()) << joined_b.status();
    ASSERT_EQ(joined_a->members_size(), 2);
    EXPECT_EQ(joined_a->members(1).rendezvous(), "address of 1");
    EXPECT_EQ(joined_b->generation(), joined_a->generation());
  }

  // Leaves the coordinator with the memory of a life of `node` that took rank 1.
  void TryToJoinAlone(const std::string& node, uint64_t incarnation) {
    NodeSessionOptions options = Options(node, incarnation);
    options.start_timeout = absl::Milliseconds(300);
    auto session = NodeSession::Register(options, TestSpec(), &stop_);
    ASSERT_TRUE(session.ok()) << session.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded((*session)->Join(Rank(1), 0).status()));
    // Else it would count as present for a moment, and a generation could be formed with it.
    EXPECT_TRUE((*session)->Leave("its machine is taken away", false).ok());
  }

  // Asks both for the plan of `step` until both have one.
  std::pair<PlanOffer, PlanOffer> PlansOfSomeStepFrom(uint64_t step) {
    const absl::Time end = absl::Now() + kPatience;
    for (; absl::Now() < end; ++step) {
      a_->Request(Batch(step));
      b_->Request(Batch(step));
      const absl::Time deadline = absl::Now() + absl::Milliseconds(300);
      const auto of_a = a_->Wait(step, deadline);
      const auto of_b = b_->Wait(step, deadline);
      if (of_a.has_value() && of_b.has_value()) return {*of_a, *of_b};
    }
    ADD_FAILURE() << "no plan came";
    return {};
  }

  data_testing::TempFolder folder_;
  StopSignal stop_;
  int port_ = 0;
  std::unique_ptr<CoordinatorServer> server_;
  std::unique_ptr<NodeSession> a_, b_;
};

TEST_F(NodeSessionTest, BothNodesGetTheirSliceOfOnePlan) {
  StartServer();
  JoinBoth();
  a_->Request(Batch(0));
  b_->Request(Batch(0));
  const auto of_a = a_->Wait(0, absl::Now() + kPatience);
  const auto of_b = b_->Wait(0, absl::Now() + kPatience);
  ASSERT_TRUE(of_a.has_value() && of_b.has_value());
  EXPECT_EQ(of_a->digest, of_b->digest);
  EXPECT_EQ(of_a->leader_epoch, of_b->leader_epoch);
  ASSERT_EQ(of_a->plan->ranks_size(), 1);
  EXPECT_EQ(of_a->plan->ranks(0).rank(), 0u);
  EXPECT_EQ(of_b->plan->ranks(0).rank(), 1u);
  EXPECT_EQ(of_a->plan->global_supervised_tokens(), 396u);
  EXPECT_TRUE(a_->Leave("finished", true).ok());
  EXPECT_TRUE(b_->Leave("finished", true).ok());
}

TEST_F(NodeSessionTest, APlanIsNotOfferedOnceItsDeadlineHasPassed) {
  StartServer();
  JoinBoth();
  a_->Request(Batch(0));  // the other node has not asked: no plan can be made
  EXPECT_FALSE(a_->Wait(0, absl::Now() + absl::Milliseconds(50)).has_value());
  b_->Request(Batch(0));
  b_->Request(Batch(1));
  a_->Request(Batch(1));
  ASSERT_TRUE(a_->Wait(1, absl::Now() + kPatience).has_value());
  EXPECT_FALSE(a_->Wait(0, absl::Now() + kPatience).has_value());
}

TEST_F(NodeSessionTest, ARestartedCoordinatorIsJoinedAgainUnderTheSameGeneration) {
  StartServer();
  JoinBoth();
  const auto before = PlansOfSomeStepFrom(0);
  server_.reset();
  a_->Request(Batch(100));
  // Once the coordinator is known to be away nobody waits for it.
  EXPECT_FALSE(a_->Wait(100, absl::Now() + kPatience).has_value());
  StartServer();
  const auto after = PlansOfSomeStepFrom(101);
  EXPECT_EQ(after.first.digest, after.second.digest);
  EXPECT_EQ(after.first.generation, before.first.generation);
  EXPECT_GT(after.first.leader_epoch, before.first.leader_epoch);
  EXPECT_TRUE(a_->Health().ok()) << a_->Health();
}

TEST_F(NodeSessionTest, ABacklogOfConsumedBatchesFromALongOutageDoesNotKeepPlansAway) {
  StartServer();
  JoinBoth();
  constexpr uint64_t kSteps = 6000;  // more than the coordinator takes in one call
  for (uint64_t step = 0; step < kSteps; ++step) {
    v1::ConsumedBatch consumed;
    consumed.set_step(step);
    consumed.add_sequence_ids(step);
    a_->ReportConsumed(std::move(consumed));
  }
  const auto plans = PlansOfSomeStepFrom(kSteps);
  EXPECT_EQ(plans.first.digest, plans.second.digest);
  EXPECT_EQ(plans.first.step, kSteps);
  EXPECT_TRUE(a_->Leave("finished", true).ok());
}

TEST_F(NodeSessionTest, AReplacedMemberEndsTheOthersSession) {
  StartServer();
  JoinBoth();
  const auto first = PlansOfSomeStepFrom(0);
  // The process of node b starts again and takes its rank.
  auto successor = Register("b", /*incarnation=*/2);
  std::thread joining([&] {
    // Whether it completes is up to node a, whose process would need a new communicator.
    (void)successor->Join(Rank(1), 0);
  });
  const absl::Time end = absl::Now() + kPatience;
  for (uint64_t step = first.first.step + 1; a_->Health().ok() && absl::Now() < end; ++step) {
    a_->Request(Batch(step));
    a_->Wait(step, absl::Now() + absl::Milliseconds(100));
  }
  EXPECT_EQ(a_->Health().code(), absl::StatusCode::kAborted) << a_->Health();
  EXPECT_THAT(a_->Health().message(), HasSubstr("restart"));
  stop_.Request();
  joining.join();
}

TEST_F(NodeSessionTest, AFreshProcessWhoseClockIsBehindJoinsAfterTheLifeBeforeIt) {
  StartServer();
  TryToJoinAlone("b", /*incarnation=*/9);
  NodeSessionOptions options = Options("b", /*incarnation=*/5);
  absl::Notification told;
  options.log = [&](const std::string& line) {
    if (line.find("later than this machine's clock (5)") != std::string::npos) told.Notify();
  };
  auto behind = NodeSession::Register(options, TestSpec(), &stop_);
  ASSERT_TRUE(behind.ok()) << behind.status();
  absl::StatusOr<v1::JoinJobResponse> joined;
  std::thread other([&] { joined = (*behind)->Join(Rank(1), 0); });
  EXPECT_TRUE(told.WaitForNotificationWithTimeout(kPatience));
  a_ = Register("a");
  const absl::StatusOr<v1::JoinJobResponse> joined_a = a_->Join(Rank(0), 0);
  other.join();
  ASSERT_TRUE(joined_a.ok()) << joined_a.status();
  ASSERT_TRUE(joined.ok()) << joined.status();
  EXPECT_EQ(joined->members(1).incarnation(), 10u);
}

TEST_F(NodeSessionTest, AProcessThatWasReplacedDoesNotDriveOutItsSuccessor) {
  StartServer();
  TryToJoinAlone("b", /*incarnation=*/9);
  NodeSessionOptions options = Options("b", /*incarnation=*/5);
  options.previous_incarnation = 5;
  auto replaced = NodeSession::Register(options, TestSpec(), &stop_);
  ASSERT_TRUE(replaced.ok()) << replaced.status();
  const absl::StatusOr<v1::JoinJobResponse> joined = (*replaced)->Join(Rank(1), 0);
  EXPECT_EQ(joined.status().code(), absl::StatusCode::kAborted);
  EXPECT_THAT(joined.status().message(), HasSubstr("has joined as incarnation 9"));
}

TEST_F(NodeSessionTest, AProcessOfAnEarlierRestartOfTheJobIsRefused) {
  StartServer();
  NodeSessionOptions later = Options("b", /*incarnation=*/0);
  later.restart_attempt = 2;
  later.start_timeout = absl::Milliseconds(300);
  auto successor = NodeSession::Register(later, TestSpec(), &stop_);
  ASSERT_TRUE(successor.ok()) << successor.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded((*successor)->Join(Rank(1), 0).status()));

  NodeSessionOptions earlier = Options("b", /*incarnation=*/0);
  earlier.restart_attempt = 1;
  auto session = NodeSession::Register(earlier, TestSpec(), &stop_);
  ASSERT_TRUE(session.ok()) << session.status();
  EXPECT_TRUE(absl::IsAborted((*session)->Join(Rank(1), 0).status()));
}

TEST_F(NodeSessionTest, WithoutACoordinatorRegistrationEndsAtTheTimeOutOrWhenStopped) {
  StartServer();
  server_.reset();
  NodeSessionOptions options = Options("a");
  options.start_timeout = absl::Milliseconds(300);
  std::vector<std::string> lines;
  options.log = [&](const std::string& line) { lines.push_back(line); };
  auto timed_out = NodeSession::Register(options, TestSpec(), &stop_);
  EXPECT_EQ(timed_out.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(timed_out.status().message(), HasSubstr("no coordinator answered at 127.0.0.1:"));
  ASSERT_FALSE(lines.empty());
  EXPECT_THAT(lines[0], HasSubstr("waiting for the coordinator at 127.0.0.1:"));
  stop_.Request();
  auto stopped = NodeSession::Register(Options("a"), TestSpec(), &stop_);
  EXPECT_EQ(stopped.status().code(), absl::StatusCode::kCancelled);
}

// A coordinator whose leader epoch falls: an old leader that has woken up.
class OldLeader : public v1::Coordinator::Service {
 public:
  grpc::Status RegisterJob(grpc::ServerContext*, const v1::RegisterJobRequest*,
                           v1::RegisterJobResponse* response) override {
    response->set_leader_epoch(9);
    return grpc::Status::OK;
  }
  grpc::Status JoinJob(grpc::ServerContext*, const v1::JoinJobRequest* request,
                       v1::JoinJobResponse* response) override {
    response->set_leader_epoch(9);
    response->set_generation(1);
    v1::Member& member = *response->add_members();
    member.set_incarnation(request->incarnation());
    return grpc::Status::OK;
  }
  grpc::Status ExchangeStep(grpc::ServerContext*, const v1::ExchangeStepRequest*,
                            v1::ExchangeStepResponse* response) override {
    response->set_leader_epoch(8);
    response->set_generation(1);
    calls.Notify();
    return grpc::Status::OK;
  }
  struct Once {
    void Notify() {
      absl::MutexLock lock(&mutex);
      seen = true;
    }
    absl::Mutex mutex;
    bool seen = false;
  } calls;
};

TEST_F(NodeSessionTest, APlanOfALowerLeaderEpochIsThrownAway) {
  OldLeader leader;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(&leader);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  auto session = Register("a");
  ASSERT_NE(session, nullptr);
  ASSERT_TRUE(session->Join(Rank(0), 0).ok());
  session->Request(Batch(0));
  {
    absl::MutexLock lock(&leader.calls.mutex);
    leader.calls.mutex.Await(absl::Condition(&leader.calls.seen));
  }
  EXPECT_FALSE(session->Wait(0, absl::Now() + absl::Milliseconds(200)).has_value());
  session.reset();
  server->Shutdown(std::chrono::system_clock::now());
}

}  // namespace
}  // namespace sparsebalance
