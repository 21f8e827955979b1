#include "kernels/emulation/executor.h"

#include <algorithm>
#include <cassert>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/emulation/grid.h"

namespace sparsebalance::kernels::emulation {
namespace {

constexpr unsigned char kPoison = 0xFF;
constexpr uint64_t kSharedAlignment = 16;  // of a static array, as SB_SHARED_ARRAY gives on a GPU
// A thread that has polled this often lets the others run.
constexpr int kPollsInARow = 32;
// This often for each thread of the block without any effect: nobody is left who could end the
// wait.
constexpr int64_t kFruitlessPolls = 1000;

uint64_t RoundUp(uint64_t bytes, uint64_t alignment) {
  return (bytes + alignment - 1) / alignment * alignment;
}

std::byte* AllocateShared(int64_t bytes) {
  void* memory = std::aligned_alloc(kRegionAlignment, RoundUp(bytes, kRegionAlignment));
  if (memory == nullptr) throw std::bad_alloc();
  return static_cast<std::byte*>(memory);
}

// Fibers that no device has now. Tests make many short-lived devices, and a thousand stacks are
// more work for the system than most kernels.
thread_local std::vector<std::unique_ptr<Fiber>> idle_fibers;

}  // namespace

Executor::Executor(const DeviceOptions& options)
    : options_(options),
      fibers_(std::exchange(idle_fibers, {})),
      static_memory_(AllocateShared(options.limits.static_shared_bytes)),
      dynamic_memory_(AllocateShared(options.limits.shared_bytes)) {}

Executor::~Executor() {
  if (fibers_.size() > idle_fibers.size()) idle_fibers = std::move(fibers_);
  std::free(static_memory_);
  std::free(dynamic_memory_);
}

absl::Status Executor::Launch(const cuda::LaunchConfig& config, void (*body)(void*),
                              void* closure) {
  absl::Status status = CheckLaunch(config, options_.limits);
  if (!status.ok()) return status;
  if (current_thread != nullptr) {
    return absl::FailedPreconditionError("a kernel cannot launch another one");
  }
  body_ = body;
  closure_ = closure;
  Prepare(config);
  const int64_t in_plane = int64_t{config.grid.x} * config.grid.y;
  const int64_t blocks = in_plane * config.grid.z;
  BlockOrder order(blocks, options_.order, options_.seed);
  for (int64_t i = 0; i < blocks && failure_.ok(); ++i) {
    const int64_t block = order.Next();
    grid_.block_index = {static_cast<unsigned>(block % config.grid.x),
                         static_cast<unsigned>(block % in_plane / config.grid.x),
                         static_cast<unsigned>(block / in_plane)};
    RunBlock();
  }
  return failure_;
}

void Executor::Prepare(const cuda::LaunchConfig& config) {
  kernel_ = config.name;
  grid_.grid_dim = config.grid;
  grid_.block_dim = config.block;
  failure_ = absl::OkStatus();
  random_ = options_.seed * 0x9E3779B97F4A7C15ULL + 1;
  const Dim3& block = config.block;
  num_threads_ = static_cast<int>(block.x * block.y * block.z);
  while (fibers_.size() < static_cast<size_t>(num_threads_)) {
    fibers_.push_back(std::make_unique<Fiber>(static_cast<int>(fibers_.size())));
  }
  if (threads_.size() < static_cast<size_t>(num_threads_)) threads_.resize(num_threads_);
  for (int t = 0; t < num_threads_; ++t) {
    Thread& thread = threads_[t];
    thread.linear = t;
    thread.index = {static_cast<unsigned>(t) % block.x,
                    static_cast<unsigned>(t) / block.x % block.y,
                    static_cast<unsigned>(t) / (block.x * block.y)};
    thread.grid = &grid_;
    thread.executor = this;
  }
  const int warps = (num_threads_ + kWarpSize - 1) / kWarpSize;
  warps_.resize(warps);
  for (int w = 0; w < warps; ++w) {
    const int lanes = std::min(kWarpSize, num_threads_ - w * kWarpSize);
    warps_[w].lanes = lanes == kWarpSize ? ~uint32_t{0} : (uint32_t{1} << lanes) - 1;
  }
  static_arrays_.clear();
  static_bytes_ = 0;
  dynamic_shared_ = {.data = dynamic_memory_,
                     .bytes = static_cast<uint64_t>(config.dynamic_shared_bytes),
                     .space = Space::kShared,
                     .name = "dynamic"};
}

void Executor::RunBlock() {
  std::memset(static_memory_, kPoison, static_bytes_);
  std::memset(dynamic_memory_, kPoison, dynamic_shared_.bytes);
  at_barrier_ = exited_ = 0;
  barrier_diverged_ = false;
  fruitless_polls_ = 0;
  ready_warps_ = 0;
  for (int t = 0; t < num_threads_; ++t) {
    Thread& thread = threads_[t];
    thread.exited = false;
    thread.waits_for = Operation::kNone;
    thread.polls = 0;
    thread.copies.clear();
    thread.groups.clear();
    fibers_[t]->Start(&Main, &thread);
  }
  for (Warp& warp : warps_) {
    warp.pending.clear();
    warp.ready = warp.polling = 0;
    MakeReady(warp, warp.lanes);
  }
  while (failure_.ok()) {
    Thread* thread = Next();
    if (thread == nullptr) break;
    current_thread = thread;
    fibers_[thread->linear]->Resume();
  }
  if (failure_.ok() && exited_ < num_threads_) {
    failure_ = absl::InternalError(Blame(nullptr, DescribeStuck()));
  }
  // Unfinished threads leave by an exception, so that their stacks can be used again.
  unwinding_ = true;
  for (int t = 0; t < num_threads_; ++t) {
    current_thread = &threads_[t];
    while (!threads_[t].exited) fibers_[t]->Resume();
  }
  unwinding_ = false;
  current_thread = nullptr;
}

void Executor::Main(void* argument) {
  Thread& thread = *static_cast<Thread*>(argument);
  Executor& self = *thread.executor;
  if (!self.unwinding_) {  // A thread that has not begun before the kernel stopped never does.
    std::string thrown;
    try {
      self.body_(self.closure_);
    } catch (const KernelStopped&) {
    } catch (const std::exception& e) {
      thrown = absl::StrCat("the kernel threw: ", e.what());
    } catch (...) {
      thrown = "the kernel threw";
    }
    if (!thrown.empty() && self.failure_.ok()) {
      self.failure_ = absl::InternalError(self.Blame(&thread, thrown));
    }
  }
  thread.exited = true;
  thread.waits_for = Operation::kNone;
  ++self.exited_;
  self.fruitless_polls_ = 0;
}

void Executor::Stop(Thread& thread, absl::Status status) {
  if (failure_.ok()) {
    failure_ = absl::Status(status.code(), Blame(&thread, std::string(status.message())));
  }
  throw KernelStopped();
}

// --- scheduling
// -----------------------------------------------------------------------------------

void Executor::MakeReady(Warp& warp, uint32_t lanes) {
  warp.ready |= lanes;
  ready_warps_ |= uint32_t{1} << (&warp - warps_.data());
}

uint32_t Executor::Random() {  // xorshift64*, Vigna 2014
  random_ ^= random_ >> 12;
  random_ ^= random_ << 25;
  random_ ^= random_ >> 27;
  return static_cast<uint32_t>((random_ * 0x2545F4914F6CDD1DULL) >> 32);
}

Thread* Executor::Next() {
  if (ready_warps_ == 0) {
    for (Warp& warp : warps_) {
      if (warp.polling != 0) MakeReady(warp, std::exchange(warp.polling, 0));
    }
    if (ready_warps_ == 0) return nullptr;
  }
  const auto pick = [this](uint32_t set) {
    assert(set != 0);
    switch (options_.order) {
      case Order::kForward:
        return std::countr_zero(set);
      case Order::kReversed:
        return 31 - std::countl_zero(set);
      case Order::kShuffled:
        break;
    }
    for (uint32_t skip = Random() % std::popcount(set); skip > 0; --skip) set &= set - 1;
    return std::countr_zero(set);
  };
  const int w = pick(ready_warps_);
  Warp& warp = warps_[w];
  const int lane = pick(warp.ready);
  warp.ready &= ~(uint32_t{1} << lane);
  if (warp.ready == 0) ready_warps_ &= ~(uint32_t{1} << w);
  return &threads_[w * kWarpSize + lane];
}

void Executor::Suspend(Thread& thread) {
  Thread* next = Next();
  if (next == nullptr) {
    fibers_[thread.linear]->Suspend();
  } else if (next != &thread) {
    current_thread = next;
    fibers_[thread.linear]->SuspendTo(*fibers_[next->linear]);
  }
  if (unwinding_) throw KernelStopped();
  thread.waits_for = Operation::kNone;
  thread.polls = 0;
}

void Executor::SyncThreads(Thread& thread, const CallSite& site) {
  thread.waits_for = Operation::kSyncThreads;
  thread.site = site;
  if (at_barrier_ == 0) {
    barrier_site_ = site;
    barrier_diverged_ = false;
  } else if (!SameSite(site, barrier_site_)) {
    barrier_diverged_ = true;
  }
  ++at_barrier_;
  if (at_barrier_ == num_threads_ && !barrier_diverged_) {
    at_barrier_ = 0;
    fruitless_polls_ = 0;
    for (Warp& warp : warps_) MakeReady(warp, warp.lanes);
  }
  Suspend(thread);
}

void Executor::Gather(Thread& thread, Operation operation, uint32_t mask, const CallSite& site,
                      void* operand, void (*complete)(const WarpOperation&)) {
  Warp& warp = warps_[thread.linear / kWarpSize];
  const int lane = thread.linear % kWarpSize;
  const uint32_t bit = uint32_t{1} << lane;
  if ((mask & bit) == 0) {
    Stop(thread, absl::InternalError(absl::StrCat(
                     Name(operation), " at ", site.file, ":", site.line, ": lane ", lane,
                     " is not in its own mask 0x", absl::Hex(mask, absl::kZeroPad8))));
  }
  mask &= warp.lanes;
  auto pending = std::find_if(warp.pending.begin(), warp.pending.end(),
                              [mask](const WarpOperation& o) { return o.mask == mask; });
  if (pending == warp.pending.end()) {
    pending = warp.pending.insert(pending, {operation, site, mask, 0, {}});
  } else if (pending->operation != operation || !SameSite(pending->site, site)) {
    Stop(thread, absl::InternalError(
                     absl::StrCat("the lanes of mask 0x", absl::Hex(mask, absl::kZeroPad8),
                                  " are at different calls: ", Name(operation), " at ", site.file,
                                  ":", site.line, ", others at ", Name(pending->operation), " at ",
                                  pending->site.file, ":", pending->site.line)));
  }
  pending->operands[lane] = operand;
  pending->arrived |= bit;
  thread.waits_for = operation;
  thread.site = site;
  thread.mask = mask;
  if (pending->arrived == mask) {
    if (complete != nullptr) complete(*pending);
    warp.pending.erase(pending);
    fruitless_polls_ = 0;
    MakeReady(warp, mask);
  }
  Suspend(thread);
}

void Executor::NoteAtomic(Thread& thread, bool changed) {
  if (changed) {
    fruitless_polls_ = 0;
    thread.polls = 0;
    return;
  }
  if (++thread.polls < kPollsInARow) return;
  if (++fruitless_polls_ > kFruitlessPolls) {
    thread.waits_for = Operation::kPoll;
    Stop(thread, absl::InternalError(absl::StrCat(
                     "deadlock: it polls memory that no thread of its block changes any more; ",
                     DescribeWaiting(threads_, num_threads_))));
  }
  thread.waits_for = Operation::kPoll;
  warps_[thread.linear / kWarpSize].polling |= uint32_t{1} << (thread.linear % kWarpSize);
  Suspend(thread);
}

const Region& Executor::StaticShared(Thread& thread, const SharedSite& site) {
  for (const StaticArray& array : static_arrays_) {
    if (array.site == &site) return array.region;
  }
  const uint64_t begin = RoundUp(static_bytes_, kSharedAlignment);
  const uint64_t end = begin + site.bytes;
  const DeviceLimits& limits = options_.limits;
  if (end > static_cast<uint64_t>(limits.static_shared_bytes) ||
      end + dynamic_shared_.bytes > static_cast<uint64_t>(limits.shared_bytes)) {
    Stop(thread, absl::FailedPreconditionError(absl::StrCat(
                     "with array '", site.name, "' the kernel takes ", end, " bytes of static and ",
                     dynamic_shared_.bytes, " of dynamic shared memory; this device has ",
                     limits.static_shared_bytes, " for static arrays and ", limits.shared_bytes,
                     " in all")));
  }
  std::memset(static_memory_ + begin, kPoison, site.bytes);
  static_bytes_ = end;
  static_arrays_.push_back({&site,
                            {.data = static_memory_ + begin,
                             .bytes = site.bytes,
                             .space = Space::kShared,
                             .name = site.name}});
  return static_arrays_.back().region;
}

}  // namespace sparsebalance::kernels::emulation
