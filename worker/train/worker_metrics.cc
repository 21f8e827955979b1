#include "worker/train/worker_metrics.h"

#include <charconv>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/metrics/process_metrics.h"
#include "coordinator/planner/no_plan_reason.h"
#include "httplib.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace sparsebalance {
namespace {

// Steps take from milliseconds (a toy on CPUs) to minutes.
const prometheus::Histogram::BucketBoundaries kStepSeconds = {0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1,
                                                              2.5,  5,     10,   25,  50,   100};
const prometheus::Histogram::BucketBoundaries kWaitSeconds = {1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10};
const prometheus::Histogram::BucketBoundaries kImbalance = {1.01, 1.02, 1.05, 1.1, 1.2,
                                                            1.3,  1.5,  2,    3};

constexpr v1::NoPlanReason kReasons[] = {v1::NO_PLAN_REASON_COORDINATOR_AWAY,
                                         v1::NO_PLAN_REASON_LATE, v1::NO_PLAN_REASON_UNFIT,
                                         v1::NO_PLAN_REASON_RANKS_DIFFER};

prometheus::Labels LabelsOf(const v1::JobKey& job, const std::string& policy) {
  return {{"namespace", job.namespace_()}, {"job", job.name()}, {"policy", policy}};
}

}  // namespace

struct WorkerMetrics::Impl {
  prometheus::Registry registry;
  httplib::Server server;
  std::thread thread;
  int port = 0;

  prometheus::Family<prometheus::Histogram>* step_seconds;
  prometheus::Family<prometheus::Histogram>* plan_wait_seconds;
  prometheus::Family<prometheus::Histogram>* imbalance;
  prometheus::Family<prometheus::Counter>* tokens;
  prometheus::Family<prometheus::Counter>* sequences;
  prometheus::Family<prometheus::Counter>* wait_seconds;
  prometheus::Family<prometheus::Counter>* guard_raises;
  prometheus::Family<prometheus::Counter>* rejoins;
  prometheus::Family<prometheus::Counter>* attended_flops;
  prometheus::Family<prometheus::Counter>* fallback_steps;
  prometheus::Family<prometheus::Counter>* skipped_steps;
  prometheus::Family<prometheus::Gauge>* loss;
  prometheus::Family<prometheus::Gauge>* coverage;
  prometheus::Family<prometheus::Gauge>* audited_mass;
  prometheus::Family<prometheus::Gauge>* audited_coverage;
  prometheus::Family<prometheus::Gauge>* peak_memory_bytes;
  prometheus::Family<prometheus::Gauge>* mfu;

  Impl() {
    const auto histogram = [&](const char* name, const char* help) {
      return &prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
    };
    const auto counter = [&](const char* name, const char* help) {
      return &prometheus::BuildCounter().Name(name).Help(help).Register(registry);
    };
    const auto gauge = [&](const char* name, const char* help) {
      return &prometheus::BuildGauge().Name(name).Help(help).Register(registry);
    };
    step_seconds = histogram("sparsebalance_worker_step_seconds",
                             "Wall time of a training step on its slowest rank.");
    plan_wait_seconds = histogram("sparsebalance_worker_plan_wait_seconds",
                                  "Exposed wait for a plan, largest over ranks.");
    imbalance = histogram("sparsebalance_worker_imbalance_ratio",
                          "Measured compute time of the slowest rank over the mean of ranks.");
    tokens = counter("sparsebalance_worker_tokens_total", "Tokens trained, over all ranks.");
    sequences =
        counter("sparsebalance_worker_sequences_total", "Sequences trained, over all ranks.");
    wait_seconds = counter("sparsebalance_worker_wait_seconds_total",
                           "Rank-seconds of waiting over all ranks, by what for.");
    fallback_steps = counter("sparsebalance_worker_fallback_steps_total",
                             "Steps trained by the workers' own plan, by why.");
    guard_raises = counter("sparsebalance_worker_guard_raises_total",
                           "Sequences given more than the planned budget by the coverage guard.");
    rejoins = counter("sparsebalance_worker_rejoins_total",
                      "Times that this worker joined again after the loss of a peer.");
    attended_flops = counter("sparsebalance_worker_attended_flops_total",
                             "Floating-point operations of the model over all ranks, attention by "
                             "attended pairs only.");
    skipped_steps = counter("sparsebalance_worker_skipped_steps_total",
                            "Steps without an update because the gradient was not finite.");
    loss = gauge("sparsebalance_worker_loss_nats", "Mean loss of the last step, nats a token.");
    coverage = gauge("sparsebalance_worker_coverage_ratio",
                     "Mean coverage of the last step's sequences at the budgets used.");
    audited_mass = gauge("sparsebalance_worker_audited_attention_mass_ratio",
                         "Share of past attention on the chosen blocks, at the last audit.");
    audited_coverage = gauge("sparsebalance_worker_audited_coverage_ratio",
                             "What coverage said of the same choice, at the last audit.");
    peak_memory_bytes = gauge("sparsebalance_worker_peak_memory_bytes",
                              "Peak memory of the backend, largest over ranks.");
    mfu = gauge("sparsebalance_worker_mfu_ratio",
                "Attended FLOPs of the last step over what the devices could do.");
  }
};

WorkerMetrics::WorkerMetrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerMetrics::~WorkerMetrics() {
  impl_->server.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

int WorkerMetrics::port() const { return impl_->port; }

absl::StatusOr<std::unique_ptr<WorkerMetrics>> WorkerMetrics::Serve(const std::string& listen,
                                                                    const std::string& version,
                                                                    const std::string& backend) {
  const size_t colon = listen.rfind(':');
  int port = -1;
  if (colon != std::string::npos) {
    std::from_chars(listen.data() + colon + 1, listen.data() + listen.size(), port);
  }
  if (port < 0 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("--metrics-listen is \"", listen, "\"; use host:port"));
  }
  const std::string host = listen.substr(0, colon);
  auto impl = std::make_unique<Impl>();
  Impl* self = impl.get();
  prometheus::BuildGauge()
      .Name("sparsebalance_worker_build_info")
      .Help("Always 1; labels hold version and backend.")
      .Register(impl->registry)
      .Add({{"version", version}, {"backend", backend}})
      .Set(1);
  impl->server.Get("/metrics", [self](const httplib::Request&, httplib::Response& response) {
    std::vector<prometheus::MetricFamily> families = self->registry.Collect();
    for (prometheus::MetricFamily& family : ProcessMetricFamilies()) {
      families.push_back(std::move(family));
    }
    response.set_content(prometheus::TextSerializer().Serialize(families),
                         "text/plain; version=0.0.4; charset=utf-8");
  });
  impl->server.Get("/healthz", [](const httplib::Request&, httplib::Response& response) {
    response.set_content("ok\n", "text/plain");
  });
  impl->port = port == 0 ? impl->server.bind_to_any_port(host.c_str())
                         : (impl->server.bind_to_port(host.c_str(), port) ? port : -1);
  if (impl->port < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cannot listen on ", listen, " for metrics; is the port in use? (--metrics-listen)"));
  }
  impl->thread = std::thread([self] { self->server.listen_after_bind(); });
  return std::unique_ptr<WorkerMetrics>(new WorkerMetrics(std::move(impl)));
}

void WorkerMetrics::Record(const v1::JobKey& job, const std::string& policy,
                           const StepRecord& record) {
  const prometheus::Labels labels = LabelsOf(job, policy);
  const auto with = [&](const char* name, const char* value) {
    prometheus::Labels more = labels;
    more[name] = value;
    return more;
  };
  impl_->step_seconds->Add(labels, kStepSeconds).Observe(record.step_ms() / 1e3);
  impl_->plan_wait_seconds->Add(labels, kWaitSeconds).Observe(record.plan_wait_ms() / 1e3);
  impl_->imbalance->Add(labels, kImbalance).Observe(record.rank_imbalance());
  impl_->tokens->Add(labels).Increment(record.tokens());
  impl_->sequences->Add(labels).Increment(record.sequences());
  double plan_ms = 0;
  double agreement_ms = 0;
  double straggler_ms = 0;
  for (const RankStepStats& rank : record.ranks) {
    plan_ms += rank.plan_wait_ms;
    agreement_ms += rank.agreement_ms;
    straggler_ms += rank.idle_ms;
  }
  impl_->wait_seconds->Add(with("stage", "plan")).Increment(plan_ms / 1e3);
  impl_->wait_seconds->Add(with("stage", "agreement")).Increment(agreement_ms / 1e3);
  impl_->wait_seconds->Add(with("stage", "straggler")).Increment(straggler_ms / 1e3);
  // All reasons are there from the first step on, so that rates see a reason's first time.
  for (const v1::NoPlanReason reason : kReasons) {
    prometheus::Counter& steps =
        impl_->fallback_steps->Add(with("reason", planner::NoPlanReasonName(reason)));
    if (record.used_fallback && record.no_plan_reason() == reason) steps.Increment();
  }
  impl_->guard_raises->Add(labels).Increment(record.guard_raises());
  impl_->rejoins->Add(labels);
  impl_->attended_flops->Add(labels).Increment(record.attended_flops());
  impl_->skipped_steps->Add(labels).Increment(record.skipped ? 1 : 0);
  impl_->loss->Add(labels).Set(record.loss());
  impl_->coverage->Add(labels).Set(record.mean_coverage());
  if (record.audited_sequences() > 0) {
    impl_->audited_mass->Add(labels).Set(record.audited_mass());
    impl_->audited_coverage->Add(labels).Set(record.audited_coverage());
  }
  impl_->peak_memory_bytes->Add(labels).Set(record.peak_memory_bytes());
  if (const std::optional<double> mfu = record.mfu()) impl_->mfu->Add(labels).Set(*mfu);
}

void WorkerMetrics::Rejoined(const v1::JobKey& job, const std::string& policy) {
  impl_->rejoins->Add(LabelsOf(job, policy)).Increment();
}

}  // namespace sparsebalance
