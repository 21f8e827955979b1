#include "kernels/cuda/backend/cuda_platform.h"

#include <cuda_runtime_api.h>

#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/backend/cublas_matmul.h"
#include "kernels/cuda/backend/cuda_check.h"
#include "kernels/cuda/backend/cuda_entry.h"
#include "kernels/cuda/backend/cuda_staging.h"
#include "kernels/host_event.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {
namespace {

// 256 MiB of bf16: rows for every multiprocessor of the largest device even with large
// vocabularies. Not tuned on a card yet.
constexpr int64_t kWorkingElements = int64_t{1} << 27;
constexpr int kLeastMajor = 8;

class CudaStream final : public Stream {
 public:
  explicit CudaStream(cudaStream_t handle) : stream(handle) {}
  // Lets queued work finish.
  ~CudaStream() override { cudaStreamDestroy(stream); }
  const cudaStream_t stream;
};

class CudaEvent final : public Event {
 public:
  explicit CudaEvent(cudaEvent_t handle) : event(handle) {}
  ~CudaEvent() override { cudaEventDestroy(event); }
  const cudaEvent_t event;
  const timespec cpu = ThreadCpuTime();
};

class CudaPlatform final : public Platform {
 public:
  explicit CudaPlatform(int device) : device_(device) {}
  ~CudaPlatform() override;

  absl::Status Open();

  const DeviceFacts& facts() const override { return facts_; }

  absl::Status Activate() override {
    SB_CUDA_RETURN_IF_ERROR(cudaSetDevice(device_));
    return absl::OkStatus();
  }
  void* NativeStream() override { return current_; }

  absl::StatusOr<void*> Allocate(int64_t bytes, MemoryPurpose purpose) override;
  void Free(void* data) override;
  absl::Status Copy(const void* from, void* to, int64_t bytes, CopyKind kind) override;
  absl::Status Fill(void* data, uint8_t value, int64_t bytes) override;

  absl::StatusOr<std::unique_ptr<Stream>> CreateStream() override;
  absl::Status SetStream(Stream* stream) override;
  absl::StatusOr<std::unique_ptr<Event>> RecordEvent() override;
  absl::Status WaitEvent(const Event& event) override;
  absl::StatusOr<EventInterval> Elapsed(const Event& from, const Event& to) override;
  absl::Status Synchronize() override;

  absl::Status Matmul(const MatmulShape& shape, const MatmulOperands& operands) override {
    return matmul_->Run(shape, operands, workspace_, current_);
  }

 private:
  absl::Status OpenPool(cudaMemPool_t* pool);

  const int device_;
  DeviceFacts facts_;
  cudaStream_t main_ = nullptr;
  cudaStream_t current_ = nullptr;
  std::array<cudaMemPool_t, 2> pools_ = {};  // by MemoryPurpose
  void* workspace_ = nullptr;                // of products
  std::unique_ptr<PinnedStaging> staging_;
  std::unique_ptr<CublasMatmul> matmul_;
};

absl::Status CudaPlatform::OpenPool(cudaMemPool_t* pool) {
  cudaMemPoolProps properties = {};
  properties.allocType = cudaMemAllocationTypePinned;
  properties.location = {.type = cudaMemLocationTypeDevice, .id = device_};
  SB_CUDA_RETURN_IF_ERROR(cudaMemPoolCreate(pool, &properties));
  // What was used once is kept: a step gives nothing back to the system and asks for nothing.
  uint64_t threshold = std::numeric_limits<uint64_t>::max();
  SB_CUDA_RETURN_IF_ERROR(
      cudaMemPoolSetAttribute(*pool, cudaMemPoolAttrReleaseThreshold, &threshold));
  return absl::OkStatus();
}

absl::Status CudaPlatform::Open() {
  SB_RETURN_IF_ERROR(Activate());
  cudaDeviceProp properties = {};
  SB_CUDA_RETURN_IF_ERROR(cudaGetDeviceProperties(&properties, device_));
  std::array<char, 32> bus_id = {};
  SB_CUDA_RETURN_IF_ERROR(
      cudaDeviceGetPCIBusId(bus_id.data(), static_cast<int>(bus_id.size()), device_));
  facts_ = {.name = properties.name,
            .bus_id = bus_id.data(),
            .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem),
            .shared_bytes = static_cast<int64_t>(properties.sharedMemPerBlockOptin),
            .working_elements = kWorkingElements};
  if (properties.major < kLeastMajor) {
    return absl::FailedPreconditionError(absl::StrCat(
        "GPU ", device_, " (", facts_.name, ") has compute capability ", properties.major, ".",
        properties.minor, "; these kernels need 8.0 (A100) or later; use --backend cpu"));
  }
  SB_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&main_, cudaStreamNonBlocking));
  current_ = main_;
  for (cudaMemPool_t& pool : pools_) SB_RETURN_IF_ERROR(OpenPool(&pool));
  SB_ASSIGN_OR_RETURN(staging_, PinnedStaging::Create());
  SB_ASSIGN_OR_RETURN(matmul_, CublasMatmul::Create());
  SB_ASSIGN_OR_RETURN(workspace_, Allocate(CublasMatmul::kWorkspaceBytes, MemoryPurpose::kState));
  return absl::OkStatus();
}

CudaPlatform::~CudaPlatform() {
  cudaSetDevice(device_);
  if (workspace_ != nullptr) Free(workspace_);
  if (main_ != nullptr) {
    cudaStreamSynchronize(main_);
    cudaStreamDestroy(main_);
  }
  matmul_.reset();
  staging_.reset();
  for (const cudaMemPool_t pool : pools_) {
    if (pool != nullptr) cudaMemPoolDestroy(pool);
  }
}

absl::StatusOr<void*> CudaPlatform::Allocate(int64_t bytes, MemoryPurpose purpose) {
  SB_RETURN_IF_ERROR(Activate());
  void* data = nullptr;
  // Never empty, so that every allocation has an address.
  SB_CUDA_RETURN_IF_ERROR(cudaMallocFromPoolAsync(&data, static_cast<size_t>(bytes > 0 ? bytes : 1),
                                                  pools_[static_cast<size_t>(purpose)], current_));
  return data;
}

void CudaPlatform::Free(void* data) {
  cudaSetDevice(device_);
  // Fails only after an error that every later call reports as well.
  cudaFreeAsync(data, current_);
}

absl::Status CudaPlatform::Copy(const void* from, void* to, int64_t bytes, CopyKind kind) {
  SB_RETURN_IF_ERROR(Activate());
  switch (kind) {
    case CopyKind::kToDevice:
      return staging_->ToDevice(from, to, bytes, current_);
    case CopyKind::kToHost:
      return staging_->ToHost(from, to, bytes, current_);
    case CopyKind::kDeviceToDevice:
      SB_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes),
                                              cudaMemcpyDeviceToDevice, current_));
  }
  return absl::OkStatus();
}

absl::Status CudaPlatform::Fill(void* data, uint8_t value, int64_t bytes) {
  SB_RETURN_IF_ERROR(Activate());
  SB_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(data, value, static_cast<size_t>(bytes), current_));
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Stream>> CudaPlatform::CreateStream() {
  SB_RETURN_IF_ERROR(Activate());
  cudaStream_t stream = nullptr;
  SB_CUDA_RETURN_IF_ERROR(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
  return std::unique_ptr<Stream>(std::make_unique<CudaStream>(stream));
}

absl::Status CudaPlatform::SetStream(Stream* stream) {
  if (stream == nullptr) {
    current_ = main_;
    return absl::OkStatus();
  }
  const auto* own = dynamic_cast<const CudaStream*>(stream);
  if (own == nullptr) return absl::InvalidArgumentError("SetStream: a stream of another backend");
  current_ = own->stream;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Event>> CudaPlatform::RecordEvent() {
  SB_RETURN_IF_ERROR(Activate());
  cudaEvent_t event = nullptr;
  SB_CUDA_RETURN_IF_ERROR(cudaEventCreate(&event));
  auto out = std::make_unique<CudaEvent>(event);
  SB_CUDA_RETURN_IF_ERROR(cudaEventRecord(event, current_));
  return std::unique_ptr<Event>(std::move(out));
}

absl::Status CudaPlatform::WaitEvent(const Event& event) {
  const auto* own = dynamic_cast<const CudaEvent*>(&event);
  if (own == nullptr) return absl::InvalidArgumentError("WaitEvent: an event of another backend");
  SB_RETURN_IF_ERROR(Activate());
  SB_CUDA_RETURN_IF_ERROR(cudaStreamWaitEvent(current_, own->event, 0));
  return absl::OkStatus();
}

absl::StatusOr<EventInterval> CudaPlatform::Elapsed(const Event& from, const Event& to) {
  const auto* begin = dynamic_cast<const CudaEvent*>(&from);
  const auto* end = dynamic_cast<const CudaEvent*>(&to);
  if (begin == nullptr || end == nullptr) {
    return absl::InvalidArgumentError("Elapsed: an event of another backend");
  }
  SB_RETURN_IF_ERROR(Activate());
  SB_CUDA_RETURN_IF_ERROR(cudaEventSynchronize(end->event));
  float milliseconds = 0;
  SB_CUDA_RETURN_IF_ERROR(cudaEventElapsedTime(&milliseconds, begin->event, end->event));
  return EventInterval{.seconds = 1e-3 * static_cast<double>(milliseconds),
                       .cpu_seconds = SecondsBetween(begin->cpu, end->cpu)};
}

absl::Status CudaPlatform::Synchronize() {
  SB_RETURN_IF_ERROR(Activate());
  SB_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(current_));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<int> CountDevices() {
  int count = 0;
  const cudaError_t code = cudaGetDeviceCount(&count);
  if (code == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  std::string why = code == cudaSuccess ? "the driver knows of none" : cudaGetErrorString(code);
  if (code == cudaErrorInsufficientDriver) {
    // What CUDA says where there is no driver at all, too.
    why = absl::StrCat("there is no NVIDIA driver, or it is older than CUDA ",
                       CUDART_VERSION / 1000, ".", CUDART_VERSION % 1000 / 10);
  }
  return absl::FailedPreconditionError(absl::StrCat("no GPU can be used here: ", why));
}

absl::StatusOr<std::unique_ptr<Platform>> CreateCudaPlatform(int device) {
  SB_ASSIGN_OR_RETURN(const int count, CountDevices());
  if (device < 0 || device >= count) {
    return absl::FailedPreconditionError(
        absl::StrCat("GPU ", device, " was asked for and there are ", count,
                     " here; ranks of a machine take one each, so lower the ranks"));
  }
  auto platform = std::make_unique<CudaPlatform>(device);
  SB_RETURN_IF_ERROR(platform->Open());
  return std::unique_ptr<Platform>(std::move(platform));
}

}  // namespace sparsebalance::kernels::cuda
