// The inner parts of FakeGpu: a stream is a thread, a group is where collectives of ranks meet.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "worker/comm/nccl_api.h"

namespace sparsebalance::comm_testing {

// Runs tasks one after another on a thread of its own.
class FakeStream {
 public:
  FakeStream() : thread_([this] { Loop(); }) {}
  ~FakeStream() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      closing_ = true;
    }
    changed_.notify_all();
    thread_.join();
  }
  void Push(std::function<void()> task) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    changed_.notify_all();
  }

  // For a task: runs `wait`, which returns once `over` says true.
  static void Wait(std::function<bool()> over, const std::function<void()>& wait) {
    FakeStream* const stream = current_;
    stream->SetWaiting(std::move(over));
    wait();
    stream->SetWaiting(nullptr);
  }

  // Has nothing to do, or waits for what is not there: time alone changes nothing.
  bool IsStuck() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return waiting_ ? !waiting_() : tasks_.empty() && !running_;
  }

 private:
  void SetWaiting(std::function<bool()> over) {
    const std::lock_guard<std::mutex> lock(mutex_);
    waiting_ = std::move(over);
  }

  void Loop() {
    current_ = this;
    for (;;) {
      std::function<void()> task;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        running_ = false;
        changed_.wait(lock, [this] { return closing_ || !tasks_.empty(); });
        if (tasks_.empty()) return;
        task = std::move(tasks_.front());
        tasks_.pop_front();
        running_ = true;
      }
      task();
    }
  }

  static thread_local inline FakeStream* current_ = nullptr;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> tasks_;
  std::function<bool()> waiting_;
  bool running_ = false;
  bool closing_ = false;
  std::thread thread_;
};

class FakeEvent {
 public:
  // The number of a new recording, which Complete() ends.
  uint64_t Record() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return ++recorded_;
  }
  void Complete(uint64_t number) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      done_ = number;
    }
    changed_.notify_all();
  }
  uint64_t recorded() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return recorded_;
  }
  bool Reached(uint64_t number) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return done_ >= number;
  }
  // On a stream.
  void Await(uint64_t number) {
    FakeStream::Wait([=, this] { return Reached(number); },
                     [=, this] {
                       std::unique_lock<std::mutex> lock(mutex_);
                       changed_.wait(lock, [&] { return done_ >= number; });
                     });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  uint64_t recorded_ = 0;
  uint64_t done_ = 0;
};

enum class FakeKind { kAllReduce, kAllGather, kBroadcast };

// What a rank brings to a collective.
struct FakeCall {
  FakeKind kind = FakeKind::kAllReduce;
  NcclType type = NcclType::kFloat;
  NcclReduction reduction = NcclReduction::kSum;
  int root = 0;
  size_t count = 0;
  std::byte* data = nullptr;

  bool SameAs(const FakeCall& other) const {
    return kind == other.kind && type == other.type && reduction == other.reduction &&
           root == other.root && count == other.count;
  }
};

inline size_t FakeBytes(NcclType type) { return type == NcclType::kFloat ? 4 : 8; }

class FakeGroup {
 public:
  explicit FakeGroup(int size) : size_(size), completed_(size) {}

  void Join() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++joined_;
  }
  bool complete() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return joined_ == size_;
  }
  // The rank's communicator is gone.
  void Leave() {
    const std::lock_guard<std::mutex> lock(mutex_);
    ++left_;
  }
  bool anyone_left() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return left_ > 0;
  }

  // How many of the rank's collectives have their result.
  uint64_t completed(int rank) {
    const std::lock_guard<std::mutex> lock(mutex_);
    return completed_[rank];
  }

  // The rank's `index`-th collective; returns when all have come to it or `aborted` is true.
  void Run(int rank, uint64_t index, const FakeCall& call, const bool& aborted) {
    std::unique_lock<std::mutex> lock(mutex_);
    if (aborted) return;
    Round& round = rounds_[index];
    if (round.calls.empty()) round.calls.resize(size_);
    round.calls[rank] = call;
    if (++round.arrived == size_ && Agree(round)) {
      Complete(round);
      round.done = true;
      for (uint64_t& completed : completed_) completed = index + 1;
      changed_.notify_all();
    }
    lock.unlock();
    const auto over = [&] { return round.done || aborted; };
    FakeStream::Wait(
        [&] {
          const std::lock_guard<std::mutex> look(mutex_);
          return over();
        },
        [&] {
          std::unique_lock<std::mutex> wait(mutex_);
          changed_.wait(wait, over);
          // Its memory may be gone by the time that the others come.
          if (!round.done) --round.arrived;
        });
  }
  // Sets what Run() looks at.
  void Abort(bool& aborted) {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      aborted = true;
    }
    changed_.notify_all();
  }

 private:
  struct Round {
    std::vector<FakeCall> calls;
    int arrived = 0;
    bool done = false;
  };

  static bool Agree(const Round& round) {
    for (const FakeCall& call : round.calls) {
      if (!call.SameAs(round.calls[0])) return false;
    }
    return true;
  }

  void Complete(Round& round) {
    const FakeCall& first = round.calls[0];
    const size_t bytes = first.count * FakeBytes(first.type);
    if (first.kind == FakeKind::kAllReduce) {
      if (first.type == NcclType::kFloat) return Reduce<float>(round);
      if (first.type == NcclType::kDouble) return Reduce<double>(round);
      return Reduce<int64_t>(round);
    }
    for (int to = 0; to < size_; ++to) {
      for (int from = 0; from < size_; ++from) {
        if (to == from || (first.kind == FakeKind::kBroadcast && from != first.root)) continue;
        const size_t offset = first.kind == FakeKind::kAllGather ? from * bytes : 0;
        std::memcpy(round.calls[to].data + offset, round.calls[from].data + offset, bytes);
      }
    }
  }

  template <typename T>
  void Reduce(Round& round) {
    const FakeCall& first = round.calls[0];
    for (size_t i = 0; i < first.count; ++i) {
      // As in a ring: every element begins at another rank.
      T sum = Load<T>(round.calls[(i + 1) % size_], i);
      for (int r = 1; r < size_; ++r) {
        const T value = Load<T>(round.calls[(i + 1 + r) % size_], i);
        if (first.reduction == NcclReduction::kSum) sum = sum + value;
        if (first.reduction == NcclReduction::kMax) sum = value > sum ? value : sum;
        if (first.reduction == NcclReduction::kMin) sum = value < sum ? value : sum;
      }
      for (const FakeCall& call : round.calls) {
        std::memcpy(call.data + i * sizeof(T), &sum, sizeof(T));
      }
    }
  }
  template <typename T>
  static T Load(const FakeCall& call, size_t i) {
    T value;
    std::memcpy(&value, call.data + i * sizeof(T), sizeof(T));
    return value;
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<uint64_t, Round> rounds_;
  std::vector<uint64_t> completed_;
  int joined_ = 0;
  int left_ = 0;
};

struct FakeComm {
  std::shared_ptr<FakeGroup> group;
  int rank = 0;
  int in_progress = 0;           // answers of AsyncError() until the call has taken effect
  std::function<void()> launch;  // what it does then
  bool joining = true;
  bool finalizing = false;
  bool gone = false;     // destroyed or aborted: any further use is an error
  bool aborted = false;  // guarded by the group
  uint64_t issued = 0;

  // Nothing of it is under way.
  bool idle() const { return group->completed(rank) == issued; }
};

}  // namespace sparsebalance::comm_testing
