#include "kernels/cpu/test_util.h"
#include "kernels/cuda/backend/device_under_test.h"

namespace sparsebalance::kernels {

std::unique_ptr<Backend> BackendUnderTest() {
  return *cuda::MakeBackendUnderTest({.poison_allocations = true}, /*order=*/2);
}

}  // namespace sparsebalance::kernels
