#include "tests/support/prometheus_server.h"

#include <filesystem>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "httplib.h"
#include "tests/support/process_sockets.h"

namespace sparsebalance::testing_support {
namespace {

constexpr char kProgram[] = "/usr/bin/prometheus";

}  // namespace

bool PrometheusServer::Installed() { return std::filesystem::exists(kProgram); }

PrometheusServer::PrometheusServer(const std::string& config_file) {
  const std::filesystem::path folder = std::filesystem::path(config_file).parent_path();
  process_ = std::make_unique<ChildProcess>(std::vector<std::string>{
      kProgram, "--config.file=" + config_file, "--storage.tsdb.path=" + (folder / "data").string(),
      "--web.listen-address=127.0.0.1:0", "--log.level=warn"});
  const absl::Time deadline = absl::Now() + absl::Minutes(2);
  while (absl::Now() < deadline) {
    for (const ProcessSocket& socket : ProcessSockets(process_->pid())) {
      if (!socket.listening) continue;
      httplib::Client client("127.0.0.1", socket.local_port);
      const httplib::Result ready = client.Get("/-/ready");
      if (ready && ready->status == 200) {
        port_ = socket.local_port;
        return;
      }
    }
    absl::SleepFor(absl::Milliseconds(20));
  }
  ADD_FAILURE() << "Prometheus does not answer:\n" << process_->Output();
}

nlohmann::json PrometheusServer::Get(
    const std::string& path, const std::vector<std::pair<std::string, std::string>>& parameters) {
  httplib::Client client("127.0.0.1", port_);
  client.set_read_timeout(60);
  httplib::Params query;
  for (const auto& [name, value] : parameters) query.emplace(name, value);
  const httplib::Result answer = client.Get(("/api/v1/" + path).c_str(), query, httplib::Headers());
  if (!answer) {
    return {{"error", "no answer of Prometheus: " + httplib::to_string(answer.error())}};
  }
  const nlohmann::json body = nlohmann::json::parse(answer->body, nullptr, false);
  if (body.is_discarded() || body.value("status", "") != "success") {
    return {{"error", body.is_object() ? body.value("error", answer->body) : answer->body}};
  }
  return body.at("data");
}

nlohmann::json PrometheusServer::Query(const std::string& expression, std::string* error) {
  const nlohmann::json data = Get("query", {{"query", expression}});
  if (data.contains("error")) {
    if (error != nullptr) *error = data.at("error").get<std::string>();
    return nullptr;
  }
  return data.at("result");
}

double PrometheusServer::Value(const std::string& expression, double otherwise) {
  const nlohmann::json result = Query(expression);
  if (!result.is_array() || result.empty()) return otherwise;
  const nlohmann::json& sample = result.at(0);
  // A scalar is the pair itself.
  const nlohmann::json& value = sample.is_object() ? sample.at("value").at(1) : result.at(1);
  return std::stod(value.get<std::string>());
}

}  // namespace sparsebalance::testing_support
