#include "coordinator/service/status_page.h"

#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/security/http_server.h"
#include "coordinator/service/page/embedded_files.h"

namespace sparsebalance {
namespace {

constexpr char kText[] = "text/plain; charset=utf-8";
constexpr char kJson[] = "application/json; charset=utf-8";

// Scripts, styles and data from this server alone, whatever a job's name may hold.
constexpr char kContentSecurityPolicy[] =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

const char* ContentTypeOf(std::string_view name) {
  const auto ends = [name](std::string_view end) { return name.ends_with(end); };
  return ends(".html")  ? "text/html; charset=utf-8"
         : ends(".css") ? "text/css; charset=utf-8"
         : ends(".js")  ? "text/javascript; charset=utf-8"
         : ends(".svg") ? "image/svg+xml"
                        : "application/octet-stream";
}

// The same bytes until the program is replaced: asked for again, with the tag, at every load.
void ServeFile(const EmbeddedFile& file, const httplib::Request& request,
               httplib::Response& response) {
  response.set_header("ETag", std::string(file.etag));
  response.set_header("Cache-Control", "no-cache");
  if (request.get_header_value("If-None-Match") == std::string(file.etag)) {
    response.status = 304;
    return;
  }
  response.set_content(file.body.data(), file.body.size(), ContentTypeOf(file.name));
}

void Answer(const PageAnswer& answer, httplib::Response& response) {
  response.status = answer.status;
  response.set_header("Cache-Control", "no-store");
  response.set_content(answer.body, kJson);
}

void AddApi(security::HttpServer& server, const StatusPage::Content& content) {
  for (const auto& [path, ask] :
       {std::pair{"/api/v1/jobs", content.jobs}, {"/api/v1/job", content.job}}) {
    if (!ask) continue;
    server.Get(path, [ask = ask](const httplib::Request& request, httplib::Response& response) {
      Answer(ask(request.params), response);
    });
  }
  server.Get("/api/.*", [](const httplib::Request& request, httplib::Response& response) {
    Answer(PageError(absl::NotFoundError(absl::StrCat("there is no ", request.path,
                                                      "; there are /api/v1/jobs and /api/v1/job"))),
           response);
  });
}

void AddFiles(security::HttpServer& server, const std::function<std::string()>& overview) {
  for (const EmbeddedFile& file : EmbeddedFiles()) {
    if (file.name == "index.html") {
      server.Get("/",
                 [&file, overview](const httplib::Request& request, httplib::Response& response) {
                   response.set_header("Vary", "Accept");
                   if (absl::StrContains(request.get_header_value("Accept"), "text/html")) {
                     ServeFile(file, request, response);
                   } else {
                     response.set_header("Cache-Control", "no-store");
                     response.set_content(overview(), kText);
                   }
                 });
    } else {
      // Names are letters, a dot and underscores: none means anything else as a pattern.
      server.Get(absl::StrCat("/", std::string(file.name)),
                 [&file](const httplib::Request& request, httplib::Response& response) {
                   ServeFile(file, request, response);
                 });
    }
  }
}

void AddPages(security::HttpServer& server, StatusPage::Content content) {
  server.set_default_headers({{"Content-Security-Policy", kContentSecurityPolicy},
                              {"X-Content-Type-Options", "nosniff"},
                              {"Referrer-Policy", "no-referrer"}});
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
  server.Get("/overview.txt",
             [overview = content.overview](const httplib::Request&, httplib::Response& response) {
               response.set_header("Cache-Control", "no-store");
               response.set_content(overview(), kText);
             });
  AddApi(server, content);
  AddFiles(server, content.overview);
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
        if (absl::StartsWith(request.path, "/api/")) {
          Answer(PageError(status), response);
        } else {
          response.set_content(absl::StrCat(std::string(status.message()), "\n"), kText);
        }
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
