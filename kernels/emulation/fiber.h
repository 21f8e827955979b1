#pragma once

// A function with a stack of its own, which stops in the middle and goes on later. All on one OS
// thread, in the order of the calls:
//
//   Fiber fiber(0);
//   fiber.Start(&Body, &argument);
//   while (!fiber.Resume()) { ... }  // Body has called fiber.Suspend()
//
// A switch takes a few nanoseconds on x86-64; elsewhere it goes through ucontext. AddressSanitizer
// and ThreadSanitizer are told about every switch.

#include <memory>

namespace sparsebalance::kernels::emulation {

class Fiber {
 public:
  using Body = void (*)(void* argument);

  // Fibers with different `color`s begin at different cache lines of their pages: stacks that all
  // begin at the same one evict each other from the first-level cache.
  explicit Fiber(int color);
  // Whatever Start has begun must have returned.
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  // The next Resume calls body(argument), which must not let an exception out. A fiber may be used
  // for one body after another.
  void Start(Body body, void* argument);
  // Runs until the body, or one that it has handed over to, suspends or returns; true if this
  // fiber's body has returned.
  bool Resume();
  // Called by the body: back to where Resume was called. Returns when this fiber is resumed.
  void Suspend();
  // Called by the body: as if `next` were resumed in its place. Three times as fast as going
  // through the caller of Resume, since the processor predicts the returns of fibers that all stop
  // at the same place.
  void SuspendTo(Fiber& next);

 private:
  struct State;
  static void Main(State* state);

  std::unique_ptr<State> state_;
};

}  // namespace sparsebalance::kernels::emulation
