// A TCP proxy that misbehaves on demand, between real clients and a real server on loopback.
//
//   FaultProxy proxy;                       // listens on a port of its own
//   proxy.SetTarget(server_port);
//   proxy.SetPartitioned(true);             // nothing passes, connections hang
//   proxy.CutOnNext(FaultProxy::Way::kReply);  // the next reply is lost with its connection
#pragma once

#include <array>
#include <deque>
#include <list>
#include <string>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance::chaos {

class FaultProxy {
 public:
  enum class Way { kRequest, kReply };

  FaultProxy();
  ~FaultProxy();
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  int port() const { return port_; }
  std::string address() const;

  // Where new connections are led. 0: nowhere, they are closed at once.
  void SetTarget(int port) ABSL_LOCKS_EXCLUDED(mutex_);

  // Bytes take so much longer, either way, from now on.
  void SetDelay(absl::Duration delay) ABSL_LOCKS_EXCLUDED(mutex_);
  // Nothing is read or written, and new connections are not accepted, until it ends.
  void SetPartitioned(bool partitioned) ABSL_LOCKS_EXCLUDED(mutex_);
  // Closes all connections.
  void CutAll() ABSL_LOCKS_EXCLUDED(mutex_);
  // Of the next connection that carries bytes this way, they are thrown away and it is closed.
  void CutOnNext(Way way) ABSL_LOCKS_EXCLUDED(mutex_);
  // Ends all of it.
  void Heal() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Chunk {
    absl::Time due;
    std::string bytes;
  };
  // Ends 0 and 1 are the client's and the server's; queue i waits to be written to end 1 - i.
  struct Connection {
    std::array<int, 2> ends{-1, -1};
    std::array<std::deque<Chunk>, 2> queues;
    bool closed = false;
  };
  struct Faults {
    int target = 0;
    absl::Duration delay;
    bool partitioned = false;
    bool cut_all = false;
    std::array<bool, 2> cut_next{};
  };

  void Run();
  void Wake();
  Faults Current() ABSL_LOCKS_EXCLUDED(mutex_);
  void Accept(const Faults& faults);
  void Read(Connection& connection, int end, Faults& faults);
  static void Write(Connection& connection, int end);
  static void Close(Connection& connection);

  int listener_ = -1;
  int port_ = 0;
  std::array<int, 2> wake_{-1, -1};    // a pipe
  std::list<Connection> connections_;  // of the thread alone
  absl::Mutex mutex_;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  Faults faults_ ABSL_GUARDED_BY(mutex_);
  std::thread thread_;
};

}  // namespace sparsebalance::chaos
