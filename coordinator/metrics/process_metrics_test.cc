#include "coordinator/metrics/process_metrics.h"

#include <fcntl.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <map>
#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

std::map<std::string, double> Read() {
  std::map<std::string, double> values;
  for (const prometheus::MetricFamily& family : ProcessMetricFamilies()) {
    const prometheus::ClientMetric& metric = family.metric.at(0);
    values[family.name] =
        family.type == prometheus::MetricType::Counter ? metric.counter.value : metric.gauge.value;
  }
  return values;
}

TEST(ProcessMetricsTest, SayWhatTheProcessUses) {
  const std::map<std::string, double> before = Read();
  const auto now = static_cast<double>(std::time(nullptr));
  EXPECT_LE(before.at("process_start_time_seconds"), now + 2);
  EXPECT_GT(before.at("process_start_time_seconds"), now - 3600);
  EXPECT_GT(before.at("process_max_fds"), 0);

  const int file = open("/dev/null", O_RDONLY);
  constexpr size_t kBytes = size_t{64} << 20;
  std::vector<char> memory(kBytes);
  std::memset(memory.data(), 1, kBytes);
  volatile double sum = 0;
  while (Read().at("process_cpu_seconds_total") < before.at("process_cpu_seconds_total") + 0.02) {
    for (int i = 0; i < 1000; ++i) sum = sum + i;
  }
  const std::map<std::string, double> after = Read();
  EXPECT_EQ(after.at("process_open_fds"), before.at("process_open_fds") + 1);
  EXPECT_GE(after.at("process_resident_memory_bytes"),
            before.at("process_resident_memory_bytes") + 0.9 * kBytes);
  EXPECT_GE(after.at("process_virtual_memory_bytes"), after.at("process_resident_memory_bytes"));
  close(file);
}

}  // namespace
}  // namespace sparsebalance
