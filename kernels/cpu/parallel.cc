#include "kernels/cpu/parallel.h"

namespace sparsebalance::kernels::cpu {
namespace {
thread_local int thread_index = 0;
}

int ThreadIndex() { return thread_index; }

namespace internal {

void RunUnits(int threads, int64_t count, void (*run)(void* context, int64_t unit), void* context) {
  if (threads == 1 || count <= 1) {
    thread_index = 0;
    for (int64_t i = 0; i < count; ++i) run(context, i);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    thread_index = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) run(context, i);
  }
}

}  // namespace internal
}  // namespace sparsebalance::kernels::cpu
