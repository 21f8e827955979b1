// An etcd cluster of real processes for tests: on loopback, on ports that the kernel gave, with its
// data in a temporary folder. Members end with the object, and with the test's process.
//
//   SPARSEBALANCE_SKIP_WITHOUT_ETCD();
//   EtcdCluster cluster({.members = 3});
//   cluster.Kill(0);
#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "tests/support/child_process.h"

namespace sparsebalance::testing_support {

#define SPARSEBALANCE_SKIP_WITHOUT_ETCD()                                                 \
  if (!::sparsebalance::testing_support::EtcdCluster::Installed()) {                      \
    GTEST_SKIP() << "etcd is not in PATH; install Debian's etcd-server to run this test"; \
  }                                                                                       \
  static_assert(true, "")

class EtcdCluster {
 public:
  static bool Installed();

  struct Options {
    size_t members = 1;
    bool tls =
        false;  // towards clients, with a certificate that the first member makes: for one member
    std::vector<std::string> arguments;  // more of etcd's
  };
  // Waits until every member answers; a failure of the test otherwise.
  explicit EtcdCluster(Options options);
  ~EtcdCluster();
  EtcdCluster(const EtcdCluster&) = delete;
  EtcdCluster& operator=(const EtcdCluster&) = delete;

  const std::vector<std::string>& endpoints() const { return endpoints_; }
  std::filesystem::path DataOf(size_t member) const;

  void Kill(size_t member);   // as a power cut does
  void Start(size_t member);  // again, with the data that it has; does not wait
  void Pause(size_t member);  // it keeps its connections and does nothing
  void Resume(size_t member);
  // Kills every member, deletes their data and starts them anew at the same endpoints.
  void Wipe();

  // Until a leader answers at the endpoint, or at all.
  bool WaitUntilServing(absl::Duration timeout = absl::Seconds(60)) const;
  bool WaitUntilServing(size_t member, absl::Duration timeout = absl::Seconds(60)) const;

  // A client of the members, all where none are given.
  std::unique_ptr<EtcdClient> Client(absl::Duration call_timeout = absl::Seconds(10),
                                     const std::vector<size_t>& members = {}) const;

 private:
  std::filesystem::path CertificateOf(size_t member) const;
  void ChoosePorts();
  bool StartAll();

  const Options options_;
  std::filesystem::path folder_;
  std::vector<std::string> endpoints_;  // of clients
  std::vector<std::string> peers_;
  std::vector<std::unique_ptr<ChildProcess>> members_;  // null: killed
};

}  // namespace sparsebalance::testing_support
