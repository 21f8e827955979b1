#include "coordinator/service/status_page.h"

#include <httplib.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

// Scrapers and probes are few; a flood of them must not take the threads of the RPC service.
constexpr size_t kThreads = 2;

}  // namespace

StatusPage::StatusPage(std::unique_ptr<httplib::Server> server, int port)
    : server_(std::move(server)), port_(port), thread_([this] { server_->listen_after_bind(); }) {
  // stop() has no effect on a server that does not run yet, so nobody may call it before.
  while (!server_->is_running()) std::this_thread::yield();
}

StatusPage::~StatusPage() {
  server_->stop();
  thread_.join();
}

absl::StatusOr<std::unique_ptr<StatusPage>> StatusPage::Start(const std::string& host, int port,
                                                              Content content) {
  auto server = std::make_unique<httplib::Server>();
  server->new_task_queue = [] { return new httplib::ThreadPool(kThreads); };
  // The library's own choice, SO_REUSEPORT, would let a second process take the port in silence.
  server->set_socket_options([](socket_t sock) {
    const int yes = 1;
    setsockopt(sock, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes));
  });
  constexpr char kText[] = "text/plain; charset=utf-8";
  server->Get("/metrics", [metrics = std::move(content.metrics)](const httplib::Request&,
                                                                 httplib::Response& response) {
    response.set_content(metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server->Get("/healthz", [healthy = std::move(content.healthy), kText](
                              const httplib::Request&, httplib::Response& response) {
    const bool ok = healthy();
    response.status = ok ? 200 : 503;
    response.set_content(ok ? "ok\n" : "shutting down\n", kText);
  });
  server->Get("/", [overview = std::move(content.overview), kText](const httplib::Request&,
                                                                   httplib::Response& response) {
    response.set_content(overview(), kText);
  });
  errno = 0;
  const int bound = port == 0                          ? server->bind_to_any_port(host)
                    : server->bind_to_port(host, port) ? port
                                                       : -1;
  if (bound < 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve metrics on ", host, ":", port, ": ",
        errno == 0 ? "the address cannot be used" : std::generic_category().message(errno)));
  }
  return std::unique_ptr<StatusPage>(new StatusPage(std::move(server), bound));
}

}  // namespace sparsebalance
