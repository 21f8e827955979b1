// The coordinator on a disk that is full, or may not be written to: a small one of its own, which
// no other process sees. Needs user namespaces.

#include <httplib.h>
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/service/program_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::HasSubstr;
using testing_support::ChildProcess;
using testing_support::ProgramTest;

constexpr char kUnshare[] = "/usr/bin/unshare";

class DiskTest : public ProgramTest {
 protected:
  void SetUp() override {
    ChildProcess probe({kUnshare, "-Urm", "mount", "-t", "tmpfs", "none", "/mnt"});
    if (probe.Wait() != 0) GTEST_SKIP() << "no namespace to mount in: " << probe.Output();
    std::filesystem::create_directory(disk());
    store_ = disk() + "/store.db";
  }

  // The next program runs with a disk of its own, mounted with these options.
  void UseDisk(const std::string& options) {
    launcher_ = {kUnshare,
                 "-Urm",
                 "/bin/sh",
                 "-c",
                 absl::StrCat("mount -t tmpfs -o ", options, " none ", disk(), R"( && exec "$@")"),
                 "sh"};
  }
  std::string disk() const { return folder_ / "disk"; }

  std::string Page(const std::string& path) {
    httplib::Client client("127.0.0.1", metrics_port_);
    const httplib::Result result = client.Get(path.c_str());
    return result ? result->body : absl::StrCat("no answer: ", to_string(result.error()));
  }

  // Trains one step after the other until the health page says so.
  void ConsumeUntilHealthIs(const std::string& wanted) {
    const absl::Time end = absl::Now() + absl::Seconds(60);
    while (Page("/healthz").find(wanted) == std::string::npos) {
      ASSERT_LT(absl::Now(), end) << Page("/healthz");
      Consume(next_step_++);
    }
  }
  // Returns how many batches the coordinator says it has stored.
  uint64_t Consume(uint64_t step) {
    std::vector<uint64_t> ids(500);
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = step * ids.size() + i;
    v1::ExchangeStepResponse answer;
    const absl::Status status = client_->Consume("job", "a", step, ids, &answer);
    EXPECT_TRUE(status.ok()) << status;
    return answer.consumed_count();
  }

  uint64_t next_step_ = 0;
};

TEST_F(DiskTest, AFullDiskStopsNoTrainingIsSaidAndLosesNothingThatWasAcknowledged) {
  UseDisk("size=4m");
  const auto program = Start();
  client_->FormPair("job");
  ConsumeUntilHealthIs("ok");

  const std::filesystem::path inside = absl::StrCat("/proc/", program->pid(), "/root", disk());
  {
    std::ofstream filler(inside / "filler", std::ios::binary);
    while (filler.write(std::string(4096, 'x').data(), 4096).flush()) {
    }
  }
  ConsumeUntilHealthIs("degraded: the store refuses writes");
  EXPECT_THAT(Page("/metrics"), HasSubstr("sparsebalance_coordinator_store_answers 0"));
  const uint64_t stored = Consume(next_step_ - 1);
  EXPECT_LT(stored, next_step_) << "acknowledged without being stored";

  // Plans are made all the same, and new jobs are taken.
  v1::ExchangeStepResponse a;
  v1::ExchangeStepResponse b;
  absl::Status other;
  std::thread peer([&] { other = client_->Exchange("job", "b", 0, &b); });
  const absl::Status status = client_->Exchange("job", "a", 0, &a);
  peer.join();
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(other.ok()) << other;
  client_->Register("another");

  // With room again the nodes, which keep what is not acknowledged, bring it once more.
  std::filesystem::remove(inside / "filler");
  ConsumeUntilHealthIs("ok");
  const absl::Time end = absl::Now() + absl::Seconds(60);
  uint64_t acknowledged = 0;
  while (acknowledged < next_step_ && absl::Now() < end) {
    for (uint64_t step = 0; step < next_step_; ++step) acknowledged = Consume(step);
  }
  EXPECT_EQ(acknowledged, next_step_);
  EXPECT_THAT(Page("/metrics"), HasSubstr("sparsebalance_coordinator_store_answers 1"));
  program->Signal(SIGTERM);
  EXPECT_EQ(program->Wait(), 0) << program->Output();
}

TEST_F(DiskTest, AReadOnlyDiskIsRefusedAtTheStartInOneLine) {
  UseDisk("ro");
  std::vector<std::string> argv = launcher_;
  for (const std::string& argument :
       {testing_support::Program("sparsebalance-coordinator"), std::string("--listen"),
        std::string("127.0.0.1:0"), std::string("--metrics-listen"), std::string("off"),
        std::string("--store"), store_}) {
    argv.push_back(argument);
  }
  ChildProcess refused(argv);
  EXPECT_EQ(refused.Wait(), 2) << refused.Output();
  EXPECT_EQ(refused.lines(), 1u) << refused.Output();
  EXPECT_THAT(refused.Output(), HasSubstr(store_));
}

}  // namespace
}  // namespace sparsebalance
