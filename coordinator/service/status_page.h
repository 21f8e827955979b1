// HTTP or HTTPS for scrapers, probes and people: /metrics, /healthz, a page for browsers at / with
// the JSON it reads under /api/v1 (page_api.h), and an overview as plain text at /overview.txt,
// which / gives as well to clients that do not ask for HTML, such as curl.
//
// The page loads nothing from anywhere else, and its headers forbid it to.
//
// With certificates and their CA, every connection needs a client certificate, /healthz included:
// probes that have none use the health server (health_server.h). With an authorizer, all pages but
// /healthz need the role reader or operator for every namespace, because they show every one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/status/statusor.h"
#include "coordinator/security/authorizer.h"
#include "coordinator/security/certificate_watcher.h"
#include "coordinator/security/http_limits.h"
#include "coordinator/service/page_api.h"

namespace sparsebalance {

namespace security {
class HttpServer;
}

class StatusPage {
 public:
  struct Content {
    std::function<std::string()> metrics;
    std::function<std::string()> overview;
    std::function<bool()> healthy;  // false: /healthz answers 503
    // What does not work although the process serves; empty: nothing. /healthz says so and answers
    // 200 all the same: a new process would not mend it. May be null.
    std::function<std::string()> degraded;
    // For /api/v1/jobs and /api/v1/job. Null: there is no such page.
    std::function<PageAnswer(const PageApi::Parameters&)> jobs;
    std::function<PageAnswer(const PageApi::Parameters&)> job;
  };
  struct Security {
    security::CertificateWatcher* certificates = nullptr;  // nullptr: plaintext
    security::Authorizer* authorizer = nullptr;            // nullptr: whoever can connect may read
    security::HttpLimits limits;
  };

  // Binds and serves from threads of its own. Port 0: any free one. UNAVAILABLE where the address
  // cannot be bound; FAILED_PRECONDITION for an authorizer without a CA, which could only refuse.
  // What `protection` points to outlives the page.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const std::string& host, int port,
                                                           Content content, Security protection);
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const std::string& host, int port,
                                                           Content content) {
    return Start(host, port, std::move(content), Security());
  }
  ~StatusPage();

  int port() const { return port_; }

 private:
  StatusPage(std::unique_ptr<security::HttpServer> server, int port);

  std::unique_ptr<security::HttpServer> server_;
  int port_;
  std::thread thread_;
};

}  // namespace sparsebalance
