#include "coordinator/store/etcd/etcd_cluster.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"

namespace sparsebalance::testing_support {
namespace {

namespace fs = std::filesystem;

// The program's path; empty where it is not installed.
std::string Find(const std::string& program) {
  const char* path = std::getenv("PATH");  // NOLINT(concurrency-mt-unsafe)
  if (path == nullptr) return "";
  const std::vector<std::string> folders = absl::StrSplit(path, ':');
  for (const std::string& folder : folders) {
    const std::string candidate = absl::StrCat(folder, "/", program);
    if (access(candidate.c_str(), X_OK) == 0) return candidate;
  }
  return "";
}

// Ports that were free a moment ago, each another one.
std::vector<int> FreePorts(size_t count) {
  std::vector<int> sockets;
  std::vector<int> ports;
  for (size_t i = 0; i < count; ++i) {
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size), 0);
    sockets.push_back(fd);
    ports.push_back(ntohs(address.sin_port));
  }
  for (const int fd : sockets) close(fd);
  return ports;
}

std::string NameOf(size_t member) { return absl::StrCat("member-", member); }

}  // namespace

bool EtcdCluster::Installed() { return !Find("etcd").empty(); }

EtcdCluster::EtcdCluster(Options options) : options_(std::move(options)) {
  std::string pattern = (fs::temp_directory_path() / "sb-etcd-XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) {
    ADD_FAILURE() << "no temporary folder for etcd";
    return;
  }
  folder_ = pattern;
  members_.resize(options_.members);
  // Somebody else may take a port before etcd does; then others are tried.
  constexpr int kTries = 3;
  std::string output;
  for (int i = 0; i < kTries; ++i) {
    ChoosePorts();
    if (StartAll()) return;
    for (size_t member = 0; member < members_.size(); ++member) {
      absl::StrAppend(&output, members_[member]->Output(), "\n");
      Kill(member);
      fs::remove_all(DataOf(member));
    }
  }
  ADD_FAILURE() << "etcd does not start: " << output;
}

EtcdCluster::~EtcdCluster() {
  members_.clear();
  std::error_code error;
  fs::remove_all(folder_, error);
}

void EtcdCluster::ChoosePorts() {
  const std::vector<int> ports = FreePorts(2 * members_.size());
  endpoints_.clear();
  peers_.clear();
  for (size_t i = 0; i < members_.size(); ++i) {
    endpoints_.push_back(absl::StrCat("127.0.0.1:", ports[2 * i]));
    peers_.push_back(absl::StrCat("127.0.0.1:", ports[2 * i + 1]));
  }
}

bool EtcdCluster::StartAll() {
  for (size_t member = 0; member < members_.size(); ++member) Start(member);
  for (size_t member = 0; member < members_.size(); ++member) {
    if (!WaitUntilServing(member)) return false;
  }
  return true;
}

fs::path EtcdCluster::DataOf(size_t member) const { return folder_ / NameOf(member); }

// Where etcd puts the certificate that it makes for itself.
fs::path EtcdCluster::CertificateOf(size_t member) const {
  return DataOf(member) / "fixtures" / "client" / "cert.pem";
}

void EtcdCluster::Start(size_t member) {
  const std::string client_url =
      absl::StrCat(options_.tls ? "https://" : "http://", endpoints_[member]);
  const std::string peer_url = absl::StrCat("http://", peers_[member]);
  std::vector<std::string> all_members;
  for (size_t i = 0; i < members_.size(); ++i) {
    all_members.push_back(absl::StrCat(NameOf(i), "=http://", peers_[i]));
  }
  std::vector<std::string> argv;
  // So that no member outlives a test that crashes.
  if (const std::string setpriv = Find("setpriv"); !setpriv.empty()) {
    argv = {setpriv, "--pdeathsig", "KILL"};
  }
  for (const std::string& argument : std::vector<std::string>{Find("etcd"),
                                                              "--name",
                                                              NameOf(member),
                                                              "--data-dir",
                                                              DataOf(member).string(),
                                                              "--listen-client-urls",
                                                              client_url,
                                                              "--advertise-client-urls",
                                                              client_url,
                                                              "--listen-peer-urls",
                                                              peer_url,
                                                              "--initial-advertise-peer-urls",
                                                              peer_url,
                                                              "--initial-cluster",
                                                              absl::StrJoin(all_members, ","),
                                                              "--initial-cluster-token",
                                                              folder_.filename().string(),
                                                              "--logger",
                                                              "zap",
                                                              "--log-level",
                                                              "warn"}) {
    argv.push_back(argument);
  }
  if (options_.tls) argv.push_back("--auto-tls");
  argv.insert(argv.end(), options_.arguments.begin(), options_.arguments.end());
  members_[member] = std::make_unique<ChildProcess>(std::move(argv));
}

void EtcdCluster::Kill(size_t member) { members_[member].reset(); }
void EtcdCluster::Pause(size_t member) { members_[member]->Signal(SIGSTOP); }
void EtcdCluster::Resume(size_t member) { members_[member]->Signal(SIGCONT); }

void EtcdCluster::Wipe() {
  for (size_t member = 0; member < members_.size(); ++member) {
    Kill(member);
    fs::remove_all(DataOf(member));
  }
  EXPECT_TRUE(StartAll());
}

bool EtcdCluster::WaitUntilServing(absl::Duration timeout) const {
  return Client(timeout)->ReadRange(EtcdRange::Key("any")).ok();
}

bool EtcdCluster::WaitUntilServing(size_t member, absl::Duration timeout) const {
  const absl::Time deadline = absl::Now() + timeout;
  while (options_.tls && !fs::exists(CertificateOf(member)) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(20));
  }
  return Client(timeout, {member})->ReadRange(EtcdRange::Key("any")).ok();
}

std::unique_ptr<EtcdClient> EtcdCluster::Client(absl::Duration call_timeout,
                                                const std::vector<size_t>& members) const {
  EtcdClientOptions options;
  options.call_timeout = call_timeout;
  for (const size_t member : members) options.endpoints.push_back(endpoints_[member]);
  if (members.empty()) options.endpoints = endpoints_;
  if (options_.tls) options.tls.ca = CertificateOf(0).string();
  auto client = EtcdClient::Create(std::move(options));
  if (!client.ok()) {
    ADD_FAILURE() << client.status();
    return nullptr;
  }
  return *std::move(client);
}

}  // namespace sparsebalance::testing_support
