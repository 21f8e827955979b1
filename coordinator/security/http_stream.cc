#include "coordinator/security/http_stream.h"

#include <fcntl.h>
#include <netdb.h>
#include <openssl/err.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

// How soon a connection that waits for its peer notices that it should make way.
constexpr int kTickMs = 50;

void NameOf(const sockaddr_storage& address, socklen_t size, std::string& host, int& port) {
  char host_text[NI_MAXHOST] = "";
  char port_text[NI_MAXSERV] = "0";
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host_text, sizeof(host_text),
                  port_text, sizeof(port_text), NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return;
  }
  host = host_text;
  port = static_cast<int>(std::strtol(port_text, nullptr, 10));
}

}  // namespace

HttpStream::HttpStream(socket_t socket, const HttpLimits& limits, const HttpLoad& load)
    : socket_(socket), limits_(limits), load_(load), start_(Clock::now()) {
  fcntl(socket_, F_SETFL, fcntl(socket_, F_GETFL) | O_NONBLOCK);
}

bool HttpStream::MayGoOn() {
  if (!cut_off_.empty()) return false;
  const absl::Duration age = absl::FromChrono(Clock::now() - start_);
  if (load_.stopping) {
    cut_off_ = "the server stops";
  } else if (age >= limits_.connection) {
    cut_off_ = absl::StrCat("not done within ", absl::FormatDuration(limits_.connection));
  } else if (age >= limits_.fair_time && load_.crowded) {
    cut_off_ = absl::StrCat("not done within ", absl::FormatDuration(limits_.fair_time),
                            " while others wait");
  }
  return cut_off_.empty();
}

bool HttpStream::Wait(short events) {
  while (MayGoOn()) {
    pollfd waited = {socket_, events, 0};
    const int ready = poll(&waited, 1, kTickMs);
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
  return false;
}

bool HttpStream::WaitAsTlsWants(int result) {
  switch (SSL_get_error(tls_, result)) {
    case SSL_ERROR_WANT_READ:
      return Wait(POLLIN);
    case SSL_ERROR_WANT_WRITE:
      return Wait(POLLOUT);
    default:
      return false;
  }
}

std::string HttpStream::Accept(SSL* connection, bool* silent) {
  tls_ = connection;
  SSL_set_fd(tls_, socket_);
  *silent = false;
  for (;;) {
    if (!MayGoOn()) return cut_off_;
    ERR_clear_error();
    const int result = SSL_accept(tls_);
    if (result == 1) return "";
    const int error = SSL_get_error(tls_, result);
    if (WaitAsTlsWants(result)) continue;
    if (!cut_off_.empty()) return cut_off_;
    if (error == SSL_ERROR_SYSCALL || error == SSL_ERROR_ZERO_RETURN) {
      *silent = true;
      return "the peer went away";
    }
    const long verified = SSL_get_verify_result(tls_);
    if (verified != X509_V_OK) return X509_verify_cert_error_string(verified);
    std::string reason = TakeOpenSslError();
    // So OpenSSL names a peer that ends the connection in the middle of the handshake.
    *silent = reason == "unexpected eof while reading";
    return reason;
  }
}

ssize_t HttpStream::Receive() {
  for (;;) {
    if (!MayGoOn()) return -1;
    if (tls_ == nullptr) {
      const ssize_t got = recv(socket_, buffer_, sizeof(buffer_), 0);
      if (got >= 0) return got;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !Wait(POLLIN)) return -1;
    } else {
      ERR_clear_error();
      const int got = SSL_read(tls_, buffer_, sizeof(buffer_));
      if (got > 0) return got;
      if (SSL_get_error(tls_, got) == SSL_ERROR_ZERO_RETURN) return 0;
      if (!WaitAsTlsWants(got)) return -1;
    }
  }
}

ssize_t HttpStream::read(char* to, size_t size) {
  if (buffered_from_ == buffered_to_) {
    const ssize_t got = Receive();
    if (got <= 0) return got;
    received_ += static_cast<size_t>(got);
    if (received_ > limits_.request_bytes) {
      cut_off_ = absl::StrCat("the request has more than ", limits_.request_bytes, " bytes");
      return -1;
    }
    buffered_from_ = 0;
    buffered_to_ = static_cast<size_t>(got);
  }
  const size_t taken = std::min(size, buffered_to_ - buffered_from_);
  std::memcpy(to, buffer_ + buffered_from_, taken);
  buffered_from_ += taken;
  return static_cast<ssize_t>(taken);
}

ssize_t HttpStream::write(const char* from, size_t size) {
  if (size == 0) return 0;
  for (;;) {
    if (!MayGoOn()) return -1;
    if (tls_ == nullptr) {
      const ssize_t put = send(socket_, from, size, MSG_NOSIGNAL);
      if (put >= 0) return put;
      if (errno == EINTR) continue;
      if ((errno != EAGAIN && errno != EWOULDBLOCK) || !Wait(POLLOUT)) return -1;
    } else {
      ERR_clear_error();
      const int put = SSL_write(tls_, from, static_cast<int>(std::min<size_t>(size, 1 << 30)));
      if (put > 0) return put;
      if (!WaitAsTlsWants(put)) return -1;
    }
  }
}

void HttpStream::get_remote_ip_and_port(std::string& address, int& port) const {
  sockaddr_storage peer = {};
  socklen_t size = sizeof(peer);
  if (getpeername(socket_, reinterpret_cast<sockaddr*>(&peer), &size) == 0) {
    NameOf(peer, size, address, port);
  }
}

void HttpStream::get_local_ip_and_port(std::string& address, int& port) const {
  sockaddr_storage own = {};
  socklen_t size = sizeof(own);
  if (getsockname(socket_, reinterpret_cast<sockaddr*>(&own), &size) == 0) {
    NameOf(own, size, address, port);
  }
}

}  // namespace sparsebalance::security
