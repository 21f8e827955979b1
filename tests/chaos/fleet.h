// Coordinators as users run them, each behind a proxy that can misbehave: one with a SQLite file,
// or replicas on an etcd of three members.
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "coordinator/store/etcd/etcd_cluster.h"
#include "tests/chaos/fault_proxy.h"
#include "tests/support/child_process.h"

namespace sparsebalance::chaos {

class Fleet {
 public:
  enum class Kind { kSqlite, kEtcd };

  Fleet(Kind kind, const std::filesystem::path& folder);
  ~Fleet();

  size_t replicas() const { return replicas_.size(); }
  size_t etcd_members() const { return etcd_ == nullptr ? 0 : 3; }
  FaultProxy& proxy(size_t replica) { return replicas_[replica]->proxy; }
  // For --coordinator: all proxies.
  std::string addresses() const;

  void Start(size_t replica);  // where it does not run
  void Kill(size_t replica);
  // As an operator does; returns the exit code.
  int Drain(size_t replica);
  void Pause(size_t replica);
  void Resume(size_t replica);

  void KillEtcd(size_t member);
  void StartEtcd(size_t member);

  // Everything runs, nothing is in the way.
  void Heal();

  // What the replicas have said, for a failed round.
  std::string Logs();

 private:
  struct Replica {
    FaultProxy proxy;
    std::unique_ptr<testing_support::ChildProcess> process;
    bool paused = false;
    std::string old_logs;
  };

  const std::filesystem::path folder_;
  std::unique_ptr<testing_support::EtcdCluster> etcd_;
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::vector<bool> etcd_down_;
};

}  // namespace sparsebalance::chaos
