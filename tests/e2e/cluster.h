// A coordinator and workers as real processes on loopback, with a data set and a folder of their
// own, for end-to-end tests.
#pragma once

#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/plan.pb.h"
#include "tests/support/child_process.h"
#include "worker/data/data_test_util.h"

namespace sparsebalance::e2e {

using testing_support::ChildProcess;
using testing_support::Program;

// A program that has ended.
struct Ran {
  int code;
  std::string output;
};
inline Ran RunProgram(const std::vector<std::string>& argv) {
  ChildProcess child(argv);
  const int code = child.Wait();
  return {code, child.Output()};
}
// sparsebalance-worker with these arguments.
inline Ran Verb(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), Program("sparsebalance-worker"));
  return RunProgram(arguments);
}

class Cluster {
 public:
  // Packs `documents` texts of between `shortest` and `longest` bytes.
  void PackData(int documents, int shortest, int longest) {
    std::ofstream out(folder_ / "text.jsonl");
    uint64_t state = 12345;
    const auto next = [&state] { return (state = state * 6364136223846793005u + 1) >> 33; };
    for (int d = 0; d < documents; ++d) {
      const auto length =
          static_cast<uint64_t>(shortest) + next() % static_cast<uint64_t>(longest - shortest + 1);
      std::string text;
      while (text.size() < length) {
        absl::StrAppend(&text, (d * 7 + static_cast<int>(text.size()) / 50) % 10, " and ");
      }
      text.resize(length);
      out << R"({"text": ")" << text << "\"}\n";
    }
    out.close();
    ChildProcess pack({Program("sparsebalance-data"), "pack", "--input", folder_ / "text.jsonl",
                       "--output", dataset()});
    ASSERT_EQ(pack.Wait(), 0) << pack.Output();
  }

  // Starts the coordinator, on the port of the one before where there was one.
  void StartCoordinator() {
    std::filesystem::remove(folder_ / "ports");
    coordinator_ = std::make_unique<ChildProcess>(std::vector<std::string>{
        Program("sparsebalance-coordinator"), "--listen", absl::StrCat("127.0.0.1:", port_),
        "--metrics-listen", "127.0.0.1:0", "--store", folder_ / "store.sqlite", "--port-file",
        folder_ / "ports"});
    ASSERT_TRUE(coordinator_->WaitForLine("serving").has_value()) << coordinator_->Output();
    std::ifstream ports(folder_ / "ports");
    for (std::string line; std::getline(ports, line);) {
      if (line.rfind("grpc=", 0) == 0) port_ = std::stoi(line.substr(5));
      if (line.rfind("metrics=", 0) == 0) metrics_port_ = std::stoi(line.substr(8));
    }
    ASSERT_GT(port_, 0);
  }
  ChildProcess& coordinator() { return *coordinator_; }
  void KillCoordinator() {
    coordinator_->Signal(SIGKILL);
    coordinator_->Wait();
  }

  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }
  int port() const { return port_; }
  int metrics_port() const { return metrics_port_; }
  void set_port(int port) { port_ = port; }
  std::string dataset() const { return folder_ / "data"; }
  std::string output() const { return folder_ / "out"; }
  std::string checkpoints() const { return folder_ / "checkpoints"; }
  const data_testing::TempFolder& folder() const { return folder_; }

  // Command line of a worker of a small job of `ranks` ranks; flags in `more` replace defaults.
  std::vector<std::string> WorkerArguments(int ranks, int rank,
                                           const std::vector<std::string>& more = {}) const;
  std::unique_ptr<ChildProcess> StartWorker(int ranks, int rank,
                                            const std::vector<std::string>& more = {}) const {
    return std::make_unique<ChildProcess>(WorkerArguments(ranks, rank, more));
  }

  // Records of what every step was trained by, by node file, in the order written.
  std::vector<v1::PlanRecord> Records(const std::string& policy) const;

 private:
  data_testing::TempFolder folder_;
  std::unique_ptr<ChildProcess> coordinator_;
  int port_ = 0;
  int metrics_port_ = 0;
};

// How often each sequence was trained in the given steps, by the records of all nodes.
std::map<uint64_t, int> TimesTrained(const std::vector<v1::PlanRecord>& records,
                                     uint64_t first_step, uint64_t end_step);

}  // namespace sparsebalance::e2e
