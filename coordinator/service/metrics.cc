#include "coordinator/service/metrics.h"

#include <sstream>
#include <utility>

#include "absl/time/time.h"
#include "coordinator/service/job_metrics.h"
#include "prometheus/gauge.h"
#include "prometheus/text_serializer.h"

namespace sparsebalance {
namespace {

constexpr char kPrefix[] = "sparsebalance_coordinator_";

prometheus::Family<prometheus::Counter>& CounterFamily(prometheus::Registry& registry,
                                                       const std::string& name,
                                                       const std::string& help) {
  return prometheus::BuildCounter().Name(kPrefix + name).Help(help).Register(registry);
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
      plan_seconds_(
          &prometheus::BuildHistogram()
               .Name(std::string(kPrefix) + "plan_seconds")
               .Help("Time to make a plan.")
               .Register(registry_)
               .Add({}, prometheus::Histogram::BucketBoundaries{0.0005, 0.001, 0.002, 0.005, 0.01,
                                                                0.02, 0.05, 0.1, 0.2, 0.5, 1, 5})),
      barrier_wait_seconds_(
          &prometheus::BuildHistogram()
               .Name(std::string(kPrefix) + "barrier_wait_seconds")
               .Help("Time from a node's ExchangeStep to its answer.")
               .Register(registry_)
               .Add({}, prometheus::Histogram::BucketBoundaries{0.001, 0.005, 0.01, 0.05, 0.1, 0.5,
                                                                1, 5, 10, 30, 60})) {
  prometheus::BuildGauge()
      .Name(std::string(kPrefix) + "build_info")
      .Help("Always 1; the label holds the version.")
      .Register(registry_)
      .Add({{"version", version}})
      .Set(1);
}

void CoordinatorMetrics::PlanMade(const std::string& policy, absl::Duration took) {
  plans_->Add({{"policy", policy}}).Increment();
  plan_seconds_->Observe(absl::ToDoubleSeconds(took));
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

std::string CoordinatorMetrics::Scrape(const Snapshot& snapshot) const {
  std::vector<prometheus::MetricFamily> families = registry_.Collect();
  for (prometheus::MetricFamily& family : JobMetricFamilies(snapshot.jobs)) {
    families.push_back(std::move(family));
  }
  prometheus::MetricFamily epoch;
  epoch.name = std::string(kPrefix) + "leader_epoch";
  epoch.help = "Raised at every start, and above every epoch that a client reports.";
  epoch.type = prometheus::MetricType::Gauge;
  epoch.metric.emplace_back().gauge.value = static_cast<double>(snapshot.leader_epoch);
  families.push_back(std::move(epoch));
  std::ostringstream text;
  prometheus::TextSerializer().Serialize(text, families);
  return text.str();
}

}  // namespace sparsebalance
