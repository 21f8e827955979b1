// What a call of a GPU library returned, and the error that it makes: file, line, call, device and
// the library's own words.
//
//   SB_GPU_RETURN_IF_ERROR(device, api->SetDevice(device));
//
// gives, where it fails, "gpu 0: api->SetDevice(device) at nccl_device.cc:41: CUDA error 101,
// invalid device ordinal". No header of CUDA is needed here, so that code which is tested without a
// GPU can use it too; a wrapper of the library fills GpuResult from its own type.
#pragma once

#include "absl/status/status.h"

namespace sparsebalance {

struct GpuResult {
  const char* library = "CUDA";  // or "NCCL"; static storage
  int code = 0;                  // the library's; 0 is success in both
  const char* text = "";         // the library's description of `code`; static storage

  bool ok() const { return code == 0; }
};

// RESOURCE_EXHAUSTED where device or pinned memory ran out, UNAVAILABLE where NCCL lost a peer or
// the network, else INTERNAL.
absl::Status GpuError(const GpuResult& result, int device, const char* call, const char* file,
                      int line);

}  // namespace sparsebalance

// Returns from the enclosing function where `call`, a GpuResult, is an error.
#define SB_GPU_RETURN_IF_ERROR(device, call)                                                 \
  do {                                                                                       \
    if (const ::sparsebalance::GpuResult sb_gpu_result_ = (call); !sb_gpu_result_.ok()) {    \
      return ::sparsebalance::GpuError(sb_gpu_result_, (device), #call, __FILE__, __LINE__); \
    }                                                                                        \
  } while (false)
