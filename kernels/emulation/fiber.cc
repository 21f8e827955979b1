#include "kernels/emulation/fiber.h"

#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#if defined(__x86_64__) && !defined(SB_FIBER_UCONTEXT)
#define SB_FIBER_ASSEMBLY 1
#else
#include <ucontext.h>
#endif
#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif
#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace sparsebalance::kernels::emulation {
namespace {

constexpr size_t kPage = 4096;
// Sanitizers make frames several times larger.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr size_t kStackBytes = 256 * 1024;
#else
constexpr size_t kStackBytes = 64 * 1024;
#endif

#if defined(SB_FIBER_ASSEMBLY)

// Saves the registers that a called function keeps, then continues where `load` was saved. The
// state of the floating-point unit is the same for all fibers and not switched.
extern "C" void SbFiberSwitch(void** save, void* load);
// Where a new fiber begins: the registers that were "saved" for it hold function and argument.
extern "C" void SbFiberBegin();

asm(R"(
.pushsection .text
.p2align 4
.type SbFiberSwitch, @function
SbFiberSwitch:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size SbFiberSwitch, .-SbFiberSwitch
.p2align 4
.type SbFiberBegin, @function
SbFiberBegin:
  .cfi_startproc
  .cfi_undefined rip
  movq %r12, %rdi
  callq *%r13
  ud2
  .cfi_endproc
.size SbFiberBegin, .-SbFiberBegin
.popsection
)");

struct Machine {
  void* stack_pointer = nullptr;

  void Init(std::byte* stack, size_t bytes, void (*entry)(void*), void* argument) {
    // The call in SbFiberBegin needs a stack pointer that is a multiple of 16.
    auto top = (reinterpret_cast<uintptr_t>(stack) + bytes) & ~uintptr_t{15};
    auto* words = reinterpret_cast<void**>(top);
    *--words = nullptr;
    *--words = nullptr;
    *--words = reinterpret_cast<void*>(&SbFiberBegin);
    *--words = nullptr;                         // rbp
    *--words = nullptr;                         // rbx
    *--words = argument;                        // r12
    *--words = reinterpret_cast<void*>(entry);  // r13
    *--words = nullptr;                         // r14
    *--words = nullptr;                         // r15
    stack_pointer = words;
  }
  static void Switch(Machine& from, Machine& to) {
    SbFiberSwitch(&from.stack_pointer, to.stack_pointer);
  }
};

#else

struct Machine {
  ucontext_t context;
  void (*entry)(void*) = nullptr;
  void* argument = nullptr;

  // makecontext passes on nothing but ints.
  static void Begin(unsigned high, unsigned low) {
    auto* self = reinterpret_cast<Machine*>((static_cast<uintptr_t>(high) << 32) | low);
    self->entry(self->argument);
  }
  void Init(std::byte* stack, size_t bytes, void (*function)(void*), void* value) {
    entry = function;
    argument = value;
    getcontext(&context);
    context.uc_stack.ss_sp = stack;
    context.uc_stack.ss_size = bytes;
    context.uc_link = nullptr;
    const auto self = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(this));
    makecontext(&context, reinterpret_cast<void (*)()>(&Begin), 2,
                static_cast<unsigned>(self >> 32), static_cast<unsigned>(self));
  }
  static void Switch(Machine& from, Machine& to) { swapcontext(&from.context, &to.context); }
};

#endif

// One end of a switch, and what the sanitizers know it by.
struct Side {
  Machine machine;
  const void* stack = nullptr;
  size_t stack_bytes = 0;
  void* fake_stack = nullptr;
  void* tsan_fiber = nullptr;
  Side* came_from = nullptr;
};

// The first thing to do on `side`.
void Arrive(Side& side) {
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_finish_switch_fiber(side.fake_stack, &side.came_from->stack,
                                  &side.came_from->stack_bytes);
#else
  static_cast<void>(side);
#endif
}

// Returns when something switches back to `from`; `last`: nothing ever will.
void Switch(Side& from, Side& to, bool last) {
  to.came_from = &from;
#if defined(__SANITIZE_ADDRESS__)
  __sanitizer_start_switch_fiber(last ? nullptr : &from.fake_stack, to.stack, to.stack_bytes);
#else
  static_cast<void>(last);
#endif
#if defined(__SANITIZE_THREAD__)
  __tsan_switch_to_fiber(to.tsan_fiber, 0);
#endif
  Machine::Switch(from.machine, to.machine);
  Arrive(from);
}

}  // namespace

struct Fiber::State {
  Side self;
  Side* resumer = nullptr;  // on the stack of Resume
  std::byte* mapping = nullptr;
  bool entered = false, finished = true, quit = false;
  Body body = nullptr;
  void* argument = nullptr;
};

Fiber::Fiber(int color) : state_(std::make_unique<State>()) {
  State& state = *state_;
  // A page below the stack that faults: an overflow must not reach the next fiber's stack.
  void* mapping = mmap(nullptr, kStackBytes + kPage, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED || mprotect(mapping, kPage, PROT_NONE) != 0) {
    std::perror("no memory for the stack of an emulated CUDA thread");
    std::abort();
  }
  state.mapping = static_cast<std::byte*>(mapping);
  state.self.stack = state.mapping + kPage;
  state.self.stack_bytes = kStackBytes;
#if defined(__SANITIZE_THREAD__)
  state.self.tsan_fiber = __tsan_create_fiber(0);
#endif
  const size_t offset = static_cast<size_t>(color % 29) * 128;
  state.self.machine.Init(
      state.mapping + kPage, kStackBytes - offset,
      [](void* argument) { Main(static_cast<State*>(argument)); }, &state);
}

Fiber::~Fiber() {
  State& state = *state_;
  if (state.entered) {  // Let the main function leave, so that the sanitizers drop the fiber.
    state.quit = true;
    Resume();
  }
#if defined(__SANITIZE_THREAD__)
  __tsan_destroy_fiber(state.self.tsan_fiber);
#endif
#if defined(__SANITIZE_ADDRESS__)
  ASAN_UNPOISON_MEMORY_REGION(state.mapping, kStackBytes + kPage);
#endif
  munmap(state.mapping, kStackBytes + kPage);
}

void Fiber::Start(Body body, void* argument) {
  state_->body = body;
  state_->argument = argument;
  state_->finished = false;
}

bool Fiber::Resume() {
  State& state = *state_;
  Side here;
#if defined(__SANITIZE_THREAD__)
  here.tsan_fiber = __tsan_get_current_fiber();
#endif
  state.entered = true;
  state.resumer = &here;
  Switch(here, state.self, /*last=*/false);
  return state.finished;
}

void Fiber::Suspend() { Switch(state_->self, *state_->resumer, /*last=*/false); }

void Fiber::SuspendTo(Fiber& next) {
  next.state_->entered = true;
  next.state_->resumer = state_->resumer;
  Switch(state_->self, next.state_->self, /*last=*/false);
}

void Fiber::Main(State* state) {
  Arrive(state->self);
  while (!state->quit) {
    state->body(state->argument);
    state->finished = true;
    Switch(state->self, *state->resumer, /*last=*/false);
  }
  Switch(state->self, *state->resumer, /*last=*/true);
}

}  // namespace sparsebalance::kernels::emulation
