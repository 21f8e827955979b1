#include "coordinator/service/metrics.h"

#include <sstream>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/metrics/process_metrics.h"
#include "coordinator/service/job_metrics.h"
#include "prometheus/gauge.h"
#include "prometheus/text_serializer.h"

namespace sparsebalance {
namespace {

constexpr char kPrefix[] = "sparsebalance_coordinator_";

using Bounds = prometheus::Histogram::BucketBoundaries;
const Bounds kPlanSeconds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 5};
const Bounds kStoreSeconds = {0.0005, 0.001, 0.002, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5};
const Bounds kBarrierSeconds = {0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60};

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                       const std::string& name,
                                                       const std::string& help) {
  return prometheus::BuildCounter().Name(kPrefix + name).Help(help).Register(registry);
}

prometheus::Family<prometheus::Histogram>& Histograms(prometheus::Registry& registry,
                                                      const std::string& name,
                                                      const std::string& help) {
  return prometheus::BuildHistogram().Name(kPrefix + name).Help(help).Register(registry);
}

prometheus::MetricFamily Family(const std::string& name, const std::string& help,
                                prometheus::MetricType type) {
  prometheus::MetricFamily family;
  family.name = kPrefix + name;
  family.help = help;
  family.type = type;
  return family;
}

prometheus::MetricFamily Gauge(const std::string& name, const std::string& help, double value) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Gauge);
  family.metric.emplace_back().gauge.value = value;
  return family;
}

prometheus::MetricFamily Counter(const std::string& name, const std::string& help, uint64_t value) {
  prometheus::MetricFamily family = Family(name, help, prometheus::MetricType::Counter);
  family.metric.emplace_back().counter.value = static_cast<double>(value);
  return family;
}

// What is read of the process at each scrape.
void AddProcessFamilies(const CoordinatorMetrics::Snapshot& snapshot,
                        std::vector<prometheus::MetricFamily>& families) {
  families.push_back(Gauge("leader_epoch",
                           "Highest leader epoch of the jobs that are answered for.",
                           static_cast<double>(snapshot.leader_epoch)));
  families.push_back(Gauge("planner_queued", "Plans that wait for a thread.",
                           static_cast<double>(snapshot.planner.queued)));
  families.push_back(Gauge("planner_running", "Plans that are being made.",
                           static_cast<double>(snapshot.planner.running)));
  families.push_back(Gauge("planner_oldest_wait_seconds",
                           "How long the plan that has waited longest has waited.",
                           absl::ToDoubleSeconds(snapshot.planner.oldest_wait)));
  families.push_back(Gauge("calls", "Calls under way, waiting ones included.",
                           static_cast<double>(snapshot.calls)));
  prometheus::MetricFamily shed =
      Family("shed_calls_total", "Calls refused because of overload, by what they are for.",
             prometheus::MetricType::Counter);
  constexpr const char* kClasses[] = {"liveness", "training", "other"};
  for (size_t i = 0; i < snapshot.shed.size(); ++i) {
    prometheus::ClientMetric& metric = shed.metric.emplace_back();
    metric.label.push_back({"class", kClasses[i]});
    metric.counter.value = static_cast<double>(snapshot.shed[i]);
  }
  families.push_back(std::move(shed));
  families.push_back(Gauge("claims_alive", "1 where the process may answer for jobs.",
                           snapshot.claims_alive ? 1 : 0));
  families.push_back(Gauge("store_answers", "1 where the store took what was last written.",
                           snapshot.store_answers ? 1 : 0));
  if (!snapshot.certificate_not_after) return;
  families.push_back(Gauge(
      "certificate_expiry_timestamp_seconds", "When the certificate in use, or its chain, ends.",
      absl::ToDoubleSeconds(*snapshot.certificate_not_after - absl::UnixEpoch())));
  families.push_back(Counter("certificate_reload_failures_total",
                             "New certificates that could not be used.",
                             snapshot.certificate_failures));
  families.push_back(Counter("authorization_reload_failures_total",
                             "New authorization files that could not be used.",
                             snapshot.rule_failures));
}

}  // namespace

const char* GrpcCodeName(grpc::StatusCode code) {
  static constexpr const char* kNames[] = {"OK",
                                           "CANCELLED",
                                           "UNKNOWN",
                                           "INVALID_ARGUMENT",
                                           "DEADLINE_EXCEEDED",
                                           "NOT_FOUND",
                                           "ALREADY_EXISTS",
                                           "PERMISSION_DENIED",
                                           "RESOURCE_EXHAUSTED",
                                           "FAILED_PRECONDITION",
                                           "ABORTED",
                                           "OUT_OF_RANGE",
                                           "UNIMPLEMENTED",
                                           "INTERNAL",
                                           "UNAVAILABLE",
                                           "DATA_LOSS",
                                           "UNAUTHENTICATED"};
  const auto index = static_cast<size_t>(code);
  return index < std::size(kNames) ? kNames[index] : "UNKNOWN";
}

CoordinatorMetrics::CoordinatorMetrics(const std::string& version)
    : rpcs_(&CounterFamily(registry_, "rpcs_total", "Answered RPCs by method and code.")),
      denials_(&CounterFamily(registry_, "denied_calls_total",
                              "Calls refused by authorization, by method.")),
      plans_(&CounterFamily(registry_, "plans_total", "Plans made, by policy.")),
      generations_(&CounterFamily(registry_, "generations_total",
                                  "Complete memberships; kept: a reconnect changed nothing.")),
      plans_failed_(
          &CounterFamily(registry_, "plan_failures_total", "Batches that could not be planned.")
               .Add({})),
      plans_postponed_(&CounterFamily(registry_, "plans_postponed_total",
                                      "Plans put off because the planning queue was full.")
                            .Add({})),
      nodes_died_(&CounterFamily(registry_, "dead_nodes_total",
                                 "Nodes that were silent for longer than their lease.")
                       .Add({})),
      batch_mismatches_(&CounterFamily(registry_, "batch_mismatches_total",
                                       "Times that nodes gave different batches for a step.")
                             .Add({})),
      store_write_failures_(
          &CounterFamily(registry_, "store_write_failures_total", "Writes that the store refused.")
               .Add({})),
      fenced_(&CounterFamily(registry_, "fenced_calls_total",
                             "Calls of processes whose generation or incarnation is over.")
                   .Add({})),
      plan_seconds_(&Histograms(registry_, "plan_seconds", "Time to make a plan, by policy.")),
      plan_queue_seconds_(
          &Histograms(registry_, "plan_queue_seconds", "Time that a plan waited for a thread.")
               .Add({}, kPlanSeconds)),
      store_write_seconds_(
          &Histograms(registry_, "store_write_seconds",
                      "Time of a write to the store, with all that was put together in it.")
               .Add({}, kStoreSeconds)),
      scrape_seconds_(&prometheus::BuildGauge()
                           .Name(std::string(kPrefix) + "scrape_seconds")
                           .Help("What the scrape before this one took.")
                           .Register(registry_)
                           .Add({})),
      barrier_wait_seconds_(&Histograms(registry_, "barrier_wait_seconds",
                                        "Time from a node's ExchangeStep to its answer.")
                                 .Add({}, kBarrierSeconds)) {
  prometheus::BuildGauge()
      .Name(std::string(kPrefix) + "build_info")
      .Help("Always 1; the label holds the version.")
      .Register(registry_)
      .Add({{"version", version}})
      .Set(1);
}

void CoordinatorMetrics::PlanMade(const std::string& policy, absl::Duration took) {
  plans_->Add({{"policy", policy}}).Increment();
  plan_seconds_->Add({{"policy", policy}}, kPlanSeconds).Observe(absl::ToDoubleSeconds(took));
}

void CoordinatorMetrics::PlanQueued(absl::Duration waited) {
  plan_queue_seconds_->Observe(absl::ToDoubleSeconds(waited));
}

void CoordinatorMetrics::StoreWritten(absl::Duration took) {
  store_write_seconds_->Observe(absl::ToDoubleSeconds(took));
}

void CoordinatorMetrics::ScrapeTook(absl::Duration took) {
  scrape_seconds_->Set(absl::ToDoubleSeconds(took));
}

void CoordinatorMetrics::BarrierWaited(absl::Duration waited) {
  barrier_wait_seconds_->Observe(absl::ToDoubleSeconds(waited));
}

void CoordinatorMetrics::GenerationFormed(bool kept) {
  generations_->Add({{"kept", kept ? "true" : "false"}}).Increment();
}

void CoordinatorMetrics::RpcAnswered(const char* method, grpc::StatusCode code) {
  rpcs_->Add({{"grpc_method", method}, {"grpc_code", GrpcCodeName(code)}}).Increment();
}

void CoordinatorMetrics::CallDenied(const char* method) {
  denials_->Add({{"grpc_method", method}}).Increment();
}

std::string CoordinatorMetrics::Scrape(const Snapshot& snapshot) const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (prometheus::MetricFamily& family : JobMetricFamilies(snapshot.jobs)) {
    families.push_back(std::move(family));
  }
  AddProcessFamilies(snapshot, families);
  for (prometheus::MetricFamily& family : ProcessMetricFamilies()) {
    families.push_back(std::move(family));
  }
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace sparsebalance
