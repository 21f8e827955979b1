// A library with the functions of NVML that GpuInfo looks for: two GPUs of a made-up kind and one
// that is lost. For tests. FAKE_NVML_OLD builds one of a driver before 535, FAKE_NVML_INCOMPLETE
// one without a function, FAKE_NVML_NO_DRIVER one that finds no driver.
#include <cstdio>
#include <cstring>

namespace {
int live = 0;
int FakeThrottleReasons(void* device, unsigned long long* reasons);
}  // namespace

struct FakeMemory {
  unsigned long long total, free, used;
};

extern "C" {

int nvmlInit_v2() {
#ifdef FAKE_NVML_NO_DRIVER
  return 9;
#else
  ++live;
  return 0;
#endif
}
int nvmlShutdown() {
  --live;
  return 0;
}
const char* nvmlErrorString(int result) {
  return result == 9 ? "Driver Not Loaded" : result == 15 ? "GPU is lost" : "Other";
}
int nvmlDeviceGetCount_v2(unsigned* count) {
  *count = 3;
  return 0;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void** device) {
  *device = reinterpret_cast<void*>(static_cast<unsigned long>(index + 1));
  return 0;
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* bus_id, void** device) {
  if (std::strcmp(bus_id, "0000:3b:00.0") != 0) return 6;
  return nvmlDeviceGetHandleByIndex_v2(1, device);
}
int nvmlDeviceGetName(void* device, char* text, unsigned bytes) {
  if (reinterpret_cast<unsigned long>(device) == 3) return 15;
  std::snprintf(text, bytes, "Made-up GPU %lu", reinterpret_cast<unsigned long>(device));
  return 0;
}
int nvmlDeviceGetUUID(void* device, char* text, unsigned bytes) {
  std::snprintf(text, bytes, "GPU-%lu-0000", reinterpret_cast<unsigned long>(device));
  return 0;
}
#ifndef FAKE_NVML_INCOMPLETE
int nvmlDeviceGetMemoryInfo(void* device, FakeMemory* memory) {
  const unsigned long long number = reinterpret_cast<unsigned long>(device);
  *memory = {number << 33, (number << 33) - 4096, 4096};
  return 0;
}
#endif
#ifdef FAKE_NVML_OLD
int nvmlDeviceGetCurrentClocksThrottleReasons(void* device, unsigned long long* reasons) {
#else
int nvmlDeviceGetCurrentClocksEventReasons(void* device, unsigned long long* reasons) {
#endif
  return FakeThrottleReasons(device, reasons);
}
int fakeNvmlLive() { return live; }

}  // extern "C"

namespace {
// The first is hot, the second does not say.
int FakeThrottleReasons(void* device, unsigned long long* reasons) {
  if (reinterpret_cast<unsigned long>(device) == 2) return 3;
  *reasons = 0x4 | 0x40 | 0x1000;
  return 0;
}
}  // namespace
