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
  // Runs until the body suspends (false) or returns (true).
  bool Resume();
  // Called by the body: returns when it is resumed.
  void Suspend();

 private:
  struct State;
  static void Main(State* state);

  std::unique_ptr<State> state_;
};

}  // namespace sparsebalance::kernels::emulation
