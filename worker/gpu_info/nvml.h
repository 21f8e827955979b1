// The part of NVML's binary interface that GpuInfo calls, declared here because toolkits without
// the driver bring no nvml.h. Names and values are NVML's; functions with a version in their name
// keep their meaning for ever.
#pragma once

namespace sparsebalance::nvml {

using Return = int;  // nvmlReturn_t
inline constexpr Return kSuccess = 0;
inline constexpr Return kNotSupported = 3;
inline constexpr Return kNotFound = 6;

using Device = struct OpaqueDevice*;  // nvmlDevice_t

struct Memory {  // nvmlMemory_t, bytes
  unsigned long long total;
  unsigned long long free;
  unsigned long long used;
};

// Every text of a device fits.
inline constexpr unsigned kTextBytes = 96;

struct Functions {
  Return (*init)() = nullptr;                                      // nvmlInit_v2
  Return (*shutdown)() = nullptr;                                  // nvmlShutdown
  const char* (*error_string)(Return) = nullptr;                   // nvmlErrorString
  Return (*device_count)(unsigned*) = nullptr;                     // nvmlDeviceGetCount_v2
  Return (*device_by_index)(unsigned, Device*) = nullptr;          // ...GetHandleByIndex_v2
  Return (*device_by_pci_bus_id)(const char*, Device*) = nullptr;  // ...ByPciBusId_v2
  Return (*device_name)(Device, char*, unsigned) = nullptr;        // nvmlDeviceGetName
  Return (*device_uuid)(Device, char*, unsigned) = nullptr;        // nvmlDeviceGetUUID
  Return (*device_memory)(Device, Memory*) = nullptr;              // ...GetMemoryInfo
  Return (*throttle_reasons)(Device,
                             unsigned long long*) = nullptr;  // ...GetCurrentClocksEventReasons
};

}  // namespace sparsebalance::nvml
