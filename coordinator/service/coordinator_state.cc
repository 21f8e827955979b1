#include "coordinator/service/coordinator_state.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/time/clock.h"
#include "coordinator/store/etcd/etcd_claims.h"
#include "coordinator/store/etcd/etcd_store.h"
#include "coordinator/store/memory_store.h"
#include "coordinator/store/sole_claims.h"
#include "coordinator/store/sqlite_store.h"

namespace sparsebalance {
namespace {

absl::StatusOr<std::unique_ptr<Store>> OpenSqlite(const std::string& path) {
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

}  // namespace

absl::Status CoordinatorState::OpenEtcd(const StateConfig& config) {
  EtcdClientOptions client;
  client.endpoints = config.location.endpoints;
  client.tls = config.etcd_tls;
  client.call_timeout = config.etcd_timeout;
  auto etcd = EtcdClient::Create(std::move(client));
  if (!etcd.ok()) return etcd.status();
  etcd_ = *std::move(etcd);
  EtcdClaimsOptions claiming;
  claiming.prefix = config.location.prefix;
  claiming.address = config.advertise;
  claiming.lease.ttl = config.take_over;
  auto claims = EtcdClaims::Start(etcd_.get(), std::move(claiming));
  if (!claims.ok()) return claims.status();
  EtcdStoreOptions storing;
  storing.prefix = config.location.prefix;
  auto store = EtcdStore::Open(etcd_.get(), claims->get(), std::move(storing));
  if (!store.ok()) return store.status();
  claims_ = *std::move(claims);
  store_ = *std::move(store);
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<CoordinatorState>> CoordinatorState::Open(
    const StateConfig& config) {
  std::unique_ptr<CoordinatorState> state(new CoordinatorState());
  if (config.location.kind == StoreLocation::Kind::kEtcd) {
    if (absl::Status status = state->OpenEtcd(config); !status.ok()) return status;
    return state;
  }
  if (config.location.kind == StoreLocation::Kind::kMemory) {
    state->store_ = std::make_unique<MemoryStore>();
  } else {
    auto store = OpenSqlite(config.location.path);
    if (!store.ok()) return store.status();
    state->store_ = *std::move(store);
  }
  auto claims = SoleClaims::Open(state->store_.get(), config.advertise);
  if (!claims.ok()) return claims.status();
  state->claims_ = *std::move(claims);
  return state;
}

}  // namespace sparsebalance
