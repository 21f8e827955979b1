#include "worker/comm/gpu_result.h"

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "worker/comm/nccl_api.h"

namespace sparsebalance {
namespace {

absl::StatusCode CodeOf(const GpuResult& result) {
  constexpr int kCudaErrorMemoryAllocation = 2;
  if (std::string_view(result.library) == "NCCL") {
    return result.code == kNcclRemoteError || result.code == kNcclSystemError
               ? absl::StatusCode::kUnavailable
               : absl::StatusCode::kInternal;
  }
  return result.code == kCudaErrorMemoryAllocation ? absl::StatusCode::kResourceExhausted
                                                   : absl::StatusCode::kInternal;
}

}  // namespace

absl::Status GpuError(const GpuResult& result, int device, const char* call, const char* file,
                      int line) {
  std::string name(file);
  name.erase(0, name.rfind('/') + 1);
  return absl::Status(CodeOf(result),
                      absl::StrCat("gpu ", device, ": ", call, " at ", name, ":", line, ": ",
                                   result.library, " error ", result.code, ", ", result.text));
}

}  // namespace sparsebalance
