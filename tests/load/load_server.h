// The coordinator that a load is put on: the real program, in a process of its own.
#pragma once

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "tests/support/child_process.h"

namespace sparsebalance::load {

using testing_support::ChildProcess;
using testing_support::Program;

[[noreturn]] inline void Die(const std::string& what, const absl::Status& status) {
  std::cerr << "service_load: " << what << ": " << status.ToString() << "\n";
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): nothing of the process is needed any more
}

inline void MustBeOk(const std::string& what, const absl::Status& status) {
  if (!status.ok()) Die(what, status);
}

// A process of its own, so that its time and memory can be told from ours.
class Server {
 public:
  explicit Server(const std::vector<std::string>& more = {}, bool with_metrics = false) {
    folder_ = std::filesystem::temp_directory_path() / absl::StrCat("sb-load-", getpid());
    std::filesystem::create_directories(folder_);
    const std::string ports = folder_ / "ports";
    std::vector<std::string> argv = {Program("sparsebalance-coordinator"),
                                     "--listen",
                                     "127.0.0.1:0",
                                     "--metrics-listen",
                                     with_metrics ? "127.0.0.1:0" : "off",
                                     "--health-listen",
                                     "127.0.0.1:0",
                                     "--store",
                                     folder_ / "store.db",
                                     "--port-file",
                                     ports,
                                     "--log-level",
                                     "warn",
                                     "--max-connection-age",
                                     "24h"};
    argv.insert(argv.end(), more.begin(), more.end());
    process_ = std::make_unique<ChildProcess>(argv);
    // Nothing is logged at this level: the file of ports tells that it serves.
    const absl::Time deadline = absl::Now() + absl::Seconds(60);
    while (!std::filesystem::exists(ports)) {
      if (absl::Now() > deadline) Die("start", absl::UnavailableError(process_->Output()));
      absl::SleepFor(absl::Milliseconds(1));
    }
    std::ifstream in(ports);
    for (std::string line; std::getline(in, line);) {
      const std::vector<std::string> parts = absl::StrSplit(line, '=');
      std::string& address = parts[0] == "grpc"      ? address_
                             : parts[0] == "metrics" ? metrics_
                                                     : health_;
      address = "127.0.0.1:" + parts[1];
    }
  }
  ~Server() {
    process_.reset();
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }

  const std::string& address() const { return address_; }
  const std::string& health() const { return health_; }
  const std::string& metrics() const { return metrics_; }  // empty without them

  // User and system time so far.
  absl::Duration CpuTime() const {
    std::ifstream in(absl::StrCat("/proc/", process_->pid(), "/stat"));
    std::string text((std::istreambuf_iterator<char>(in)), {});
    // Fields after the program's name, which may hold anything, in parentheses.
    const std::vector<std::string> fields = absl::StrSplit(text.substr(text.rfind(')') + 2), ' ');
    const auto ticks = [&](size_t field) {
      uint64_t value = 0;
      return absl::SimpleAtoi(fields[field], &value) ? static_cast<double>(value) : 0.0;
    };
    return absl::Seconds((ticks(11) + ticks(12)) / static_cast<double>(sysconf(_SC_CLK_TCK)));
  }

  size_t ResidentBytes() const {
    std::ifstream in(absl::StrCat("/proc/", process_->pid(), "/status"));
    for (std::string line; std::getline(in, line);) {
      if (line.rfind("VmRSS:", 0) != 0) continue;
      uint64_t kib = 0;
      const std::vector<std::string> parts = absl::StrSplit(line, ' ', absl::SkipEmpty());
      if (absl::SimpleAtoi(parts[1], &kib)) return kib * 1024;
    }
    return 0;
  }

 private:
  std::filesystem::path folder_;
  std::unique_ptr<ChildProcess> process_;
  std::string address_;
  std::string health_;
  std::string metrics_;
};

}  // namespace sparsebalance::load
