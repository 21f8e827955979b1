// One connection as httplib sees it, with a deadline for all of it. Internal to http_server.cc.
#pragma once

#include <httplib.h>
#include <openssl/ssl.h>

#include <atomic>
#include <chrono>
#include <string>

#include "coordinator/security/http_server.h"

namespace sparsebalance::security {

// What connections know of each other.
struct HttpLoad {
  std::atomic<bool> crowded{false};  // a connection waits and every thread is taken
  std::atomic<bool> stopping{false};
};

class HttpStream : public httplib::Stream {
 public:
  // Makes `socket` non-blocking and leaves its closing to the caller.
  HttpStream(socket_t socket, const HttpLimits& limits, const HttpLoad& load);

  // Before reading and writing, for HTTPS. Empty or why it failed; `silent` where the peer just
  // went away, as port scanners and TCP probes do.
  std::string Accept(SSL* connection, bool* silent);

  // Empty, or why the connection was ended before its time.
  const std::string& cut_off() const { return cut_off_; }

  bool is_readable() const override { return cut_off_.empty(); }
  bool is_writable() const override { return cut_off_.empty(); }
  // -1: at an end, for whatever reason; 0: the peer has no more to say.
  ssize_t read(char* to, size_t size) override;
  ssize_t write(const char* from, size_t size) override;
  void get_remote_ip_and_port(std::string& address, int& port) const override;
  void get_local_ip_and_port(std::string& address, int& port) const override;
  socket_t socket() const override { return socket_; }

 private:
  using Clock = std::chrono::steady_clock;

  // Whether the connection may go on; notes in cut_off_ why not.
  bool MayGoOn();
  // Waits until the socket is ready for `events` (poll). False: the connection is at its end.
  bool Wait(short events);
  // After a call of OpenSSL that gave `result`: whether to try again.
  bool WaitAsTlsWants(int result);
  ssize_t Receive();

  const socket_t socket_;
  const HttpLimits& limits_;
  const HttpLoad& load_;
  const Clock::time_point start_;
  SSL* tls_ = nullptr;
  std::string cut_off_;
  size_t received_ = 0;
  // httplib reads headers byte by byte.
  char buffer_[4096];
  size_t buffered_from_ = 0;
  size_t buffered_to_ = 0;
};

}  // namespace sparsebalance::security
