#pragma once

#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <type_traits>

namespace sparsebalance::kernels::cpu {

namespace internal {
// Calls run(context, i) for i in [0, count) with `threads` threads. Not a template on purpose: the
// compiler then makes one copy of a body, not one for each way to call it. Two copies may be
// vectorized differently, and results would depend on the number of threads.
void RunUnits(int threads, int64_t count, void (*run)(void* context, int64_t unit), void* context);
}  // namespace internal

// The calling thread's place in the team of the enclosing ParallelFor, in [0, threads): not
// OpenMP's own number, which is that of a caller's team where ParallelFor needs none.
int ThreadIndex();

// Runs body(i) for i in [0, count). Units are handed out as threads become free, so each must
// write where no other does and must not depend on `threads`.
template <typename Body>
void ParallelFor(int threads, int64_t count, Body&& body) {
  using Callable = std::remove_reference_t<Body>;
  internal::RunUnits(
      threads, count, [](void* context, int64_t unit) { (*static_cast<Callable*>(context))(unit); },
      const_cast<std::remove_const_t<Callable>*>(&body));
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
