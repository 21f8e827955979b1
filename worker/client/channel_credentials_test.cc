// The client's side of TLS, against a real server.

#include "worker/client/channel_credentials.h"

#include "coordinator/security/secure_server_fixture.h"
#include "gmock/gmock.h"
#include "worker/client/coordinator_client.h"

namespace sparsebalance {
namespace {

using security::TestIdentity;
using testing::AllOf;
using testing::HasSubstr;

class ChannelCredentialsTest : public security::SecureServerFixture {
 protected:
  ChannelSecurity Files(const TestIdentity& identity) {
    const security::TlsFiles files = client_folder_.Write(identity, ca_.certificate());
    ChannelSecurity settings;
    settings.ca = files.ca;
    settings.certificate = files.certificate;
    settings.key = files.key;
    settings.refresh = absl::Hours(1);  // tests look at the files themselves
    return settings;
  }
  std::shared_ptr<ClientTls> Load(const ChannelSecurity& settings) {
    auto tls = ClientTls::Load(settings);
    EXPECT_TRUE(tls.ok()) << tls.status();
    return *std::move(tls);
  }
  absl::Status Register(CoordinatorClient& client, const std::string& name_space) {
    v1::RegisterJobRequest request;
    request.mutable_spec()->mutable_job()->set_namespace_(name_space);
    return client.RegisterJob(request, absl::Seconds(60)).status();
  }

  const security::TestTlsFolder client_folder_;
};

TEST_F(ChannelCredentialsTest, AClientShowsItsCertificate) {
  StartServer();
  CoordinatorClient client(address(), Load(Files(Node())));
  EXPECT_TRUE(Register(client, "ml").ok());
  EXPECT_EQ(Register(client, "vision").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ChannelCredentialsTest, ARotatedCertificateIsShownFromTheNextCallOn) {
  StartServer();
  const auto tls = Load(Files(Node("ml")));
  CoordinatorClient client(address(), tls);
  EXPECT_TRUE(Register(client, "ml").ok());
  EXPECT_EQ(Register(client, "vision").code(), absl::StatusCode::kPermissionDenied);
  Files(Node("vision"));
  tls->watcher().CheckNow();
  EXPECT_EQ(tls->version(), 1u);
  EXPECT_TRUE(Register(client, "vision").ok());
  EXPECT_EQ(Register(client, "ml").code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(ChannelCredentialsTest, ABadRotationLeavesTheClientAsItWas) {
  StartServer();
  const auto tls = Load(Files(Node()));
  CoordinatorClient client(address(), tls);
  client_folder_.Write("tls.key", Node().key);
  for (int i = 0; i < 3; ++i) tls->watcher().CheckNow();
  EXPECT_EQ(tls->version(), 0u);
  EXPECT_TRUE(Register(client, "ml").ok());
}

TEST_F(ChannelCredentialsTest, TheServersNameMustBeInItsCertificate) {
  folder_.Write(ca_.Issue({.dns = {"coordinator.example.org"}}), ca_.certificate());
  StartServer();
  ChannelSecurity settings = Files(Node());
  CoordinatorClient wrong(address(), Load(settings));
  EXPECT_EQ(Register(wrong, "ml").code(), absl::StatusCode::kUnavailable);
  settings.server_name_override = "coordinator.example.org";
  CoordinatorClient right(address(), Load(settings));
  const absl::Status status = Register(right, "ml");
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(ChannelCredentialsTest, WithoutACaThereIsNoTls) {
  EXPECT_EQ(ClientTls::Load({}).status().code(), absl::StatusCode::kInvalidArgument);
  ChannelSecurity settings = Files(Node());
  settings.key = "/nowhere.key";
  EXPECT_EQ(ClientTls::Load(settings).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(ChannelCredentialsTest, PlaintextToOtherMachinesMustBeAskedFor) {
  for (const char* here : {"127.0.0.1:7070", "localhost:7070", "[::1]:7070"}) {
    EXPECT_TRUE(CheckChannelSecurity(here, {}, /*insecure=*/false).ok()) << here;
  }
  for (const char* there :
       {"10.0.0.1:7070", "coordinator:7070", "127.example.org:7070", "[2001:db8::1]:7070"}) {
    const absl::Status status = CheckChannelSecurity(there, {}, /*insecure=*/false);
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << there;
    EXPECT_THAT(std::string(status.message()), AllOf(HasSubstr(there), HasSubstr("--insecure")));
  }
  EXPECT_EQ(log_.Count("warning"), 0u);
  EXPECT_TRUE(CheckChannelSecurity("10.0.0.1:7070", {}, /*insecure=*/true).ok());
  EXPECT_EQ(log_.Count("warning calling 10.0.0.1:7070 in plaintext"), 1u);
  EXPECT_TRUE(CheckChannelSecurity("10.0.0.1:7070", Files(Node()), /*insecure=*/false).ok());
}

}  // namespace
}  // namespace sparsebalance
