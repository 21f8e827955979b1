// sparsebalance-coordinator and sbctl as users run them, for tests.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/server_test_client.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

namespace sparsebalance::testing_support {

class TempFolder {
 public:
  TempFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "sb-server-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ / name; }

 private:
  std::filesystem::path path_;
};

class ProgramTest : public testing::Test {
 protected:
  // Starts the coordinator, on the ports of the one before where there was one.
  std::unique_ptr<ChildProcess> Start(const std::vector<std::string>& more = {}) {
    std::filesystem::remove(folder_ / "ports");
    std::vector<std::string> argv = launcher_;
    const std::vector<std::string> own = {Program("sparsebalance-coordinator"),
                                          "--listen",
                                          absl::StrCat("127.0.0.1:", port_),
                                          "--metrics-listen",
                                          absl::StrCat("127.0.0.1:", metrics_port_),
                                          "--store",
                                          store_,
                                          "--port-file",
                                          folder_ / "ports"};
    argv.insert(argv.end(), own.begin(), own.end());
    argv.insert(argv.end(), more.begin(), more.end());
    auto program = std::make_unique<ChildProcess>(argv);
    EXPECT_TRUE(program->WaitForLine("serving").has_value()) << program->Output();
    std::ifstream ports(folder_ / "ports");
    for (std::string line; std::getline(ports, line);) {
      if (line.rfind("grpc=", 0) == 0) port_ = std::stoi(line.substr(5));
      if (line.rfind("metrics=", 0) == 0) metrics_port_ = std::stoi(line.substr(8));
      if (line.rfind("health=", 0) == 0) health_port_ = std::stoi(line.substr(7));
    }
    EXPECT_GT(port_, 0);
    client_ = std::make_unique<TestClient>(address());
    return program;
  }
  std::string address() const { return absl::StrCat("127.0.0.1:", port_); }

  std::unique_ptr<ChildProcess> Sbctl(std::vector<std::string> arguments) {
    arguments.insert(arguments.begin(), {Program("sbctl"), "--coordinator", address()});
    return std::make_unique<ChildProcess>(std::move(arguments));
  }

  TempFolder folder_;
  std::vector<std::string> launcher_;  // in front of the coordinator's own arguments
  std::string store_ = folder_ / "store.db";
  int port_ = 0;
  int metrics_port_ = 0;
  int health_port_ = 0;
  std::unique_ptr<TestClient> client_;
};

}  // namespace sparsebalance::testing_support
