#include "tests/chaos/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>
#include <thread>

#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace sparsebalance::chaos {
namespace {

// Sends back whatever it is sent.
class EchoServer {
 public:
  EchoServer() {
    listener_ = socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 8), 0);
    getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    port_ = ntohs(address.sin_port);
    thread_ = std::thread([this] { Run(); });
  }
  ~EchoServer() {
    shutdown(listener_, SHUT_RDWR);
    thread_.join();
    close(listener_);
  }
  int port() const { return port_; }

 private:
  void Run() {
    while (true) {
      const int fd = accept(listener_, nullptr, nullptr);
      if (fd < 0) return;
      char bytes[256];
      for (ssize_t got = 0; (got = recv(fd, bytes, sizeof(bytes), 0)) > 0;) {
        send(fd, bytes, static_cast<size_t>(got), MSG_NOSIGNAL);
      }
      close(fd);
    }
  }

  int listener_ = -1;
  int port_ = 0;
  std::thread thread_;
};

class Client {
 public:
  explicit Client(int port) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(port));
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  ~Client() { close(fd_); }

  void Send(const std::string& text) { send(fd_, text.data(), text.size(), MSG_NOSIGNAL); }
  // What comes within the time; "closed" where the connection ends.
  std::string Receive(absl::Duration within = absl::Seconds(20)) {
    pollfd poller{fd_, POLLIN, 0};
    if (poll(&poller, 1, static_cast<int>(absl::ToInt64Milliseconds(within))) <= 0) return "";
    char bytes[256];
    const ssize_t got = recv(fd_, bytes, sizeof(bytes), 0);
    return got <= 0 ? "closed" : std::string(bytes, static_cast<size_t>(got));
  }

 private:
  const int fd_;
};

class FaultProxyTest : public testing::Test {
 protected:
  FaultProxyTest() { proxy_.SetTarget(server_.port()); }

  EchoServer server_;
  FaultProxy proxy_;
};

TEST_F(FaultProxyTest, PassesBytesBothWays) {
  Client client(proxy_.port());
  client.Send("hello");
  EXPECT_EQ(client.Receive(), "hello");
}

TEST_F(FaultProxyTest, DelaysBothWays) {
  Client client(proxy_.port());
  proxy_.SetDelay(absl::Milliseconds(80));
  const absl::Time begin = absl::Now();
  client.Send("slow");
  EXPECT_EQ(client.Receive(), "slow");
  EXPECT_GE(absl::Now() - begin, absl::Milliseconds(150));
}

TEST_F(FaultProxyTest, HoldsEverythingBackWhilePartitionedAndDeliversItLater) {
  Client client(proxy_.port());
  client.Send("one");
  EXPECT_EQ(client.Receive(), "one");
  proxy_.SetPartitioned(true);
  client.Send("two");
  EXPECT_EQ(client.Receive(absl::Milliseconds(100)), "");
  proxy_.Heal();
  EXPECT_EQ(client.Receive(), "two");
}

TEST_F(FaultProxyTest, LosesARequestOrAReplyWithItsConnection) {
  for (const auto way : {FaultProxy::Way::kRequest, FaultProxy::Way::kReply}) {
    Client client(proxy_.port());
    client.Send("one");
    EXPECT_EQ(client.Receive(), "one");
    proxy_.CutOnNext(way);
    client.Send("two");
    EXPECT_EQ(client.Receive(), "closed");
  }
  Client client(proxy_.port());
  client.Send("three");
  EXPECT_EQ(client.Receive(), "three");
}

TEST_F(FaultProxyTest, CutsEveryConnection) {
  Client client(proxy_.port());
  client.Send("one");
  EXPECT_EQ(client.Receive(), "one");
  proxy_.CutAll();
  EXPECT_EQ(client.Receive(), "closed");
}

}  // namespace
}  // namespace sparsebalance::chaos
