// A real gRPC server with TLS and authorization around a service that only answers, and clients
// with certificates of every kind.
#pragma once

#include <grpc/support/log.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/security/call_authorizer.h"
#include "coordinator/security/handshake_log.h"
#include "coordinator/security/log_capture.h"
#include "coordinator/security/server_credentials.h"
#include "coordinator/security/server_limits.h"
#include "coordinator/security/test_pki.h"
#include "coordinator/service/status_conversion.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance::security {

// Answers what it may; WatchJob waits for ReleaseWatchers().
class AnsweringService : public v1::Coordinator::CallbackService {
 public:
  explicit AnsweringService(Authorizer* authorizer) : authorizer_(authorizer) {}

  grpc::ServerUnaryReactor* RegisterJob(grpc::CallbackServerContext* context,
                                        const v1::RegisterJobRequest* request,
                                        v1::RegisterJobResponse*) override {
    return Answer(context, *request);
  }
  grpc::ServerUnaryReactor* ListJobs(grpc::CallbackServerContext* context,
                                     const v1::ListJobsRequest* request,
                                     v1::ListJobsResponse* response) override {
    // Tells the caller which connection the call came by.
    response->set_server_version(context->peer());
    return Answer(context, *request);
  }
  grpc::ServerUnaryReactor* WatchJob(grpc::CallbackServerContext* context,
                                     const v1::WatchJobRequest*, v1::WatchJobResponse*) override {
    absl::MutexLock lock(&mutex_);
    watchers_.push_back(context->DefaultReactor());
    return watchers_.back();
  }

  // Calls that were let through.
  int answered() const { return answered_; }
  void WaitForWatchers(size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto there = [&]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return watchers_.size() == count; };
    mutex_.Await(absl::Condition(&there));
  }
  void ReleaseWatchers() {
    absl::MutexLock lock(&mutex_);
    for (grpc::ServerUnaryReactor* const watcher : watchers_) watcher->Finish(grpc::Status::OK);
    watchers_.clear();
  }

 private:
  template <typename Request>
  grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context, const Request& request) {
    grpc::ServerUnaryReactor* const call = context->DefaultReactor();
    const auto caller = authorizer_.Authorize(*context, request);
    if (caller.ok()) ++answered_;
    call->Finish(ToGrpcStatus(caller.status()));
    return call;
  }

  const CallAuthorizer authorizer_;
  std::atomic<int> answered_{0};
  absl::Mutex mutex_;
  std::vector<grpc::ServerUnaryReactor*> watchers_ ABSL_GUARDED_BY(mutex_);
};

class SecureServerFixture : public testing::Test {
 protected:
  using Stub = v1::Coordinator::Stub;

  static constexpr char kRules[] = R"({"rules": [
    {"san": "spiffe://c/ns/{namespace}/sa/trainer", "role": "node"},
    {"san": "dns:grafana", "role": "reader", "namespaces": ["ml"]}
  ]})";

  SecureServerFixture() : authorizer_(*Policy::Parse(kRules, "auth.json"), {}) {
    handshakes_ = kept.emplace_back(std::make_unique<HandshakeLog>()).get();
    handshake_log.store(handshakes_);
    gpr_set_log_function(&Hear);
    limits_.max_message_bytes = 64 * 1024;
    folder_.Write(ca_.IssueServer("first"), ca_.certificate());
  }
  ~SecureServerFixture() override {
    if (server_ != nullptr) {
      service_->ReleaseWatchers();
      server_->Shutdown(std::chrono::system_clock::now());
      server_->Wait();
    }
    gpr_set_log_function(nullptr);
    handshake_log.store(nullptr);
  }

  void StartServer(const std::string& host = "127.0.0.1") {
    CertificateWatcher::Options options;
    options.interval = absl::Hours(1);  // tests look at the files themselves
    auto watcher = CertificateWatcher::Start(folder_.files(), options);
    ASSERT_TRUE(watcher.ok()) << watcher.status();
    watcher_ = *std::move(watcher);
    auto credentials = MakeServerCredentials(watcher_.get());
    ASSERT_TRUE(credentials.ok()) << credentials.status();
    service_ = std::make_unique<AnsweringService>(&authorizer_);
    grpc::ServerBuilder builder;
    ConfigureServer(builder, limits_);
    builder.AddListeningPort(host + ":0", *credentials, &port_);
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    ASSERT_NE(server_, nullptr);
    ASSERT_GT(port_, 0);
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  TestIdentity Node(const std::string& name_space = "ml") const {
    return ca_.Issue({.uris = {"spiffe://c/ns/" + name_space + "/sa/trainer"}});
  }
  TestIdentity Reader() const { return ca_.Issue({.dns = {"grafana"}}); }

  // A connection of its own, to a server that is called `name` in its certificate.
  static std::shared_ptr<grpc::Channel> Connect(const TestIdentity& identity, const std::string& ca,
                                                const std::string& target,
                                                const std::string& name = "") {
    grpc::SslCredentialsOptions options;
    options.pem_root_certs = ca;
    options.pem_private_key = identity.key;
    options.pem_cert_chain = identity.certificate;
    return ConnectWith(grpc::SslCredentials(options), target, name);
  }
  std::shared_ptr<grpc::Channel> Connect(const TestIdentity& identity,
                                         const std::string& ca) const {
    return Connect(identity, ca, address());
  }
  std::shared_ptr<grpc::Channel> Connect(const TestIdentity& identity) const {
    return Connect(identity, ca_.certificate());
  }
  static std::shared_ptr<grpc::Channel> ConnectWith(
      const std::shared_ptr<grpc::ChannelCredentials>& credentials, const std::string& target,
      const std::string& name = "") {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    if (!name.empty()) arguments.SetSslTargetNameOverride(name);
    return grpc::CreateCustomChannel(target, credentials, arguments);
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  static grpc::Status Register(const std::shared_ptr<grpc::Channel>& channel,
                               const std::string& name_space) {
    v1::RegisterJobRequest request;
    request.mutable_spec()->mutable_job()->set_namespace_(name_space);
    v1::RegisterJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    return Stub(channel).RegisterJob(&context, request, &response);
  }

  struct Listing {
    grpc::Status status;
    std::string connection;   // as the server sees it
    std::string server_name;  // common name of the certificate that the server showed
  };
  static Listing List(const std::shared_ptr<grpc::Channel>& channel) {
    Listing listing;
    v1::ListJobsResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    listing.status = Stub(channel).ListJobs(&context, v1::ListJobsRequest(), &response);
    listing.connection = response.server_version();
    if (listing.status.ok()) {
      const auto names = context.auth_context()->FindPropertyValues("x509_common_name");
      if (!names.empty()) listing.server_name = std::string(names[0].data(), names[0].size());
    }
    return listing;
  }

  // The call is refused before it reaches the service; `logged` says so once.
  void ExpectRefusedAtHandshake(const std::shared_ptr<grpc::Channel>& channel,
                                const std::string& logged) {
    // Twice: a second attempt is not news.
    for (int i = 0; i < 2; ++i) {
      EXPECT_EQ(Register(channel, "ml").error_code(), grpc::StatusCode::UNAVAILABLE);
    }
    EXPECT_EQ(service_->answered(), 0);
    // The server notices in a thread of its own.
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (log_.Count(logged) == 0 && absl::Now() < deadline) {
      absl::SleepFor(absl::Milliseconds(1));
    }
    EXPECT_EQ(log_.Count(logged), 1u) << log_.Text();
    EXPECT_GE(handshakes_->failures(), 1u);
  }

  LogCapture log_;
  const TestCa ca_{"test CA"};
  const TestTlsFolder folder_;
  ServerLimits limits_;
  Authorizer authorizer_;
  std::unique_ptr<CertificateWatcher> watcher_;
  std::unique_ptr<AnsweringService> service_;
  HandshakeLog* handshakes_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;

 private:
  static void Hear(gpr_log_func_args* args) {
    if (HandshakeLog* const log = handshake_log.load()) log->Take(args->message);
  }
  static inline std::atomic<HandshakeLog*> handshake_log{nullptr};
  // gRPC's threads may still be about to use one when a test is over.
  static inline std::vector<std::unique_ptr<HandshakeLog>> kept;
};

}  // namespace sparsebalance::security
