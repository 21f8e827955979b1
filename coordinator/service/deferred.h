// Calls made when a scope ends: declared before a lock, they run after it is released, so that no
// answer is given, and no other object's lock taken, under a job's mutex.
//
//   Deferred after;
//   absl::MutexLock lock(&mutex_);
//   after.Add([done = std::move(done)]() mutable { done(absl::OkStatus()); });
#pragma once

#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace sparsebalance {

class Deferred {
 public:
  Deferred() = default;
  Deferred(const Deferred&) = delete;
  Deferred& operator=(const Deferred&) = delete;
  ~Deferred() {
    for (auto& call : calls_) std::move(call)();
  }

  void Add(absl::AnyInvocable<void() &&> call) { calls_.push_back(std::move(call)); }

 private:
  std::vector<absl::AnyInvocable<void() &&>> calls_;
};

}  // namespace sparsebalance
