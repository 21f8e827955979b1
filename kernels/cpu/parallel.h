#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <utility>

namespace sparsebalance::kernels::cpu {

namespace internal {
inline thread_local int thread_index = 0;
}

// The calling thread's place in the team of the enclosing ParallelFor, in [0, threads): not
// OpenMP's own number, which is that of a caller's team where ParallelFor needs none.
inline int ThreadIndex() { return internal::thread_index; }

// Runs body(i) for i in [0, count). Units are handed out as threads become free, so each must
// write where no other does and must not depend on `threads`.
template <typename Body>
void ParallelFor(int threads, int64_t count, Body&& body) {
  if (threads == 1 || count <= 1) {
    internal::thread_index = 0;
    for (int64_t i = 0; i < count; ++i) body(i);
    return;
  }
#pragma omp parallel num_threads(threads)
  {
    internal::thread_index = omp_get_thread_num();
#pragma omp for schedule(dynamic, 1)
    for (int64_t i = 0; i < count; ++i) body(i);
  }
}

// Runs body(begin, end) over [0, count) in pieces of `grain`.
template <typename Body>
void ParallelRanges(int threads, int64_t count, int64_t grain, Body&& body) {
  ParallelFor(threads, (count + grain - 1) / grain,
              [&](int64_t piece) { body(piece * grain, std::min(count, (piece + 1) * grain)); });
}

// Holds OpenMP's default team size at 1, so that a library called inside does not start a team of
// its own and picks the same algorithm for any number of threads.
class OneThreadScope {
 public:
  OneThreadScope() : saved_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~OneThreadScope() { omp_set_num_threads(saved_); }
  OneThreadScope(const OneThreadScope&) = delete;
  OneThreadScope& operator=(const OneThreadScope&) = delete;

 private:
  int saved_;
};

}  // namespace sparsebalance::kernels::cpu
