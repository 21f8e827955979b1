#include "coordinator/security/http_server.h"

#include <spdlog/spdlog.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <deque>
#include <functional>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "coordinator/security/http_stream.h"

namespace sparsebalance::security {
namespace {

// Set while a connection is handed over only to be closed: httplib has no other way of refusing
// one.
thread_local bool refusing = false;

class BoundedPool : public httplib::TaskQueue {
 public:
  BoundedPool(size_t threads, size_t max_waiting, std::shared_ptr<HttpLoad> load)
      : max_waiting_(max_waiting), load_(std::move(load)) {
    for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this] { Work(); });
  }

  void enqueue(std::function<void()> connection) override {
    {
      absl::MutexLock lock(&mutex_);
      if (waiting_.size() < max_waiting_ + idle_) {
        waiting_.push_back(std::move(connection));
        Note();
        return;
      }
    }
    refusing = true;
    connection();
    refusing = false;
  }

  void shutdown() override {
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
    }
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  void Work() {
    const auto called = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
      return stopping_ || !waiting_.empty();
    };
    for (;;) {
      std::function<void()> connection;
      {
        absl::MutexLock lock(&mutex_);
        ++idle_;
        Note();
        mutex_.Await(absl::Condition(&called));
        --idle_;
        if (waiting_.empty()) return;
        connection = std::move(waiting_.front());
        waiting_.pop_front();
        Note();
      }
      connection();
    }
  }

  void Note() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { load_->crowded = waiting_.size() > idle_; }

  const size_t max_waiting_;
  const std::shared_ptr<HttpLoad> load_;
  absl::Mutex mutex_;
  std::deque<std::function<void()>> waiting_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace

HttpServer::HttpServer(const HttpLimits& limits, CertificateWatcher* certificates)
    : limits_(limits),
      certificates_(certificates == nullptr ? nullptr : certificates->NewReader()),
      load_(std::make_shared<HttpLoad>()),
      log_limiter_(absl::Minutes(1), 64) {
  new_task_queue = [this] { return new BoundedPool(limits_.threads, limits_.waiting, load_); };
  set_payload_max_length(limits_.request_bytes);
  // The library's own choice, SO_REUSEPORT, would let a second process take the port in silence.
  set_socket_options([](socket_t socket) {
    const int yes = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  // The library would put the exception's text into a header.
  set_exception_handler([](const httplib::Request&, httplib::Response& response,
                           std::exception_ptr) { response.status = 500; });
}

HttpServer::~HttpServer() = default;

int HttpServer::Bind(const std::string& host, int port) {
  errno = 0;
  const int bound = port == 0 ? bind_to_any_port(host) : bind_to_port(host, port) ? port : -1;
  // The library lets five connections wait to be accepted. One more has its first packet dropped
  // and tries again a second later, which a few slow clients could make others do.
  if (bound > 0) ::listen(svr_sock_, SOMAXCONN);
  return bound;
}

void HttpServer::StopNow() {
  load_->stopping = true;
  stop();
}

SslPtr HttpServer::NewTlsConnection() {
  absl::MutexLock lock(&mutex_);
  if (const auto material = certificates_->TakeNew()) {
    auto context = MakeServerContext(*material);
    if (context.ok()) {
      context_ = *std::move(context);
    } else {
      spdlog::error("HTTPS: {}", std::string(context.status().message()));
    }
  }
  return SslPtr(context_ == nullptr ? nullptr : SSL_new(context_.get()));
}

void HttpServer::Log(const std::string& event) {
  const auto unsaid = log_limiter_.Admit(event, absl::Now());
  if (!unsaid) return;
  spdlog::warn("HTTP{}: {}{}", certificates_ == nullptr ? "" : "S", event,
               *unsaid == 0 ? std::string()
                            : absl::StrCat("; ", *unsaid, " more like it since the last line"));
}

bool HttpServer::process_and_close_socket(socket_t socket) {
  const bool served = Serve(socket);
  ::shutdown(socket, SHUT_RDWR);
  ::close(socket);
  return served;
}

bool HttpServer::Serve(socket_t socket) {
  HttpStream stream(socket, limits_, *load_);
  std::string address;
  int port = 0;
  if (refusing) {
    Log(absl::StrCat("connections refused: ", limits_.threads, " are served and ", limits_.waiting,
                     " wait already"));
    return false;
  }
  stream.get_remote_ip_and_port(address, port);
  SslPtr tls;
  if (certificates_ != nullptr) {
    tls = NewTlsConnection();
    if (tls == nullptr) return false;
    bool silent = false;
    if (const std::string problem = stream.Accept(tls.get(), &silent); !problem.empty()) {
      if (!silent && !load_->stopping)
        Log(absl::StrCat("TLS handshake with ", address, " refused: ", problem));
      return false;
    }
  }
  bool closed = false;
  const bool served =
      process_request(stream, /*close_connection=*/true, closed,
                      [&tls](httplib::Request& request) { request.ssl = tls.get(); });
  if (!stream.cut_off().empty()) {
    if (!load_->stopping)
      Log(absl::StrCat("connection from ", address, " cut off: ", stream.cut_off()));
    return false;
  }
  if (tls != nullptr) SSL_shutdown(tls.get());
  return served;
}

PeerIdentity IdentityOf(const httplib::Request& request) {
  if (request.ssl == nullptr || SSL_get_verify_result(request.ssl) != X509_V_OK) return {};
  const X509Ptr certificate(SSL_get1_peer_certificate(request.ssl));
  return certificate == nullptr ? PeerIdentity() : IdentityOf(certificate.get());
}

}  // namespace sparsebalance::security
