#include "worker/train/gpu_monitor.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sparsebalance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Bench {
  absl::StatusOr<GpuFacts> next = GpuFacts{.name = "some GPU"};
  int reads = 0;
  std::vector<std::string> lines;
  GpuMonitor monitor{[this] {
                       ++reads;
                       return next;
                     },
                     [this](const std::string& line) { lines.push_back(line); }};
  absl::Time now = absl::UnixEpoch();

  const std::optional<GpuFacts>& After(absl::Duration wait) { return monitor.Poll(now += wait); }
};

TEST(GpuMonitorTest, ReadsAtMostOnceASecond) {
  Bench b;
  for (int i = 0; i < 25; ++i) EXPECT_EQ(b.After(absl::Milliseconds(100))->name, "some GPU");
  EXPECT_EQ(b.reads, 3);
  EXPECT_TRUE(b.lines.empty());
}

TEST(GpuMonitorTest, SaysWhenClocksAreHeldBackAndWhenNoMore) {
  Bench b;
  EXPECT_TRUE(b.After(absl::Seconds(1))->throttle_reasons.empty());
  b.next->throttle_reasons = {"hw_thermal_slowdown"};
  for (int i = 0; i < 3; ++i) b.After(absl::Seconds(1));
  b.next->throttle_reasons = {};
  for (int i = 0; i < 3; ++i) b.After(absl::Seconds(1));
  EXPECT_THAT(b.lines,
              ElementsAre(HasSubstr("some GPU holds its clocks back (hw_thermal_slowdown)"),
                          HasSubstr("full clocks again")));
}

TEST(GpuMonitorTest, AFailureIsSaidOnceAndLeavesNoOldFacts) {
  Bench b;
  EXPECT_TRUE(b.After(absl::Seconds(1)).has_value());
  b.next = absl::InternalError("the GPU fell off the bus");
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(b.After(absl::Seconds(1)).has_value());
  EXPECT_THAT(b.lines, ElementsAre(HasSubstr("fell off the bus")));
}

TEST(GpuMonitorTest, AMachineWithoutTheDriverIsNoError) {
  std::vector<std::string> lines;
  const auto monitor =
      GpuMonitor::Create("0000:00:00.0", [&](const std::string& line) { lines.push_back(line); });
  const std::optional<GpuFacts> facts = monitor->Poll();
  EXPECT_EQ(facts.has_value(), lines.empty());
}

}  // namespace
}  // namespace sparsebalance
