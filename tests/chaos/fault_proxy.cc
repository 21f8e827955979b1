#include "tests/chaos/fault_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sparsebalance::chaos {
namespace {

// Enough for any gRPC frame train, small enough that a slow reader is felt.
constexpr size_t kMostQueued = size_t{4} << 20;
constexpr int kIdlePollMs = 200;

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

void Unblock(int fd) {
  fcntl(fd, F_SETFL, fcntl(fd, F_GETFL, 0) | O_NONBLOCK);
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
}

size_t Queued(const auto& queue) {
  size_t bytes = 0;
  for (const auto& chunk : queue) bytes += chunk.bytes.size();
  return bytes;
}

}  // namespace

FaultProxy::FaultProxy() {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      listen(listener_, 128) != 0) {
    std::abort();  // without loopback there is no test
  }
  getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size);
  port_ = ntohs(address.sin_port);
  Unblock(listener_);
  if (pipe2(wake_.data(), O_CLOEXEC | O_NONBLOCK) == 0) thread_ = std::thread([this] { Run(); });
}

FaultProxy::~FaultProxy() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  Wake();
  if (thread_.joinable()) thread_.join();
  for (Connection& connection : connections_) Close(connection);
  for (const int fd : {listener_, wake_[0], wake_[1]}) close(fd);
}

std::string FaultProxy::address() const { return absl::StrCat("127.0.0.1:", port_); }

void FaultProxy::Wake() {
  const char byte = 0;
  [[maybe_unused]] const ssize_t written = write(wake_[1], &byte, 1);  // full: it is awake anyway
}

void FaultProxy::SetTarget(int port) {
  {
    absl::MutexLock lock(&mutex_);
    faults_.target = port;
  }
  Wake();
}

void FaultProxy::SetDelay(absl::Duration delay) {
  {
    absl::MutexLock lock(&mutex_);
    faults_.delay = delay;
  }
  Wake();
}

void FaultProxy::SetPartitioned(bool partitioned) {
  {
    absl::MutexLock lock(&mutex_);
    faults_.partitioned = partitioned;
  }
  Wake();
}

void FaultProxy::CutAll() {
  {
    absl::MutexLock lock(&mutex_);
    faults_.cut_all = true;
  }
  Wake();
}

void FaultProxy::CutOnNext(Way way) {
  absl::MutexLock lock(&mutex_);
  faults_.cut_next[way == Way::kRequest ? 0 : 1] = true;
}

void FaultProxy::Heal() {
  {
    absl::MutexLock lock(&mutex_);
    const int target = faults_.target;
    faults_ = Faults();
    faults_.target = target;
  }
  Wake();
}

FaultProxy::Faults FaultProxy::Current() {
  absl::MutexLock lock(&mutex_);
  return faults_;
}

void FaultProxy::Close(Connection& connection) {
  for (int& fd : connection.ends) {
    if (fd >= 0) close(fd);
    fd = -1;
  }
  connection.closed = true;
}

void FaultProxy::Accept(const Faults& faults) {
  while (true) {
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) return;
    const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in target = Loopback(faults.target);
    if (faults.target == 0 ||
        connect(server, reinterpret_cast<sockaddr*>(&target), sizeof(target)) != 0) {
      close(client);
      close(server);
      continue;
    }
    Unblock(client);
    Unblock(server);
    connections_.emplace_back().ends = {client, server};
  }
}

void FaultProxy::Read(Connection& connection, int end, Faults& faults) {
  std::string bytes(size_t{64} << 10, '\0');
  const ssize_t got =
      recv(connection.ends[static_cast<size_t>(end)], bytes.data(), bytes.size(), 0);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (got <= 0) {
    // What is still queued for the other end is lost with the connection, as it may be anywhere.
    Close(connection);
    return;
  }
  if (faults.cut_next[static_cast<size_t>(end)]) {
    {
      absl::MutexLock lock(&mutex_);
      faults_.cut_next[static_cast<size_t>(end)] = false;
    }
    faults.cut_next[static_cast<size_t>(end)] = false;
    Close(connection);
    return;
  }
  bytes.resize(static_cast<size_t>(got));
  connection.queues[static_cast<size_t>(end)].push_back(
      {absl::Now() + faults.delay, std::move(bytes)});
}

void FaultProxy::Write(Connection& connection, int end) {
  std::deque<Chunk>& queue = connection.queues[static_cast<size_t>(1 - end)];
  while (!queue.empty() && queue.front().due <= absl::Now()) {
    std::string& bytes = queue.front().bytes;
    const ssize_t sent =
        send(connection.ends[static_cast<size_t>(end)], bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (errno != EAGAIN && errno != EINTR) Close(connection);
      return;
    }
    bytes.erase(0, static_cast<size_t>(sent));
    if (!bytes.empty()) return;
    queue.pop_front();
  }
}

void FaultProxy::Run() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    Faults faults = Current();
    if (faults.cut_all) {
      for (Connection& connection : connections_) Close(connection);
      absl::MutexLock lock(&mutex_);
      faults_.cut_all = false;
    }
    connections_.remove_if([](const Connection& connection) { return connection.closed; });

    std::vector<pollfd> fds = {{wake_[0], POLLIN, 0}};
    int timeout = kIdlePollMs;
    if (!faults.partitioned) {
      fds.push_back({listener_, POLLIN, 0});
      for (const Connection& connection : connections_) {
        for (size_t end = 0; end < 2; ++end) {
          const std::deque<Chunk>& outgoing = connection.queues[1 - end];
          short events = 0;
          if (Queued(connection.queues[end]) < kMostQueued) events |= POLLIN;
          if (!outgoing.empty()) {
            const absl::Duration left = outgoing.front().due - absl::Now();
            if (left <= absl::ZeroDuration()) {
              events |= POLLOUT;
            } else {
              timeout =
                  std::min<int>(timeout, static_cast<int>(absl::ToInt64Milliseconds(left)) + 1);
            }
          }
          fds.push_back({connection.ends[end], events, 0});
        }
      }
    }
    if (poll(fds.data(), fds.size(), timeout) < 0) continue;
    std::array<char, 64> bytes{};
    while (read(wake_[0], bytes.data(), bytes.size()) > 0) {
    }
    // What was asked for while this thread slept holds for what came in meanwhile.
    const bool looked = !faults.partitioned;
    faults = Current();
    if (!looked || faults.partitioned || faults.cut_all) continue;
    // The connections of this round, before new ones join them.
    size_t next = 2;
    for (Connection& connection : connections_) {
      for (int end = 0; end < 2; ++end) {
        const short happened = fds[next++].revents;
        if (connection.closed) continue;
        if ((happened & POLLOUT) != 0) Write(connection, end);
        if (!connection.closed && (happened & (POLLIN | POLLHUP | POLLERR)) != 0) {
          Read(connection, end, faults);
        }
      }
    }
    if ((fds[1].revents & POLLIN) != 0) Accept(faults);
  }
}

}  // namespace sparsebalance::chaos
