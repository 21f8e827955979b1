#include "worker/gpu_info/gpu_info.h"

#include <dlfcn.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "worker/gpu_info/nvml.h"

namespace sparsebalance {
namespace {

struct Reason {
  uint64_t bit;
  const char* name;
  bool slows;  // by heat or lack of power
};

// nvml.h: nvmlClocksEventReason..., nvmlClocksThrottleReason... before.
constexpr Reason kReasons[] = {
    {0x1, "gpu_idle", false},
    {0x2, "applications_clocks_setting", false},
    {0x4, "sw_power_cap", true},
    {0x8, "hw_slowdown", true},
    {0x10, "sync_boost", false},
    {0x20, "sw_thermal_slowdown", true},
    {0x40, "hw_thermal_slowdown", true},
    {0x80, "hw_power_brake_slowdown", true},
    {0x100, "display_clock_setting", false},
};

const Reason* Find(uint64_t bit) {
  const auto* found = std::find_if(std::begin(kReasons), std::end(kReasons),
                                   [bit](const Reason& reason) { return reason.bit == bit; });
  return found == std::end(kReasons) ? nullptr : found;
}

}  // namespace

std::vector<std::string> ThrottleReasonNames(uint64_t bits) {
  std::vector<std::string> names;
  for (int i = 0; i < 64; ++i) {
    const uint64_t bit = uint64_t{1} << i;
    if ((bits & bit) == 0) continue;
    const Reason* reason = Find(bit);
    names.push_back(reason != nullptr ? reason->name : absl::StrCat("bit_", i));
  }
  return names;
}

bool IsThrottled(const GpuFacts& facts) {
  return std::any_of(std::begin(kReasons), std::end(kReasons), [&](const Reason& reason) {
    return reason.slows && std::find(facts.throttle_reasons.begin(), facts.throttle_reasons.end(),
                                     reason.name) != facts.throttle_reasons.end();
  });
}

class GpuInfo::Library {
 public:
  Library(std::string path, void* handle) : path_(std::move(path)), handle_(handle) {}
  ~Library() {
    if (initialized_) (void)functions_.shutdown();
    dlclose(handle_);
  }
  Library(const Library&) = delete;
  Library& operator=(const Library&) = delete;

  absl::Status Open() {
    absl::Status status;
    const auto bind = [&](auto& function, const char* name) {
      if (status.ok() && !Bind(function, name)) {
        status = absl::FailedPreconditionError(
            absl::StrCat(path_, " has no ", name, "; install a newer NVIDIA driver"));
      }
    };
    bind(functions_.init, "nvmlInit_v2");
    bind(functions_.shutdown, "nvmlShutdown");
    bind(functions_.error_string, "nvmlErrorString");
    bind(functions_.device_count, "nvmlDeviceGetCount_v2");
    bind(functions_.device_by_index, "nvmlDeviceGetHandleByIndex_v2");
    bind(functions_.device_by_pci_bus_id, "nvmlDeviceGetHandleByPciBusId_v2");
    bind(functions_.device_name, "nvmlDeviceGetName");
    bind(functions_.device_uuid, "nvmlDeviceGetUUID");
    bind(functions_.device_memory, "nvmlDeviceGetMemoryInfo");
    // Renamed in driver 535; drivers before have the old name only.
    if (!Bind(functions_.throttle_reasons, "nvmlDeviceGetCurrentClocksEventReasons")) {
      bind(functions_.throttle_reasons, "nvmlDeviceGetCurrentClocksThrottleReasons");
    }
    if (!status.ok()) return status;
    const nvml::Return result = functions_.init();
    if (result != nvml::kSuccess) {
      return absl::FailedPreconditionError(
          absl::StrCat(path_, ": ", Text("nvmlInit_v2", result),
                       "; is the NVIDIA driver loaded? nvidia-smi says more"));
    }
    initialized_ = true;
    unsigned count = 0;
    status = Check("nvmlDeviceGetCount_v2", functions_.device_count(&count));
    count_ = static_cast<int>(count);
    return status;
  }

  int count() const { return count_; }
  const nvml::Functions& functions() const { return functions_; }

  absl::Status Check(const char* call, nvml::Return result) const {
    if (result == nvml::kSuccess) return absl::OkStatus();
    return absl::InternalError(absl::StrCat(path_, ": ", Text(call, result)));
  }

  absl::StatusOr<GpuFacts> Read(nvml::Device device) const {
    GpuFacts facts;
    char text[nvml::kTextBytes] = {};
    absl::Status status =
        Check("nvmlDeviceGetName", functions_.device_name(device, text, nvml::kTextBytes));
    if (!status.ok()) return status;
    facts.name = text;
    status = Check("nvmlDeviceGetUUID", functions_.device_uuid(device, text, nvml::kTextBytes));
    if (!status.ok()) return status;
    facts.uuid = text;
    nvml::Memory memory = {};
    status = Check("nvmlDeviceGetMemoryInfo", functions_.device_memory(device, &memory));
    if (!status.ok()) return status;
    facts.memory_total_bytes = memory.total;
    facts.memory_used_bytes = memory.used;
    unsigned long long reasons = 0;
    const nvml::Return result = functions_.throttle_reasons(device, &reasons);
    // Some GPUs do not say, such as a part of one that is shared.
    if (result != nvml::kNotSupported) {
      status = Check("nvmlDeviceGetCurrentClocksEventReasons", result);
      if (!status.ok()) return status;
      facts.throttle_reasons = ThrottleReasonNames(reasons);
    }
    return facts;
  }

 private:
  template <typename Function>
  bool Bind(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    return function != nullptr;
  }

  std::string Text(const char* call, nvml::Return result) const {
    const char* text = functions_.error_string(result);
    return absl::StrCat(call, ": NVML error ", result, ", ", text == nullptr ? "unknown" : text);
  }

  const std::string path_;
  void* const handle_;
  nvml::Functions functions_;
  bool initialized_ = false;
  int count_ = 0;
};

absl::StatusOr<std::unique_ptr<GpuInfo>> GpuInfo::Load(const std::string& library) {
  void* const handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    const char* error = dlerror();  // NOLINT(concurrency-mt-unsafe): glibc keeps one per thread
    return absl::NotFoundError(absl::StrCat(
        "nothing is known of GPUs here: ", library, " cannot be loaded (",
        error == nullptr ? "no reason given" : error, "); it comes with the NVIDIA driver"));
  }
  auto loaded = std::make_unique<Library>(library, handle);
  absl::Status status = loaded->Open();
  if (!status.ok()) return status;
  return std::unique_ptr<GpuInfo>(new GpuInfo(std::move(loaded)));
}

GpuInfo::GpuInfo(std::unique_ptr<Library> library) : library_(std::move(library)) {}
GpuInfo::~GpuInfo() = default;

int GpuInfo::count() const { return library_->count(); }

absl::StatusOr<GpuFacts> GpuInfo::Read(int index) const {
  if (index < 0 || index >= count()) {
    return absl::InvalidArgumentError(absl::StrCat("GPU ", index, " is not in [0, ", count(), ")"));
  }
  nvml::Device device = nullptr;
  absl::Status status =
      library_->Check("nvmlDeviceGetHandleByIndex_v2",
                      library_->functions().device_by_index(static_cast<unsigned>(index), &device));
  if (!status.ok()) return status;
  return library_->Read(device);
}

absl::StatusOr<GpuFacts> GpuInfo::ReadByPciBusId(const std::string& bus_id) const {
  nvml::Device device = nullptr;
  const nvml::Return result = library_->functions().device_by_pci_bus_id(bus_id.c_str(), &device);
  if (result == nvml::kNotFound) {
    return absl::NotFoundError(absl::StrCat("no GPU has the PCI address ", bus_id));
  }
  absl::Status status = library_->Check("nvmlDeviceGetHandleByPciBusId_v2", result);
  if (!status.ok()) return status;
  return library_->Read(device);
}

}  // namespace sparsebalance
