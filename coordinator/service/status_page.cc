#include "coordinator/service/status_page.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/security/http_server.h"

namespace sparsebalance {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";

void AddPages(security::HttpServer& server, StatusPage::Content content) {
  server.Get("/metrics", [metrics = std::move(content.metrics)](const httplib::Request&,
                                                                httplib::Response& response) {
    response.set_content(metrics(), "text/plain; version=0.0.4; charset=utf-8");
  });
  server.Get("/healthz",
             [healthy = std::move(content.healthy), degraded = std::move(content.degraded)](
                 const httplib::Request&, httplib::Response& response) {
               const bool ok = healthy();
               const std::string problem = ok && degraded ? degraded() : "";
               response.status = ok ? 200 : 503;
               response.set_content(!ok               ? "shutting down\n"
                                    : problem.empty() ? "ok\n"
                                                      : absl::StrCat("degraded: ", problem, "\n"),
                                    kText);
             });
  server.Get("/", [overview = std::move(content.overview)](const httplib::Request&,
                                                           httplib::Response& response) {
    response.set_content(overview(), kText);
  });
}

void AddAuthorization(security::HttpServer& server, security::Authorizer* authorizer) {
  server.set_pre_routing_handler(
      [authorizer](const httplib::Request& request, httplib::Response& response) {
        if (request.path == "/healthz") return httplib::Server::HandlerResponse::Unhandled;
        const absl::Status status =
            authorizer->Check(security::IdentityOf(request), security::Method::kStatusPage, "",
                              [&request] { return request.remote_addr; });
        if (status.ok()) return httplib::Server::HandlerResponse::Unhandled;
        response.status = status.code() == absl::StatusCode::kUnauthenticated ? 401 : 403;
        response.set_content(absl::StrCat(std::string(status.message()), "\n"), kText);
        return httplib::Server::HandlerResponse::Handled;
      });
}

}  // namespace

StatusPage::StatusPage(std::unique_ptr<security::HttpServer> server, int port)
    : server_(std::move(server)), port_(port), thread_([this] { server_->listen_after_bind(); }) {
  // stop() has no effect on a server that does not run yet, so nobody may call it before.
  while (!server_->is_running()) std::this_thread::yield();
}

StatusPage::~StatusPage() {
  server_->StopNow();
  thread_.join();
}

absl::StatusOr<std::unique_ptr<StatusPage>> StatusPage::Start(const std::string& host, int port,
                                                              Content content,
                                                              Security protection) {
  if (protection.authorizer != nullptr &&
      (protection.certificates == nullptr || !protection.certificates->current()->has_ca())) {
    return absl::FailedPreconditionError(
        "the status page cannot know who asks without the CA of its clients' certificates");
  }
  auto server = std::make_unique<security::HttpServer>(protection.limits, protection.certificates);
  if (protection.authorizer != nullptr) AddAuthorization(*server, protection.authorizer);
  AddPages(*server, std::move(content));
  const int bound = server->Bind(host, port);
  if (bound < 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot serve metrics on ", host, ":", port, ": ",
        errno == 0 ? "the address cannot be used" : std::generic_category().message(errno)));
  }
  return std::unique_ptr<StatusPage>(new StatusPage(std::move(server), bound));
}

}  // namespace sparsebalance
