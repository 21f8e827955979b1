// What probes see, and that there is nothing else to see.

#include "coordinator/service/health_server.h"

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance {
namespace {

using grpc::StatusCode;
using grpc::health::v1::Health;
using grpc::health::v1::HealthCheckRequest;
using grpc::health::v1::HealthCheckResponse;

constexpr char kCoordinator[] = "sparsebalance.v1.Coordinator";

class HealthServerTest : public testing::Test {
 protected:
  // What the coordinator's own server needs attaches to every server unless it is taken off.
  static void SetUpTestSuite() {
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  }

  void SetUp() override {
    HealthServer::Options options;
    options.max_watchers = 3;
    auto started = HealthServer::Start({"127.0.0.1", 0}, options);
    ASSERT_TRUE(started.ok()) << started.status();
    server_ = *std::move(started);
    channel_ =
        grpc::CreateChannel(server_->address().ToString(), grpc::InsecureChannelCredentials());
    stub_ = Health::NewStub(channel_);
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  grpc::Status Check(const std::string& service, HealthCheckResponse* response) {
    grpc::ClientContext context;
    SetDeadline(context);
    HealthCheckRequest request;
    request.set_service(service);
    return stub_->Check(&context, request, response);
  }

  // The code that any method gets, without knowing its messages.
  StatusCode Call(const std::string& method) {
    grpc::GenericStub generic(channel_);
    grpc::ClientContext context;
    SetDeadline(context);
    grpc::CompletionQueue queue;
    const auto call = generic.PrepareUnaryCall(&context, method, grpc::ByteBuffer(), &queue);
    call->StartCall();
    grpc::ByteBuffer response;
    grpc::Status status;
    call->Finish(&response, &status, nullptr);
    void* tag = nullptr;
    bool ok = false;
    queue.Next(&tag, &ok);
    queue.Shutdown();
    while (queue.Next(&tag, &ok)) {
    }
    return status.error_code();
  }

  std::unique_ptr<HealthServer> server_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Health::Stub> stub_;
};

TEST_F(HealthServerTest, SaysWhetherItServes) {
  for (const char* service : {"", kCoordinator}) {
    HealthCheckResponse response;
    ASSERT_TRUE(Check(service, &response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
    server_->SetServing(true);
    ASSERT_TRUE(Check(service, &response).ok());
    EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
    server_->SetServing(false);
  }
  HealthCheckResponse response;
  EXPECT_EQ(Check("another.Service", &response).error_code(), StatusCode::NOT_FOUND);
}

TEST_F(HealthServerTest, NothingElseIsServed) {
  const auto* const coordinator = v1::ListJobsRequest::descriptor()->file()->service(0);
  for (int i = 0; i < coordinator->method_count(); ++i) {
    const std::string name = coordinator->method(i)->name();
    EXPECT_EQ(Call("/" + coordinator->full_name() + "/" + name), StatusCode::UNIMPLEMENTED) << name;
  }
  for (const char* method :
       {"/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.channelz.v1.Channelz/GetServers", "/grpc.health.v1.Health/List", "/no/such"}) {
    EXPECT_EQ(Call(method), StatusCode::UNIMPLEMENTED) << method;
  }
}

TEST_F(HealthServerTest, WatchersHearOfEveryChange) {
  grpc::ClientContext context;
  SetDeadline(context);
  HealthCheckRequest request;
  request.set_service(kCoordinator);
  const auto reader = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  server_->SetServing(true);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVING);
  // No change, nothing to hear.
  server_->SetServing(true);
  server_->SetServing(false);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
}

TEST_F(HealthServerTest, AWatcherOfAnUnknownServiceIsToldSo) {
  grpc::ClientContext context;
  SetDeadline(context);
  HealthCheckRequest request;
  request.set_service("another.Service");
  const auto reader = stub_->Watch(&context, request);
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthCheckResponse::SERVICE_UNKNOWN);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
}

TEST_F(HealthServerTest, WatchersAreLimitedAndMakeRoomWhenTheyGo) {
  struct Watcher {
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<HealthCheckResponse>> reader;
  };
  const auto watch = [&](Watcher& watcher) {
    SetDeadline(watcher.context);
    watcher.reader = stub_->Watch(&watcher.context, HealthCheckRequest());
    HealthCheckResponse response;
    return watcher.reader->Read(&response);
  };
  std::vector<Watcher> watchers(3);
  for (Watcher& watcher : watchers) EXPECT_TRUE(watch(watcher));
  Watcher refused;
  EXPECT_FALSE(watch(refused));
  EXPECT_EQ(refused.reader->Finish().error_code(), StatusCode::RESOURCE_EXHAUSTED);
  // Checks do not count.
  HealthCheckResponse response;
  EXPECT_TRUE(Check("", &response).ok());

  for (Watcher& watcher : watchers) {
    watcher.context.TryCancel();
    watcher.reader->Finish();
  }
  // The server learns of the end a little later than the client.
  bool admitted = false;
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  while (!admitted && std::chrono::steady_clock::now() < deadline) {
    Watcher again;
    admitted = watch(again);
    again.context.TryCancel();
    again.reader->Finish();
  }
  EXPECT_TRUE(admitted);
}

TEST_F(HealthServerTest, EndsWhileItIsWatched) {
  grpc::ClientContext context;
  SetDeadline(context);
  const auto reader = stub_->Watch(&context, HealthCheckRequest());
  HealthCheckResponse response;
  ASSERT_TRUE(reader->Read(&response));
  server_.reset();
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_FALSE(reader->Finish().ok());
}

TEST_F(HealthServerTest, AChangeWhileWatchersComeAndGoLosesNobody) {
  std::thread changing([&] {
    for (int i = 0; i < 200; ++i) server_->SetServing(i % 2 == 0);
  });
  for (int i = 0; i < 50; ++i) {
    grpc::ClientContext context;
    SetDeadline(context);
    const auto reader = stub_->Watch(&context, HealthCheckRequest());
    HealthCheckResponse response;
    reader->Read(&response);
    context.TryCancel();
    reader->Finish();
  }
  changing.join();
  HealthCheckResponse response;
  ASSERT_TRUE(Check("", &response).ok());
  EXPECT_EQ(response.status(), HealthCheckResponse::NOT_SERVING);
}

TEST_F(HealthServerTest, APortThatIsTakenIsAnError) {
  const auto second = HealthServer::Start(server_->address(), {});
  EXPECT_EQ(second.status().code(), absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace sparsebalance
