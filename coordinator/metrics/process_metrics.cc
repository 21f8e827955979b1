#include "coordinator/metrics/process_metrics.h"

#include <sys/resource.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <system_error>

namespace sparsebalance {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

void Add(std::vector<MetricFamily>& families, const char* name, MetricType type, const char* help,
         double value) {
  MetricFamily& family = families.emplace_back();
  family.name = name;
  family.help = help;
  family.type = type;
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
}

// Seconds since 1970 at which the machine was started.
double BootTime() {
  std::ifstream stat("/proc/stat");
  std::string word;
  double seconds = 0;
  while (stat >> word) {
    if (word == "btime" && stat >> seconds) return seconds;
  }
  return 0;
}

// Fields of /proc/self/stat from the third on: the second, the program's name, may hold spaces.
std::vector<double> StatFields() {
  std::ifstream in("/proc/self/stat");
  std::string line;
  if (!std::getline(in, line) || line.rfind(')') == std::string::npos) return {};
  std::istringstream rest(line.substr(line.rfind(')') + 2));
  std::string state;
  rest >> state;
  std::vector<double> fields;
  for (double field = 0; rest >> field;) fields.push_back(field);
  return fields;
}

}  // namespace

std::vector<MetricFamily> ProcessMetricFamilies() {
  std::vector<MetricFamily> families;
  // By their numbers in proc(5), where ppid is 4 and is the first of `fields`.
  constexpr size_t kUserTime = 14 - 4, kSystemTime = 15 - 4, kStartTime = 22 - 4, kVirtual = 23 - 4,
                   kResident = 24 - 4;
  const std::vector<double> fields = StatFields();
  const auto ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  if (fields.size() > kResident && ticks > 0) {
    Add(families, "process_cpu_seconds_total", MetricType::Counter,
        "User and system CPU time of the process.",
        (fields[kUserTime] + fields[kSystemTime]) / ticks);
    Add(families, "process_resident_memory_bytes", MetricType::Gauge, "Memory of the process.",
        fields[kResident] * static_cast<double>(sysconf(_SC_PAGESIZE)));
    Add(families, "process_virtual_memory_bytes", MetricType::Gauge,
        "Addresses that the process has mapped.", fields[kVirtual]);
    if (const double boot = BootTime(); boot > 0) {
      Add(families, "process_start_time_seconds", MetricType::Gauge,
          "When the process started, since 1970.", boot + fields[kStartTime] / ticks);
    }
  }
  std::error_code error;
  size_t open = 0;
  for (std::filesystem::directory_iterator it("/proc/self/fd", error), end; !error && it != end;
       it.increment(error)) {
    ++open;
  }
  if (!error && open > 0) {
    Add(families, "process_open_fds", MetricType::Gauge, "Open file descriptors.",
        static_cast<double>(open - 1));  // one is the folder's own
  }
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
    Add(families, "process_max_fds", MetricType::Gauge, "File descriptors that may be open.",
        static_cast<double>(limit.rlim_cur));
  }
  return families;
}

}  // namespace sparsebalance
