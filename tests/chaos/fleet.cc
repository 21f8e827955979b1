#include "tests/chaos/fleet.h"

#include <signal.h>

#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace sparsebalance::chaos {

using testing_support::ChildProcess;
using testing_support::EtcdCluster;
using testing_support::Program;

Fleet::Fleet(Kind kind, const std::filesystem::path& folder) : folder_(folder) {
  if (kind == Kind::kEtcd) {
    EtcdCluster::Options options;
    options.members = 3;
    etcd_ = std::make_unique<EtcdCluster>(options);
    etcd_down_.resize(3, false);
  }
  const size_t count = kind == Kind::kEtcd ? 2 : 1;
  for (size_t i = 0; i < count; ++i) replicas_.push_back(std::make_unique<Replica>());
  for (size_t i = 0; i < count; ++i) Start(i);
}

Fleet::~Fleet() {
  for (size_t i = 0; i < replicas_.size(); ++i) Resume(i);
}

std::string Fleet::addresses() const {
  return absl::StrJoin(replicas_, ",", [](std::string* out, const auto& replica) {
    absl::StrAppend(out, replica->proxy.address());
  });
}

void Fleet::Start(size_t index) {
  Replica& replica = *replicas_[index];
  if (replica.process != nullptr) return;
  const std::string ports = folder_ / absl::StrCat("ports-", index);
  std::filesystem::remove(ports);
  std::vector<std::string> argv = {Program("sparsebalance-coordinator"), "--listen", "127.0.0.1:0",
                                   "--metrics-listen", "off", "--port-file", ports,
                                   // Silence is told apart from death sooner than in a cluster.
                                   "--lease", "5s", "--drain-timeout", "2s"};
  if (etcd_ == nullptr) {
    argv.insert(argv.end(), {"--store", folder_ / "store.db"});
  } else {
    argv.insert(
        argv.end(),
        {"--store", absl::StrCat("etcd://", absl::StrJoin(etcd_->endpoints(), ",")), "--advertise",
         replica.proxy.address(), "--take-over", "2s", "--etcd-timeout", "2s"});
  }
  replica.process = std::make_unique<ChildProcess>(argv);
  if (!replica.process->WaitForLine("serving", 0, absl::Seconds(60)).has_value()) {
    // etcd may be away: another fault of the same round. Whoever heals the fleet starts it again.
    absl::StrAppend(&replica.old_logs, replica.process->Output());
    replica.process.reset();
    return;
  }
  std::ifstream in(ports);
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("grpc=", 0) == 0) replica.proxy.SetTarget(std::stoi(line.substr(5)));
  }
}

void Fleet::Kill(size_t index) {
  Replica& replica = *replicas_[index];
  if (replica.process == nullptr) return;
  replica.process->Signal(SIGKILL);
  replica.process->Wait();
  absl::StrAppend(&replica.old_logs, replica.process->Output());
  replica.process.reset();
  replica.paused = false;
}

int Fleet::Drain(size_t index) {
  Replica& replica = *replicas_[index];
  if (replica.process == nullptr || replica.paused) return 0;
  replica.process->Signal(SIGTERM);
  const int code = replica.process->Wait();
  absl::StrAppend(&replica.old_logs, replica.process->Output());
  replica.process.reset();
  return code;
}

void Fleet::Pause(size_t index) {
  Replica& replica = *replicas_[index];
  if (replica.process == nullptr) return;
  replica.process->Signal(SIGSTOP);
  replica.paused = true;
}

void Fleet::Resume(size_t index) {
  Replica& replica = *replicas_[index];
  if (replica.process == nullptr || !replica.paused) return;
  replica.process->Signal(SIGCONT);
  replica.paused = false;
}

void Fleet::KillEtcd(size_t member) {
  if (etcd_down_[member]) return;
  etcd_->Kill(member);
  etcd_down_[member] = true;
}

void Fleet::StartEtcd(size_t member) {
  if (!etcd_down_[member]) return;
  etcd_->Start(member);
  etcd_down_[member] = false;
}

void Fleet::Heal() {
  for (size_t member = 0; member < etcd_down_.size(); ++member) StartEtcd(member);
  if (etcd_ != nullptr) EXPECT_TRUE(etcd_->WaitUntilServing());
  for (size_t i = 0; i < replicas_.size(); ++i) {
    replicas_[i]->proxy.Heal();
    Resume(i);
    // One that could not start, or found its file in use, may now.
    for (int attempt = 0; attempt < 3 && replicas_[i]->process == nullptr; ++attempt) Start(i);
    EXPECT_NE(replicas_[i]->process, nullptr) << replicas_[i]->old_logs;
  }
}

std::string Fleet::Logs() {
  std::string logs;
  for (size_t i = 0; i < replicas_.size(); ++i) {
    absl::StrAppend(&logs, "--- replica ", i, "\n", replicas_[i]->old_logs,
                    replicas_[i]->process == nullptr ? "" : replicas_[i]->process->Output());
  }
  return logs;
}

}  // namespace sparsebalance::chaos
