// What a gRPC server with these parts refuses, survives and says, over real sockets.

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <set>
#include <thread>

#include "coordinator/security/secure_server_fixture.h"
#include "gmock/gmock.h"

namespace sparsebalance::security {
namespace {

using grpc::StatusCode;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

using SecureServer = SecureServerFixture;

// A client that does not speak as it should.
class RawConnection {
 public:
  explicit RawConnection(int port) : socket_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  }
  ~RawConnection() { close(socket_); }
  RawConnection(const RawConnection&) = delete;
  RawConnection& operator=(const RawConnection&) = delete;

  // Says `text` over and over, a byte at a time, until the server hangs up. False: it did not
  // within a minute.
  bool DripUntilClosed(const std::string& text) {
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    for (size_t i = 0; absl::Now() < deadline; ++i) {
      if (!text.empty() && send(socket_, text.data() + i % text.size(), 1, MSG_NOSIGNAL) != 1) {
        return true;
      }
      pollfd waited = {socket_, POLLIN, 0};
      if (poll(&waited, 1, 20) <= 0) continue;
      char answer[512];
      // HTTP/2 settings and the like may come before the end.
      if (recv(socket_, answer, sizeof(answer), 0) <= 0) return true;
    }
    return false;
  }

 private:
  const int socket_;
};

bool LocalhostIsIpv6Too() {
  addrinfo hints = {};
  hints.ai_family = AF_INET6;
  addrinfo* found = nullptr;
  if (getaddrinfo("localhost", nullptr, &hints, &found) != 0) return false;
  freeaddrinfo(found);
  return true;
}

TEST_F(SecureServer, AnswersANodeInItsNamespace) {
  StartServer();
  const auto channel = Connect(Node());
  const grpc::Status status = Register(channel, "ml");
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(List(channel).status.ok());
  EXPECT_EQ(service_->answered(), 2);
  EXPECT_EQ(log_.Count("warning"), 0u) << log_.Text();
}

TEST_F(SecureServer, RefusesAClientWithoutACertificate) {
  StartServer();
  ExpectRefusedAtHandshake(Connect(TestIdentity()), "a client showed no certificate");
}

TEST_F(SecureServer, RefusesAnExpiredCertificate) {
  StartServer();
  ExpectRefusedAtHandshake(Connect(ca_.Issue({.uris = {"spiffe://c/ns/ml/sa/trainer"},
                                              .not_before = absl::Now() - absl::Hours(2),
                                              .not_after = absl::Now() - absl::Hours(1)})),
                           "a peer's certificate has expired or is not of a CA known here");
}

TEST_F(SecureServer, RefusesACertificateOfAnotherCa) {
  StartServer();
  const TestCa other("other CA");
  ExpectRefusedAtHandshake(Connect(other.Issue({.uris = {"spiffe://c/ns/ml/sa/trainer"}})),
                           "a peer's certificate has expired or is not of a CA known here");
}

TEST_F(SecureServer, RefusesPlaintext) {
  StartServer();
  const auto channel = ConnectWith(grpc::InsecureChannelCredentials(), address());
  EXPECT_EQ(Register(channel, "ml").error_code(), StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_->answered(), 0);
}

TEST_F(SecureServer, AClientRefusesAServerOfAnotherCa) {
  StartServer();
  const TestCa other("other CA");
  EXPECT_EQ(Register(Connect(Node(), other.certificate()), "ml").error_code(),
            StatusCode::UNAVAILABLE);
  EXPECT_EQ(service_->answered(), 0);
}

TEST_F(SecureServer, RefusesANodeInAnotherNamespaceAndSaysSoOnce) {
  StartServer();
  const auto channel = Connect(Node("vision"));
  for (int i = 0; i < 5; ++i) {
    const grpc::Status status = Register(channel, "ml");
    EXPECT_EQ(status.error_code(), StatusCode::PERMISSION_DENIED);
    EXPECT_THAT(status.error_message(),
                AllOf(HasSubstr("uri:spiffe://c/ns/vision/sa/trainer may not call RegisterJob"),
                      HasSubstr("namespace 'ml'")));
  }
  EXPECT_EQ(service_->answered(), 0);
  EXPECT_EQ(log_.Count("may not call RegisterJob"), 1u);
  EXPECT_EQ(log_.Count("denied to ipv4:127.0.0.1:"), 1u);
}

TEST_F(SecureServer, RefusesAReaderThatWantsToChangeSomething) {
  StartServer();
  const auto channel = Connect(Reader());
  EXPECT_EQ(Register(channel, "ml").error_code(), StatusCode::PERMISSION_DENIED);
  EXPECT_EQ(service_->answered(), 0);
  EXPECT_TRUE(List(channel).status.ok());
}

TEST_F(SecureServer, ACertificateWithoutANameIsNobody) {
  StartServer();
  EXPECT_EQ(Register(Connect(ca_.Issue({.common_name = "spiffe://c/ns/ml/sa/trainer"})), "ml")
                .error_code(),
            StatusCode::UNAUTHENTICATED);
}

TEST_F(SecureServer, ARotationUnderLoadBreaksNothing) {
  StartServer();
  const TestIdentity node = Node();
  const auto old_channel = Connect(node);
  ASSERT_EQ(List(old_channel).server_name, "first");

  grpc::Status watched(StatusCode::UNKNOWN, "not ended");
  std::thread watching([&] {
    v1::WatchJobResponse response;
    grpc::ClientContext context;
    SetDeadline(context);
    watched = Stub(old_channel).WatchJob(&context, v1::WatchJobRequest(), &response);
  });
  service_->WaitForWatchers(1);
  std::atomic<bool> done{false};
  std::atomic<int> calls{0};
  std::atomic<int> failures{0};
  std::thread calling([&] {
    while (!done) {
      if (!Register(old_channel, "ml").ok()) ++failures;
      ++calls;
    }
  });
  const auto more_calls = [&] {
    const int before = calls;
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (calls < before + 20 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  };
  more_calls();

  folder_.Write(ca_.IssueServer("second"), ca_.certificate());
  watcher_->CheckNow();
  // New connections see the new certificate, each time.
  for (int i = 0; i < 5; ++i) EXPECT_EQ(List(Connect(node)).server_name, "second");
  // The old connection goes on as it was.
  more_calls();
  EXPECT_EQ(List(old_channel).server_name, "first");

  done = true;
  calling.join();
  service_->ReleaseWatchers();
  watching.join();
  EXPECT_TRUE(watched.ok()) << watched.error_message();
  EXPECT_EQ(failures, 0);
  EXPECT_EQ(handshakes_->failures(), 0u);
}

TEST_F(SecureServer, ABadRotationLeavesTheOldCertificateInUse) {
  StartServer();
  const TestIdentity node = Node();
  const TestIdentity second = ca_.IssueServer("second");
  folder_.Write("tls.key", second.key);
  for (int i = 0; i < 3; ++i) watcher_->CheckNow();
  for (int i = 0; i < 3; ++i) EXPECT_EQ(List(Connect(node)).server_name, "first");
  EXPECT_EQ(log_.Count("TLS files not taken up"), 1u);
  folder_.Write("tls.crt", second.certificate);
  watcher_->CheckNow();
  EXPECT_EQ(List(Connect(node)).server_name, "second");
}

TEST_F(SecureServer, ACaThatIsTakenAwayCountsForNewConnections) {
  StartServer();
  const TestCa next("next CA");
  const TestIdentity old_node = Node();
  const TestIdentity new_node = next.Issue({.uris = {"spiffe://c/ns/ml/sa/trainer"}});
  const auto old_channel = Connect(old_node);
  EXPECT_TRUE(List(old_channel).status.ok());
  EXPECT_FALSE(List(Connect(new_node)).status.ok());

  folder_.Write("ca.crt", ca_.certificate() + next.certificate());
  watcher_->CheckNow();
  EXPECT_TRUE(List(Connect(old_node)).status.ok());
  EXPECT_TRUE(List(Connect(new_node)).status.ok());

  folder_.Write("ca.crt", next.certificate());
  watcher_->CheckNow();
  EXPECT_FALSE(List(Connect(old_node)).status.ok());
  EXPECT_TRUE(List(Connect(new_node)).status.ok());
  // What is open stays open; ServerLimits::max_connection_age ends it.
  EXPECT_TRUE(List(old_channel).status.ok());
}

TEST_F(SecureServer, ConnectionsAreOpenedAnewWhenTheyAreOldWithoutAFailedCall) {
  limits_.max_connection_age = absl::Milliseconds(100);
  limits_.max_connection_age_grace = absl::Seconds(30);
  StartServer();
  const auto channel = Connect(Node());
  std::set<std::string> connections;
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (connections.size() < 3 && absl::Now() < deadline) {
    const Listing listing = List(channel);
    ASSERT_TRUE(listing.status.ok()) << listing.status.error_message();
    connections.insert(listing.connection);
  }
  EXPECT_EQ(connections.size(), 3u);
}

TEST_F(SecureServer, AnOversizedMessageIsRefusedAndTheConnectionLives) {
  StartServer();
  const auto channel = Connect(Node());
  const std::string connection = List(channel).connection;
  EXPECT_EQ(Register(channel, std::string(100 * 1024, 'x')).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  const Listing after = List(channel);
  EXPECT_TRUE(after.status.ok()) << after.status.error_message();
  EXPECT_EQ(after.connection, connection);
}

// They may cost the connection, but only the sender's.
TEST_F(SecureServer, OversizedHeadersAreRefusedAndOthersAreServed) {
  StartServer();
  const auto other = Connect(Node());
  ASSERT_TRUE(List(other).status.ok());
  const auto channel = Connect(Node());
  grpc::ClientContext context;
  SetDeadline(context);
  context.AddMetadata("x-filler", std::string(32 * 1024, 'x'));
  v1::ListJobsResponse response;
  const grpc::Status refused = Stub(channel).ListJobs(&context, v1::ListJobsRequest(), &response);
  EXPECT_EQ(refused.error_code(), StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_EQ(service_->answered(), 1);
  EXPECT_TRUE(List(other).status.ok());
}

TEST_F(SecureServer, SlowLorisesAreCutOffWhileOthersAreServed) {
  limits_.handshake = absl::Milliseconds(500);
  StartServer();
  const auto channel = Connect(Node());
  ASSERT_TRUE(List(channel).status.ok());
  // The beginning of a TLS record that is said to hold 16 KiB.
  const std::string endless("\x16\x03\x01\x40\x00\x01\x00\x3f\xfc", 9);
  std::atomic<int> cut_off{0};
  std::vector<std::thread> lorises;
  for (int i = 0; i < 20; ++i) {
    lorises.emplace_back([&, i] {
      RawConnection connection(port_);
      if (connection.DripUntilClosed(i % 2 == 0 ? endless : "")) ++cut_off;
    });
  }
  for (int i = 0; i < 20; ++i) EXPECT_TRUE(List(Connect(Node())).status.ok());
  for (std::thread& loris : lorises) loris.join();
  EXPECT_EQ(cut_off, 20);
  EXPECT_TRUE(List(channel).status.ok());
}

TEST_F(SecureServer, AHostNameWithSeveralAddressesIsServedOnEach) {
  StartServer("localhost");
  EXPECT_EQ(List(Connect(Node())).server_name, "first");
  folder_.Write(ca_.IssueServer("second"), ca_.certificate());
  watcher_->CheckNow();
  EXPECT_EQ(List(Connect(Node())).server_name, "second");
  if (!LocalhostIsIpv6Too()) GTEST_SKIP() << "localhost has one address here";
  EXPECT_EQ(List(Connect(Node(), ca_.certificate(), absl::StrCat("[::1]:", port_), "localhost"))
                .server_name,
            "second");
}

TEST_F(SecureServer, NothingSecretIsLogged) {
  StartServer();
  const TestIdentity node = Node("vision");
  EXPECT_FALSE(Register(Connect(node), "ml").ok());
  EXPECT_THAT(log_.Text(), HasSubstr("may not call"));
  EXPECT_THAT(log_.Text(), Not(HasSubstr("PRIVATE KEY")));
  for (const std::string& key : {node.key, watcher_->current()->key_pem()}) {
    for (size_t from = 0; from + 20 < key.size(); from += 20) {
      EXPECT_THAT(log_.Text(), Not(HasSubstr(key.substr(from, 20))));
    }
  }
}

TEST(ServerCredentials, NeedACertificateAndACa) {
  LogCapture log;
  const TestCa ca("test CA");
  const TestTlsFolder folder;
  TlsFiles files = folder.Write(ca.IssueServer(), ca.certificate());
  files.ca.clear();
  const auto watcher = CertificateWatcher::Start(files, {});
  ASSERT_TRUE(watcher.ok()) << watcher.status();
  EXPECT_EQ(MakeServerCredentials(watcher->get()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sparsebalance::security
