#include "worker/client/coordinator_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/chaos/fault_proxy.h"

namespace sparsebalance {
namespace {

// Ends calls as a server does that shuts down while they wait; registering waits for good.
class GoingCoordinator : public v1::Coordinator::Service {
 public:
  grpc::Status JoinJob(grpc::ServerContext*, const v1::JoinJobRequest*,
                       v1::JoinJobResponse*) override {
    return grpc::Status(grpc::StatusCode::CANCELLED, "");
  }
  grpc::Status RegisterJob(grpc::ServerContext* context, const v1::RegisterJobRequest*,
                           v1::RegisterJobResponse*) override {
    arrived_ = true;
    while (!context->IsCancelled()) std::this_thread::yield();
    return grpc::Status::CANCELLED;
  }
  grpc::Status Heartbeat(grpc::ServerContext*, const v1::HeartbeatRequest*,
                         v1::HeartbeatResponse*) override {
    return grpc::Status::OK;
  }
  bool arrived() const { return arrived_; }

 private:
  std::atomic<bool> arrived_{false};
};

class CoordinatorClientTest : public testing::Test {
 protected:
  CoordinatorClientTest() {
    Start();
    client_ = std::make_unique<CoordinatorClient>(absl::StrCat("127.0.0.1:", port_), nullptr);
  }

  // On the port of the one before, where there was one.
  void Start() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort(absl::StrCat("127.0.0.1:", port_), grpc::InsecureServerCredentials(),
                             &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr) << "port " << port_;
  }
  void Stop() {
    server_->Shutdown();
    server_->Wait();
    server_.reset();
  }
  absl::Status Call() { return client_->Heartbeat({}, absl::Seconds(60)).status(); }

  GoingCoordinator service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CoordinatorClient> client_;
};

TEST_F(CoordinatorClientTest, ACallThatTheCoordinatorCancelsIsOneToMakeAgain) {
  const absl::Status status = client_->JoinJob({}, absl::Seconds(60)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
}

TEST_F(CoordinatorClientTest, ACoordinatorThatComesBackIsFoundByTheFirstCallAfterIt) {
  ASSERT_TRUE(Call().ok());
  for (int lives = 0; lives < 3; ++lives) {
    Stop();
    // However often it was looked for meanwhile.
    for (int calls = 0; calls < 5; ++calls) {
      EXPECT_EQ(Call().code(), absl::StatusCode::kUnavailable);
    }
    Start();
    const absl::Status status = Call();
    EXPECT_TRUE(status.ok()) << status;
  }
}

TEST_F(CoordinatorClientTest, AConnectionThatTakesItsTimeIsWaitedFor) {
  chaos::FaultProxy proxy;
  proxy.SetTarget(port_);
  proxy.SetDelay(absl::Milliseconds(300));  // longer than the pause between attempts
  CoordinatorClient far(proxy.address(), nullptr);
  const absl::Status status = far.Heartbeat({}, absl::Seconds(60)).status();
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(CoordinatorClientTest, ACallThatWeInterruptIsCancelled) {
  absl::Status status;
  std::thread call([&] { status = client_->RegisterJob({}, absl::Seconds(60)).status(); });
  while (!service_.arrived()) std::this_thread::yield();
  client_->Interrupt();
  call.join();
  EXPECT_EQ(status.code(), absl::StatusCode::kCancelled) << status;
}

}  // namespace
}  // namespace sparsebalance
