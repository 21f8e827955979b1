// A Prometheus of Debian's, started for a test on loopback, and asked over its HTTP API.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"

namespace sparsebalance::testing_support {

class PrometheusServer {
 public:
  // Whether there is one on this machine.
  static bool Installed();

  // Scrapes and evaluates as the configuration file says; stores in a folder `data` beside it.
  // Waits until it answers; a test failure where it does not.
  explicit PrometheusServer(const std::string& config_file);

  int port() const { return port_; }

  // "data" of the answer to GET /api/v1/<path>, with `parameters` as name and value. Where
  // Prometheus refuses: an object with "error" alone.
  nlohmann::json Get(const std::string& path,
                     const std::vector<std::pair<std::string, std::string>>& parameters = {});
  // The result of an instant query; null with an error of the query in `error`.
  nlohmann::json Query(const std::string& expression, std::string* error = nullptr);
  // The value of a query that has one sample; `otherwise` where it has none.
  double Value(const std::string& expression, double otherwise = 0);

  std::string Output() { return process_->Output(); }

 private:
  std::unique_ptr<ChildProcess> process_;
  int port_ = 0;
};

}  // namespace sparsebalance::testing_support
