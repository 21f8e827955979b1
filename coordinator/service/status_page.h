// HTTP for scrapers, probes and people: /metrics, /healthz and a plain-text overview at /.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/statusor.h"

namespace httplib {
class Server;
}

namespace sparsebalance {

class StatusPage {
 public:
  struct Content {
    std::function<std::string()> metrics;
    std::function<std::string()> overview;
    std::function<bool()> healthy;  // false: /healthz answers 503
  };

  // Binds and serves from threads of its own. Port 0: any free one. UNAVAILABLE where the address
  // cannot be bound.
  static absl::StatusOr<std::unique_ptr<StatusPage>> Start(const std::string& host, int port,
                                                           Content content);
  ~StatusPage();

  int port() const { return port_; }

 private:
  StatusPage(std::unique_ptr<httplib::Server> server, int port);

  std::unique_ptr<httplib::Server> server_;
  int port_;
  std::thread thread_;
};

}  // namespace sparsebalance
