#include "kernels/all_backends.h"

#if defined(SPARSEBALANCE_HAVE_CUDA)
#include "kernels/create_backend.h"
#include "kernels/cuda/backend/cuda_entry.h"
#endif

namespace sparsebalance::kernels {

void RegisterAllBackends() {
#if defined(SPARSEBALANCE_HAVE_CUDA)
  RegisterCuda({.count_devices = cuda::CountDevices, .create = cuda::CreateCudaBackend});
#endif
}

}  // namespace sparsebalance::kernels
