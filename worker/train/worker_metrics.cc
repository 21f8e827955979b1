#include "worker/train/worker_metrics.h"

#include <charconv>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
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
  prometheus::Family<prometheus::Counter>* idle_seconds;
  prometheus::Family<prometheus::Counter>* fallback_steps;
  prometheus::Family<prometheus::Counter>* skipped_steps;
  prometheus::Family<prometheus::Gauge>* loss;
  prometheus::Family<prometheus::Gauge>* coverage;
  prometheus::Family<prometheus::Gauge>* audited_mass;
  prometheus::Family<prometheus::Gauge>* audited_coverage;
  prometheus::Family<prometheus::Gauge>* peak_memory_bytes;

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
    idle_seconds = counter("sparsebalance_worker_idle_seconds_total",
                           "Time ranks waited for the slowest one, summed over ranks.");
    fallback_steps = counter("sparsebalance_worker_fallback_steps_total",
                             "Steps trained by the workers' own plan.");
    skipped_steps = counter("sparsebalance_worker_skipped_steps_total",
                            "Steps without an update because the gradient was not finite.");
    loss = gauge("sparsebalance_worker_loss", "Mean loss of the last step, nats a token.");
    coverage = gauge("sparsebalance_worker_coverage_ratio",
                     "Mean coverage of the last step's sequences at the budgets used.");
    audited_mass = gauge("sparsebalance_worker_audited_attention_mass_ratio",
                         "Share of past attention on the chosen blocks, at the last audit.");
    audited_coverage = gauge("sparsebalance_worker_audited_coverage_ratio",
                             "What coverage said of the same choice, at the last audit.");
    peak_memory_bytes = gauge("sparsebalance_worker_peak_memory_bytes",
                              "Peak memory of the backend, largest over ranks.");
  }
};

WorkerMetrics::WorkerMetrics(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

WorkerMetrics::~WorkerMetrics() {
  impl_->server.stop();
  if (impl_->thread.joinable()) impl_->thread.join();
}

int WorkerMetrics::port() const { return impl_->port; }

absl::StatusOr<std::unique_ptr<WorkerMetrics>> WorkerMetrics::Serve(const std::string& listen) {
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
  impl->server.Get("/metrics", [self](const httplib::Request&, httplib::Response& response) {
    response.set_content(prometheus::TextSerializer().Serialize(self->registry.Collect()),
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

void WorkerMetrics::Record(const std::string& policy, const StepRecord& record) {
  const prometheus::Labels labels = {{"policy", policy}};
  impl_->step_seconds->Add(labels, kStepSeconds).Observe(record.step_ms() / 1e3);
  impl_->plan_wait_seconds->Add(labels, kWaitSeconds).Observe(record.plan_wait_ms() / 1e3);
  impl_->imbalance->Add(labels, kImbalance).Observe(record.rank_imbalance());
  impl_->tokens->Add(labels).Increment(record.tokens());
  impl_->sequences->Add(labels).Increment(record.sequences());
  double idle_ms = 0;
  for (const RankStepStats& rank : record.ranks) idle_ms += rank.idle_ms;
  impl_->idle_seconds->Add(labels).Increment(idle_ms / 1e3);
  impl_->fallback_steps->Add(labels).Increment(record.used_fallback ? 1 : 0);
  impl_->skipped_steps->Add(labels).Increment(record.skipped ? 1 : 0);
  impl_->loss->Add(labels).Set(record.loss());
  impl_->coverage->Add(labels).Set(record.mean_coverage());
  if (record.audited_sequences() > 0) {
    impl_->audited_mass->Add(labels).Set(record.audited_mass());
    impl_->audited_coverage->Add(labels).Set(record.audited_coverage());
  }
  impl_->peak_memory_bytes->Add(labels).Set(record.peak_memory_bytes());
}

}  // namespace sparsebalance
