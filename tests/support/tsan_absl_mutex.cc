// Makes absl::Mutex and absl::CondVar of Debian's libabsl visible to ThreadSanitizer. The library
// is not instrumented, so its locks would not order anything; these definitions stand before it in
// every ThreadSanitizer build, tell the sanitizer what happens, and call the library. Conditions
// run inside the library's calls, which the sanitizer looks away from: they run under the lock.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <mutex>
#include <type_traits>

#include "absl/synchronization/mutex.h"

// Libraries share one copy of what the compiler did not inline, and for Gloo's exceptions, which
// unlock through this one, it would be libspdlog's, whose calls tests/tsan.supp has the sanitizer
// ignore: the mutex would count as locked for ever. A copy in the program comes before all others.
template class std::unique_lock<std::mutex>;

namespace absl {
ABSL_NAMESPACE_BEGIN
namespace {

// Waits with a time-out call waits with a deadline through these very definitions: only the outer
// call tells the sanitizer.
thread_local bool waiting = false;

constexpr unsigned kRead = __tsan_mutex_read_lock;

template <typename Function>
Function* Next(const char* symbol) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, symbol));
}

template <typename Call>
auto WhileLocking(void* mutex, unsigned flags, Call call) {
  __tsan_mutex_pre_lock(mutex, flags);
  if constexpr (std::is_void_v<decltype(call())>) {
    call();
    __tsan_mutex_post_lock(mutex, flags, 0);
  } else {
    auto result = call();
    __tsan_mutex_post_lock(mutex, flags, 0);
    return result;
  }
}

template <typename Call>
void WhileUnlocking(void* mutex, unsigned flags, Call call) {
  __tsan_mutex_pre_unlock(mutex, flags);
  call();
  __tsan_mutex_post_unlock(mutex, flags);
}

// A wait gives the lock up and takes it again.
template <typename Call>
auto WhileWaiting(void* mutex, Call call) {
  if (waiting) return call();
  struct Outer {
    Outer() { waiting = true; }
    ~Outer() { waiting = false; }
  } outer;
  WhileUnlocking(mutex, 0, [] {});
  return WhileLocking(mutex, 0, call);
}

}  // namespace

void Mutex::Lock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex4LockEv");
  WhileLocking(this, 0, [&] { next(this); });
}
void Mutex::Unlock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex6UnlockEv");
  WhileUnlocking(this, 0, [&] { next(this); });
}
bool Mutex::TryLock() {
  static auto* const next = Next<bool(Mutex*)>("_ZN4absl7debian35Mutex7TryLockEv");
  __tsan_mutex_pre_lock(this, __tsan_mutex_try_lock);
  const bool taken = next(this);
  __tsan_mutex_post_lock(this, __tsan_mutex_try_lock | (taken ? 0 : __tsan_mutex_try_lock_failed),
                         0);
  return taken;
}
void Mutex::ReaderLock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex10ReaderLockEv");
  WhileLocking(this, kRead, [&] { next(this); });
}
void Mutex::ReaderUnlock() {
  static auto* const next = Next<void(Mutex*)>("_ZN4absl7debian35Mutex12ReaderUnlockEv");
  WhileUnlocking(this, kRead, [&] { next(this); });
}
void Mutex::LockWhen(const Condition& condition) {
  static auto* const next =
      Next<void(Mutex*, const Condition&)>("_ZN4absl7debian35Mutex8LockWhenERKNS0_9ConditionE");
  WhileLocking(this, 0, [&] { next(this, condition); });
}
void Mutex::Await(const Condition& condition) {
  static auto* const next =
      Next<void(Mutex*, const Condition&)>("_ZN4absl7debian35Mutex5AwaitERKNS0_9ConditionE");
  WhileWaiting(this, [&] { next(this, condition); });
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static auto* const next = Next<bool(Mutex*, const Condition&, Duration)>(
      "_ZN4absl7debian35Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  return WhileWaiting(this, [&] { return next(this, condition, timeout); });
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static auto* const next = Next<bool(Mutex*, const Condition&, Time)>(
      "_ZN4absl7debian35Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  return WhileWaiting(this, [&] { return next(this, condition, deadline); });
}
void CondVar::Wait(Mutex* mutex) {
  static auto* const next =
      Next<void(CondVar*, Mutex*)>("_ZN4absl7debian37CondVar4WaitEPNS0_5MutexE");
  WhileWaiting(mutex, [&] { next(this, mutex); });
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static auto* const next = Next<bool(CondVar*, Mutex*, Duration)>(
      "_ZN4absl7debian37CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  return WhileWaiting(mutex, [&] { return next(this, mutex, timeout); });
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static auto* const next = Next<bool(CondVar*, Mutex*, Time)>(
      "_ZN4absl7debian37CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  return WhileWaiting(mutex, [&] { return next(this, mutex, deadline); });
}

ABSL_NAMESPACE_END
}  // namespace absl
