// What operators will ask, asked of a real Prometheus that scrapes a real training run: every query
// of every panel, variable, annotation, rule and alert.
#include <cstdlib>
#include <fstream>
#include <map>
#include <memory>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"
#include "tests/support/prometheus_server.h"

namespace sparsebalance::e2e {
namespace {

using nlohmann::json;
using testing_support::PrometheusServer;

std::string SourceFolder() {
  const char* folder = std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  return folder == nullptr ? "." : folder;
}

// The port that a worker says it serves its metrics on.
int MetricsPort(ChildProcess& worker) {
  const auto line = worker.WaitForLine("metrics on http://127.0.0.1:");
  if (!line.has_value()) return 0;
  const std::string text = worker.Line(*line);
  return std::stoi(text.substr(text.find("127.0.0.1:") + 10));
}

class MetricsTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!PrometheusServer::Installed()) GTEST_SKIP() << "prometheus is not installed";
  }

  void StartTraining() {
    cluster_.PackData(160, 200, 500);
    cluster_.StartCoordinator();
    // Longer than the test; it is stopped.
    const std::vector<std::string> flags = {
        "--steps",       "1000000", "--audit-every", "5", "--metrics-listen", "127.0.0.1:0",
        "--hidden-size", "96",      "--peak-tflops", "1"};
    one_ = cluster_.StartWorker(2, 1, flags);
    zero_ = cluster_.StartWorker(2, 0, flags);
  }

  // As dashboards/prometheus says, but for the targets and shorter pauses.
  void StartPrometheus() {
    const std::string rules = cluster_.folder() / "rules.yaml";
    std::ostringstream shipped;
    shipped << std::ifstream(SourceFolder() + "/dashboards/prometheus/rules.yaml").rdbuf();
    std::ofstream(rules) << std::regex_replace(shipped.str(), std::regex("interval: \"\\w+\""),
                                               "interval: 1s");
    const std::string path = cluster_.folder() / "prometheus.yaml";
    const auto target = [](int port, const char* node) {
      return absl::StrCat("      - targets: ['127.0.0.1:", port,
                          "']\n        labels: {node: ", node, "}\n");
    };
    std::ofstream(path) << absl::StrCat(
        "global: {scrape_interval: 500ms, evaluation_interval: 1s}\nrule_files: ['", rules,
        "']\nscrape_configs:\n"
        "  - job_name: sparsebalance-coordinator\n    honor_labels: true\n    static_configs:\n",
        target(cluster_.metrics_port(), "node-c"),
        "  - job_name: sparsebalance-worker\n    honor_labels: true\n    static_configs:\n",
        target(MetricsPort(*zero_), "node-0"), target(MetricsPort(*one_), "node-1"));
    prometheus_ = std::make_unique<PrometheusServer>(path);
  }

  // Until there is enough for rates over seconds, and recorded rules were made of it twice.
  void WaitForSamples() {
    const absl::Time deadline = absl::Now() + absl::Minutes(3);
    const auto enough = [&] {
      return prometheus_->Value(
                 "min(count_over_time(sparsebalance_coordinator_job_loss_nats[1m]))") > 12 &&
             prometheus_->Value(
                 "count(count_over_time(sparsebalance_worker_loss_nats[1m]) > 12)") == 2 &&
             Evaluated();
    };
    while (!enough()) {
      ASSERT_LT(absl::Now(), deadline) << prometheus_->Output() << zero_->Output();
      absl::SleepFor(absl::Milliseconds(200));
    }
  }
  // All groups of rules were evaluated.
  bool Evaluated() {
    const json rules = prometheus_->Get("rules");
    if (!rules.contains("groups")) return false;
    for (const json& group : rules.at("groups")) {
      if (group.value("lastEvaluation", "0001").rfind("0001", 0) == 0) return false;
    }
    return true;
  }

  static std::vector<json> Queries() {
    ChildProcess list({"/usr/bin/python3", SourceFolder() + "/tests/dashboards/list_queries.py",
                       "--job", "e2e", "--rate-interval", "5s", "--interval", "1s", "--range",
                       "1m"});
    EXPECT_EQ(list.Wait(), 0) << list.Output();
    std::vector<json> queries;
    for (const absl::string_view line : absl::StrSplit(list.Output(), '\n', absl::SkipEmpty())) {
      queries.push_back(json::parse(line));
    }
    return queries;
  }

  // Why a query may return nothing in a healthy run on CPUs, by id.
  static std::map<std::string, json> Needs() {
    std::ifstream in(SourceFolder() + "/dashboards/needs.json");
    std::map<std::string, json> needs;
    const json file = json::parse(in);
    for (const json& entry : file.at("queries")) needs[entry.at("id")] = entry;
    return needs;
  }

  Cluster cluster_;
  std::unique_ptr<ChildProcess> zero_;
  std::unique_ptr<ChildProcess> one_;
  std::unique_ptr<PrometheusServer> prometheus_;
};

TEST_F(MetricsTest, EveryQueryOfDashboardsRulesAndAlertsIsAnsweredByATrainingRun) {
  StartTraining();
  StartPrometheus();
  ASSERT_FALSE(HasFailure());
  WaitForSamples();

  std::set<std::string> names;
  for (const json& name : prometheus_->Get("label/__name__/values")) names.insert(name);
  const std::map<std::string, json> needs = Needs();
  // What rules record has a colon in its name.
  const std::regex ours("(?:^|[^\\w:])(sparsebalance_\\w+|process_\\w+)");
  std::set<std::string> ids;
  size_t with_data = 0;
  for (const json& query : Queries()) {
    const std::string id = query.at("id");
    const std::string expr = query.at("expr");
    SCOPED_TRACE(absl::StrCat(id, ": ", expr));
    EXPECT_TRUE(ids.insert(id).second) << "two queries have this id";
    std::string error;
    const json result = prometheus_->Query(expr, &error);
    EXPECT_EQ(error, "");
    const auto need = needs.find(id);
    if (need == needs.end()) {
      EXPECT_FALSE(result.empty()) << "no data, and dashboards/needs.json does not say why";
    } else {
      EXPECT_NE(need->second.at("reason"), "");
    }
    with_data += result.empty() ? 0 : 1;
    // Where another program, a GPU or TLS is missing, so are its metrics.
    const bool all_there = need == needs.end() || need->second.at("needs") == "fault";
    for (std::sregex_iterator name(expr.begin(), expr.end(), ours), end; name != end; ++name) {
      // There are no denials without authorization, which plaintext does not have.
      if (!all_there || (*name)[1] == "sparsebalance_coordinator_denied_calls_total") continue;
      EXPECT_TRUE(names.contains((*name)[1])) << (*name)[1] << " is not exposed";
    }
  }
  for (const auto& [id, entry] : needs) EXPECT_TRUE(ids.contains(id)) << id << " is no query";
  EXPECT_GT(with_data, 100u);

  // In a healthy run nothing fires, and every rule is sound.
  const json rules = prometheus_->Get("rules");
  for (const json& group : rules.at("groups")) {
    for (const json& rule : group.at("rules")) {
      EXPECT_EQ(rule.at("health"), "ok") << rule.dump();
      if (rule.at("type") == "alerting") EXPECT_NE(rule.at("state"), "firing") << rule.dump();
    }
  }

  zero_->Signal(SIGTERM);
  EXPECT_EQ(zero_->Wait(), 75) << zero_->Output();
  EXPECT_EQ(one_->Wait(), 75) << one_->Output();
}

TEST_F(MetricsTest, WhatTheWorkersCountIsWhatTheCoordinatorCounts) {
  StartTraining();
  StartPrometheus();
  ASSERT_FALSE(HasFailure());
  WaitForSamples();
  const auto within = [&](const std::string& a, const std::string& b, double share) {
    const double left = prometheus_->Value(a, -1);
    const double right = prometheus_->Value(b, -2);
    EXPECT_NEAR(left, right, share * right) << a << " against " << b;
  };
  // Scrapes are not at one moment: rates are compared, which the run keeps for itself.
  within("sum(rate(sparsebalance_coordinator_job_tokens_total[5s]))",
         "max(rate(sparsebalance_worker_tokens_total[5s]))", 0.5);
  within("sum(rate(sparsebalance_coordinator_job_steps_total[5s]))",
         "max(rate(sparsebalance_worker_step_seconds_count[5s]))", 0.5);
  within("sparsebalance_coordinator_job_loss_nats", "max(sparsebalance_worker_loss_nats)", 0.5);
  EXPECT_GT(prometheus_->Value("max(sparsebalance_worker_mfu_ratio)"), 0);
  EXPECT_LT(prometheus_->Value("max(sparsebalance_worker_mfu_ratio)"), 1);
  EXPECT_GT(prometheus_->Value("max(sparsebalance_worker_attended_flops_total)"), 0);
  zero_->Signal(SIGTERM);
  EXPECT_EQ(zero_->Wait(), 75) << zero_->Output();
  EXPECT_EQ(one_->Wait(), 75) << one_->Output();
}

}  // namespace
}  // namespace sparsebalance::e2e
