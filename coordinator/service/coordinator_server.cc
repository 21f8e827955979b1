#include "coordinator/service/coordinator_server.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "coordinator/service/coordinator_service.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/metrics.h"
#include "coordinator/service/overview.h"
#include "coordinator/service/status_page.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sqlite_store.h"
#include "coordinator/store/store_writer.h"
#include "grpcpp/ext/proto_server_reflection_plugin.h"
#include "grpcpp/grpcpp.h"
#include "grpcpp/health_check_service_interface.h"

namespace sparsebalance {
namespace {

constexpr char kServiceName[] = "sparsebalance.v1.Coordinator";

int Millis(absl::Duration duration) {
  return static_cast<int>(absl::ToInt64Milliseconds(duration));
}

absl::Status CheckReach(const ServerConfig& config) {
  if (config.listen.IsLoopback()) return absl::OkStatus();
  if (!config.insecure) {
    return absl::FailedPreconditionError(absl::StrCat(
        "listening on ", config.listen.ToString(),
        " offers plaintext without authentication to other machines; listen on 127.0.0.1, or say "
        "--insecure if the network is trusted"));
  }
  spdlog::warn("plaintext without authentication on {}: anyone who reaches it can steer every job",
               config.listen.ToString());
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Store>> OpenStore(const std::string& path) {
  if (path.empty()) return std::make_unique<MemoryStore>();
  auto opened = SqliteStore::Open(path, absl::Now());
  if (!opened.ok()) return opened.status();
  if (!opened->set_aside_path.empty()) {
    spdlog::error(
        "store {} was damaged ({}); it was set aside as {} and a new one is begun: "
        "profiles, learned costs, coverage memory and journals start afresh",
        path, opened->set_aside_reason, opened->set_aside_path);
  }
  return std::unique_ptr<Store>(std::move(opened->store));
}

void Configure(grpc::ServerBuilder& builder, const ServiceOptions& options) {
  builder.SetMaxReceiveMessageSize(options.max_message_bytes);
  builder.SetMaxSendMessageSize(options.max_message_bytes);
  // Without this a second coordinator could take the port in silence.
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS,
                             Millis(options.min_client_ping));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, Millis(options.keepalive_interval));
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, Millis(options.keepalive_timeout));
}

}  // namespace

// In the order of construction: what is declared later uses what is declared before.
struct CoordinatorServer::Parts {
  explicit Parts(ServerConfig given) : config(std::move(given)), metrics(config.version) {}

  const ServerConfig config;
  CoordinatorMetrics metrics;
  std::unique_ptr<Store> store;
  std::unique_ptr<StoreWriter> writer;
  std::unique_ptr<LeaderEpoch> epoch;
  ThreadScheduler scheduler;
  std::unique_ptr<ThreadPoolExecutor> executor;
  std::unique_ptr<JobRegistry> registry;
  std::unique_ptr<CoordinatorService> service;
  std::unique_ptr<grpc::Server> server;
  ListenAddress grpc_address;
  std::unique_ptr<StatusPage> page;
  std::optional<ListenAddress> metrics_address;
  std::atomic<bool> serving{false};
};

CoordinatorServer::CoordinatorServer(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(ServerConfig config) {
  if (absl::Status status = CheckReach(config); !status.ok()) return status;
  auto parts = std::make_unique<Parts>(std::move(config));
  Parts* const p = parts.get();
  const ServiceOptions& options = p->config.options;

  auto store = OpenStore(p->config.store_path);
  if (!store.ok()) return store.status();
  p->store = *std::move(store);
  auto epoch = LeaderEpoch::Raise(p->store.get());
  if (!epoch.ok()) return epoch.status();
  p->epoch = *std::move(epoch);
  p->writer = std::make_unique<StoreWriter>(p->store.get());
  p->executor =
      std::make_unique<ThreadPoolExecutor>(options.planner_threads, options.planner_queue);
  auto registry =
      JobRegistry::Open({&options, p->store.get(), p->writer.get(), p->epoch.get(), &p->scheduler,
                         p->executor.get(), &p->metrics, p->config.version});
  if (!registry.ok()) return registry.status();
  p->registry = *std::move(registry);
  p->service = std::make_unique<CoordinatorService>(
      p->registry.get(), [metrics = &p->metrics](const char* method, grpc::StatusCode code) {
        metrics->RpcAnswered(method, code);
      });

  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  Configure(builder, options);
  int port = 0;
  builder.AddListeningPort(p->config.listen.ToString(), grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(p->service.get());
  p->server = builder.BuildAndStart();
  if (p->server == nullptr || port == 0) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on ", p->config.listen.ToString(),
        ": the address is in use or not one of this machine; choose another with --listen"));
  }
  p->grpc_address = p->config.listen;
  p->grpc_address.port = port;
  p->server->GetHealthCheckService()->SetServingStatus(kServiceName, true);
  p->serving = true;

  std::unique_ptr<CoordinatorServer> server(new CoordinatorServer(std::move(parts)));
  if (p->config.metrics_listen) {
    StatusPage::Content content;
    content.metrics = [p] {
      return p->metrics.Scrape({p->epoch->current(), p->registry->Statuses()});
    };
    content.overview = [p] {
      return Overview(p->config.version, p->epoch->current(), p->store->Description(),
                      p->registry->Statuses());
    };
    content.healthy = [p] { return p->serving.load(); };
    auto page = StatusPage::Start(p->config.metrics_listen->host, p->config.metrics_listen->port,
                                  std::move(content));
    if (!page.ok()) return page.status();
    p->page = *std::move(page);
    p->metrics_address = ListenAddress{p->config.metrics_listen->host, p->page->port()};
  }
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

uint64_t CoordinatorServer::leader_epoch() const { return parts_->epoch->current(); }

std::string CoordinatorServer::store_description() const { return parts_->store->Description(); }

absl::Status CoordinatorServer::Drain() {
  Parts& p = *parts_;
  if (!p.serving.exchange(false)) return absl::OkStatus();
  p.server->GetHealthCheckService()->SetServingStatus(false);
  // What failed so far was tried again since or is no news; what counts is what is written now.
  p.writer->Flush().IgnoreError();
  p.registry->Shutdown();
  if (!p.service->WaitUntilIdle(p.config.options.drain_timeout)) {
    spdlog::warn("some answers did not reach their callers within {}",
                 absl::FormatDuration(p.config.options.drain_timeout));
  }
  // At once: idle clients keep their connections open for as long as they are let.
  p.server->Shutdown(std::chrono::system_clock::now());
  p.server->Wait();
  p.executor->Stop();
  return p.writer->Flush();
}

}  // namespace sparsebalance
