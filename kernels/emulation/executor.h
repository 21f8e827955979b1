#pragma once

// Runs the blocks of a launch: a fiber a thread, a scheduler, the block's shared memory and
// barriers. Internal to the emulation; device.h and context.h are its faces.

#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/cuda/device/launch_config.h"
#include "kernels/emulation/context.h"
#include "kernels/emulation/device.h"
#include "kernels/emulation/fiber.h"

namespace sparsebalance::kernels::emulation {

class Executor;

enum class Operation : uint8_t {
  kNone,
  kSyncThreads,
  kSyncWarp,
  kShuffle,
  kVote,
  kLdMatrix,
  kMma,
  kPoll,
};

// What cp.async has read and not written yet.
struct PendingCopy {
  std::byte* to = nullptr;
  int bytes = 0;
  std::array<std::byte, 16> data;
};

struct Thread : ThreadContext {
  Executor* executor = nullptr;
  bool exited = false;
  // What it waits for, where, and of a warp's operation its mask.
  Operation waits_for = Operation::kNone;
  CallSite site;
  uint32_t mask = 0;
  int polls = 0;  // atomic operations without effect since it was last scheduled
  std::vector<PendingCopy> copies;
  std::vector<size_t> groups;  // how many of the copies belong to each group and those before it
};

// An operation that some lanes of its mask have reached.
struct WarpOperation {
  Operation operation = Operation::kNone;
  CallSite site;
  uint32_t mask = 0, arrived = 0;
  std::array<void*, kWarpSize> operands;
};

struct Warp {
  uint32_t lanes = 0;    // that the block has
  uint32_t ready = 0;    // lanes that can run
  uint32_t polling = 0;  // lanes that let others run before they look again
  std::vector<WarpOperation> pending;
};

// Thrown through a kernel to end it.
struct KernelStopped {};

class Executor {
 public:
  explicit Executor(const DeviceOptions& options);
  ~Executor();
  Executor(const Executor&) = delete;
  Executor& operator=(const Executor&) = delete;

  absl::Status Launch(const cuda::LaunchConfig& config, void (*body)(void*), void* closure);

  // --- called by the running thread
  // ---------------------------------------------------------------
  [[noreturn]] void Stop(Thread& thread, absl::Status status);
  void SyncThreads(Thread& thread, const CallSite& site);
  // Returns when all of the mask have arrived and complete(operation) has run, by the last of them.
  void Gather(Thread& thread, Operation operation, uint32_t mask, const CallSite& site,
              void* operand, void (*complete)(const WarpOperation&));
  void NoteAtomic(Thread& thread, bool changed);
  const Region& StaticShared(Thread& thread, const SharedSite& site);
  const Region& DynamicShared() const { return dynamic_shared_; }
  uint32_t lanes_of_warp(const Thread& thread) const {
    return warps_[thread.linear / kWarpSize].lanes;
  }

 private:
  struct StaticArray {
    const SharedSite* site;
    Region region;
  };

  void Prepare(const cuda::LaunchConfig& config);
  void RunBlock();
  static void Main(void* thread);
  Thread* Next();
  void Suspend(Thread& thread);
  void MakeReady(Warp& warp, uint32_t lanes);
  uint32_t Random();
  // Puts kernel, block and thread before a message.
  std::string Blame(const Thread* thread, const std::string& message) const;
  // What is wrong when no thread can run and not all have returned.
  std::string DescribeStuck() const;

  const DeviceOptions& options_;
  std::vector<std::unique_ptr<Fiber>> fibers_;

  // Of a launch.
  const char* kernel_ = "";
  void (*body_)(void*) = nullptr;
  void* closure_ = nullptr;
  GridContext grid_;
  int num_threads_ = 0;
  std::vector<Thread> threads_;
  std::vector<Warp> warps_;
  std::deque<StaticArray> static_arrays_;
  uint64_t static_bytes_ = 0;
  Region dynamic_shared_;
  std::byte* static_memory_ = nullptr;
  std::byte* dynamic_memory_ = nullptr;

  // Of a block.
  uint32_t ready_warps_ = 0;  // those with a lane that can run
  int at_barrier_ = 0, exited_ = 0;
  bool barrier_diverged_ = false;
  CallSite barrier_site_;
  int64_t fruitless_polls_ = 0;  // rounds of polling since something happened
  uint64_t random_ = 0;
  bool unwinding_ = false;
  absl::Status failure_;
};

// "[1, 0, 0]"
std::string ToString(const Dim3& index);
bool SameSite(const CallSite& a, const CallSite& b);
// The public name of an operation.
const char* Name(Operation operation);
// Says who of the block waits where.
std::string DescribeWaiting(const std::vector<Thread>& threads, int num_threads);

inline Thread& CurrentThread() { return *static_cast<Thread*>(current_thread); }

}  // namespace sparsebalance::kernels::emulation
