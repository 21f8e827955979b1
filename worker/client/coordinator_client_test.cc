#include "worker/client/coordinator_client.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"

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
  bool arrived() const { return arrived_; }

 private:
  std::atomic<bool> arrived_{false};
};

class CoordinatorClientTest : public testing::Test {
 protected:
  CoordinatorClientTest() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    client_ = std::make_unique<CoordinatorClient>(absl::StrCat("127.0.0.1:", port_), nullptr);
  }

  GoingCoordinator service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<CoordinatorClient> client_;
};

TEST_F(CoordinatorClientTest, ACallThatTheCoordinatorCancelsIsOneToMakeAgain) {
  const absl::Status status = client_->JoinJob({}, absl::Seconds(60)).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
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
