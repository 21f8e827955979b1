#include "coordinator/service/coordinator_server.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/security/certificate_watcher.h"
#include "coordinator/security/policy_reloader.h"
#include "coordinator/security/server_credentials.h"
#include "coordinator/security/server_limits.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/coordinator_state.h"
#include "coordinator/service/health_server.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/overview.h"
#include "coordinator/service/status_page.h"
#include "coordinator/store/store_writer.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"

namespace sparsebalance {
namespace {

// Threads for what waits for the store: claims and backups.
constexpr int kBackgroundThreads = 4;
constexpr size_t kBackgroundQueue = 4096;

absl::Status CannotListen(const ListenAddress& address, const char* flag) {
  return absl::UnavailableError(absl::StrCat(
      "cannot listen on ", address.ToString(),
      ": the address is in use or not one of this machine; choose another with ", flag));
}

}  // namespace

// In the order of construction: what is declared later uses what is declared before.
struct CoordinatorServer::Parts {
  explicit Parts(ServerConfig given)
      : config(std::move(given)),
        quotas(config.quotas),
        metrics(config.version),
        gate({config.options.max_calls, config.options.max_call_bytes,
              config.options.overload_retry}) {}

  const ServerConfig config;
  QuotaTable quotas;
  CoordinatorMetrics metrics;
  LoadGate gate;
  std::unique_ptr<security::CertificateWatcher> certificates;  // null: plaintext
  std::unique_ptr<security::PolicyReloader> rules;
  std::unique_ptr<security::Authorizer> everyone;  // with certificates, without rules
  security::Authorizer* authorizer = nullptr;
  std::unique_ptr<CoordinatorState> state;
  std::unique_ptr<StoreWriter> writer;
  ThreadScheduler scheduler;
  std::unique_ptr<ThreadPoolExecutor> planner;
  std::unique_ptr<ThreadPoolExecutor> background;
  std::unique_ptr<JobRegistry> registry;
  std::unique_ptr<StateRpcs> transfers;
  std::unique_ptr<CoordinatorService> service;
  std::unique_ptr<HealthServer> health;
  std::unique_ptr<grpc::Server> server;
  ListenAddress grpc_address;
  std::unique_ptr<PageApi> page_api;
  std::unique_ptr<StatusPage> page;
  std::optional<ListenAddress> metrics_address;
  std::optional<ListenAddress> health_address;
  std::atomic<bool> serving{false};

  absl::Status OpenSecurity();
  absl::Status OpenRegistry();
  absl::Status OpenServer(std::function<void(const std::string&)> on_drain);
  absl::Status OpenPages();
  CoordinatorMetrics::Snapshot Snapshot();
};

absl::Status CoordinatorServer::Parts::OpenSecurity() {
  if (!config.secure()) {
    if (!config.listen.IsLoopback()) {
      spdlog::warn(
          "plaintext without authentication on {}: anyone who reaches it can steer every job",
          config.listen.ToString());
    }
    return absl::OkStatus();
  }
  auto watcher = security::CertificateWatcher::Start(config.tls, {});
  if (!watcher.ok()) return watcher.status();
  certificates = *std::move(watcher);
  security::Authorizer::Options options;
  options.on_denial = [this](security::Method method) {
    metrics.CallDenied(security::AccessOf(method).name);
  };
  if (config.authorization_file.empty()) {
    spdlog::warn("no --authorization: every client with a certificate of {} may do everything",
                 config.tls.ca);
    everyone = std::make_unique<security::Authorizer>(security::Policy::Everyone(), options);
    authorizer = everyone.get();
    return absl::OkStatus();
  }
  auto reloader = security::PolicyReloader::Start(config.authorization_file, options);
  if (!reloader.ok()) return reloader.status();
  rules = *std::move(reloader);
  authorizer = rules->authorizer();
  return absl::OkStatus();
}

absl::Status CoordinatorServer::Parts::OpenRegistry() {
  auto opened = CoordinatorState::Open(config.state);
  if (!opened.ok()) return opened.status();
  state = *std::move(opened);
  StoreWriterOptions writing;
  writing.observer = [this](absl::Duration took) { metrics.StoreWritten(took); };
  writer = std::make_unique<StoreWriter>(state->store(), std::move(writing));
  const ServiceOptions& options = config.options;
  planner = std::make_unique<ThreadPoolExecutor>(PlanExecutorOptions{
      options.planner_threads, options.planner_queue, options.long_plan, nullptr});
  background = std::make_unique<ThreadPoolExecutor>(
      PlanExecutorOptions{kBackgroundThreads, kBackgroundQueue, absl::InfiniteDuration(), nullptr});
  auto made =
      JobRegistry::Open({&config.options, &quotas, state->store(), writer.get(), state->claims(),
                         &scheduler, planner.get(), background.get(), &metrics, config.version});
  if (!made.ok()) return made.status();
  registry = *std::move(made);
  state->claims()->OnLost(registry->LostHandler());
  const auto observer = [this](const char* method, grpc::StatusCode code) {
    metrics.RpcAnswered(method, code);
  };
  transfers = std::make_unique<StateRpcs>(StateRpcs::Parts{
      registry.get(), state->store(), writer.get(), background.get(), config.version, observer});
  return absl::OkStatus();
}

absl::Status CoordinatorServer::Parts::OpenServer(
    std::function<void(const std::string&)> on_drain) {
  service = std::make_unique<CoordinatorService>(CoordinatorService::Parts{
      registry.get(), authorizer, &gate, transfers.get(),
      [this](const char* method, grpc::StatusCode code) { metrics.RpcAnswered(method, code); },
      [this] { metrics.CallFenced(); },
      [on_drain = std::move(on_drain)](const std::string& reason) {
        spdlog::warn("an operator asks for a drain{}", reason.empty() ? "" : ": " + reason);
        if (on_drain) on_drain(reason);
      }});
  grpc::ServerBuilder builder;
  security::ConfigureServer(builder, config.connections);
  security::RemoveDefaultHealthService(builder);
  if (config.reflection) {
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  } else {
    security::RemoveReflection(builder);
  }
  std::shared_ptr<grpc::ServerCredentials> credentials = grpc::InsecureServerCredentials();
  if (certificates != nullptr) {
    auto made = security::MakeServerCredentials(certificates.get());
    if (!made.ok()) return made.status();
    credentials = *std::move(made);
  }
  int port = 0;
  builder.AddListeningPort(config.listen.ToString(), credentials, &port);
  builder.RegisterService(service.get());
  server = builder.BuildAndStart();
  if (server == nullptr || port == 0) return CannotListen(config.listen, "--listen");
  grpc_address = config.listen;
  grpc_address.port = port;
  return absl::OkStatus();
}

CoordinatorMetrics::Snapshot CoordinatorServer::Parts::Snapshot() {
  CoordinatorMetrics::Snapshot snapshot;
  snapshot.leader_epoch = registry->HighestEpoch();
  snapshot.jobs = registry->Figures();
  snapshot.planner = planner->load();
  snapshot.calls = gate.calls();
  snapshot.shed = {gate.refused(CallClass::kLiveness), gate.refused(CallClass::kTraining),
                   gate.refused(CallClass::kOther)};
  const JobClaims::Health claims = state->claims()->CheckHealth();
  snapshot.claims_alive = claims.lease_alive;
  snapshot.store_answers = claims.store_answers && writer->health().ok();
  if (certificates != nullptr) {
    snapshot.certificate_not_after = certificates->not_after();
    snapshot.certificate_failures = certificates->failures();
  }
  if (rules != nullptr) snapshot.rule_failures = rules->failures();
  return snapshot;
}

absl::Status CoordinatorServer::Parts::OpenPages() {
  if (config.health_listen) {
    auto started = HealthServer::Start(*config.health_listen, {});
    if (!started.ok()) return started.status();
    health = *std::move(started);
    health_address = health->address();
  }
  if (!config.metrics_listen) return absl::OkStatus();
  StatusPage::Content content;
  content.metrics = [this] {
    const absl::Time begin = absl::Now();
    std::string text = metrics.Scrape(Snapshot());
    metrics.ScrapeTook(absl::Now() - begin);
    return text;
  };
  content.overview = [this] {
    return Overview(config.version, registry->HighestEpoch(), state->store()->Description(),
                    registry->Statuses());
  };
  content.healthy = [this] { return serving.load(); };
  content.degraded = [this]() -> std::string {
    if (const absl::Status stored = writer->health(); !stored.ok()) {
      return absl::StrCat("the store refuses writes: ", stored.message());
    }
    return state->claims()->CheckHealth().problem;
  };
  page_api = std::make_unique<PageApi>(
      PageApi::Source{[this] { return registry->ListJobs({}); },
                      [this](const v1::JobKey& key) { return registry->Snapshot(key); },
                      config.version, state->store()->Description(), content.degraded});
  content.jobs = [this](const PageApi::Parameters& asked) { return page_api->Jobs(asked); };
  content.job = [this](const PageApi::Parameters& asked) { return page_api->Job(asked); };
  StatusPage::Security protection;
  protection.certificates = certificates.get();
  protection.authorizer = authorizer;
  auto started = StatusPage::Start(config.metrics_listen->host, config.metrics_listen->port,
                                   std::move(content), protection);
  if (!started.ok()) return started.status();
  page = *std::move(started);
  metrics_address = ListenAddress{config.metrics_listen->host, page->port()};
  return absl::OkStatus();
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    ServerConfig config, std::function<void(const std::string& reason)> on_drain) {
  if (absl::Status status = CheckServerConfig(config); !status.ok()) return status;
  // From here on it is drained however it ends.
  std::unique_ptr<CoordinatorServer> server(
      new CoordinatorServer(std::make_unique<Parts>(std::move(config))));
  Parts& parts = *server->parts_;
  if (absl::Status status = parts.OpenSecurity(); !status.ok()) return status;
  if (absl::Status status = parts.OpenRegistry(); !status.ok()) return status;
  if (absl::Status status = parts.OpenServer(std::move(on_drain)); !status.ok()) return status;
  parts.serving = true;
  if (absl::Status status = parts.OpenPages(); !status.ok()) return status;
  if (parts.health != nullptr) parts.health->SetServing(true);
  return server;
}

CoordinatorServer::~CoordinatorServer() {
  if (absl::Status status = Drain(); !status.ok()) {
    spdlog::error("{}", std::string(status.message()));
  }
}

const ListenAddress& CoordinatorServer::grpc_address() const { return parts_->grpc_address; }

const std::optional<ListenAddress>& CoordinatorServer::metrics_address() const {
  return parts_->metrics_address;
}

const std::optional<ListenAddress>& CoordinatorServer::health_address() const {
  return parts_->health_address;
}

uint64_t CoordinatorServer::leader_epoch() const { return parts_->registry->HighestEpoch(); }

std::string CoordinatorServer::store_description() const {
  return parts_->state->store()->Description();
}

void CoordinatorServer::Reload(const QuotaTable& quotas) {
  parts_->quotas = quotas;
  if (parts_->certificates != nullptr) parts_->certificates->CheckNow();
  if (parts_->rules != nullptr) parts_->rules->CheckNow();
}

absl::Status CoordinatorServer::Drain() {
  Parts& p = *parts_;
  if (!p.serving.exchange(false)) return absl::OkStatus();
  if (p.health != nullptr) p.health->SetServing(false);
  // What failed so far was tried again since or is no news; what counts is what is written now.
  p.writer->Flush().IgnoreError();
  p.registry->Shutdown();
  p.transfers->Shutdown();
  if (!p.service->WaitUntilIdle(p.config.options.drain_timeout)) {
    spdlog::warn("some answers did not reach their callers within {}",
                 absl::FormatDuration(p.config.options.drain_timeout));
  }
  // At once: idle clients keep their connections open for as long as they are let.
  p.server->Shutdown(std::chrono::system_clock::now());
  p.server->Wait();
  p.planner->Stop();
  p.background->Stop();
  const absl::Status stored = p.writer->Flush();
  // Last: until everything is stored nobody else may take a job up.
  if (absl::Status given_up = p.state->claims()->ReleaseAll(); !given_up.ok()) {
    spdlog::warn("jobs can be taken over only when the lease has run out: {}",
                 std::string(given_up.message()));
  }
  return stored;
}

}  // namespace sparsebalance
