#include "kernels/cpu/test_util.h"

namespace sparsebalance::kernels {

std::unique_ptr<Backend> BackendUnderTest() { return TestBackend(); }

}  // namespace sparsebalance::kernels
