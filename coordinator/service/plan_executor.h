// Threads that plan. RPC threads hand work over and return at once.
//
// Fair between flows, one flow a job: of the jobs that have something to plan, the one whose plans
// have used the least thread time goes first (start-time fair queueing: a flow that was idle starts
// level with those at work, it has saved nothing up). A flow's tasks run one at a time, in their
// order. Nothing is interrupted, so flows whose tasks take long may together hold all threads but
// one: a job with short plans waits for other short plans at most.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance {

class PlanExecutor {
 public:
  using Task = absl::AnyInvocable<void()>;
  using FlowId = uint64_t;

  virtual ~PlanExecutor() = default;

  // A number that no flow of this executor had before.
  virtual FlowId NewFlow() = 0;
  // The flow is over. Tasks that are queued or run still end as usual.
  virtual void EndFlow(FlowId flow) = 0;

  // False where the queue is full or the executor stops; the task is then dropped. A queue that is
  // half full takes one waiting task of each flow.
  virtual bool TrySubmit(FlowId flow, Task task) = 0;
};

struct PlanExecutorOptions {
  int threads = 2;          // >= 1
  size_t max_queued = 256;  // tasks that may wait besides those that run
  // A flow whose tasks take longer on average is long.
  absl::Duration long_task = absl::Milliseconds(50);
  // For tests; the steady clock where empty.
  std::function<absl::Time()> now;
};

class ThreadPoolExecutor : public PlanExecutor {
 public:
  struct Load {
    size_t queued = 0;
    size_t running = 0;
    uint64_t refused = 0;        // since the start
    absl::Duration oldest_wait;  // of the queued tasks
  };

  explicit ThreadPoolExecutor(PlanExecutorOptions options);
  ~ThreadPoolExecutor() override;  // Stop()

  FlowId NewFlow() override ABSL_LOCKS_EXCLUDED(mutex_);
  void EndFlow(FlowId flow) override ABSL_LOCKS_EXCLUDED(mutex_);
  bool TrySubmit(FlowId flow, Task task) override ABSL_LOCKS_EXCLUDED(mutex_);

  Load load() const ABSL_LOCKS_EXCLUDED(mutex_);

  // Drops what is queued and waits for what runs. Idempotent.
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Queued {
    Task task;
    absl::Time since;
  };
  struct Flow {
    std::deque<Queued> tasks;
    absl::Duration used;  // virtual time: thread time used, never behind virtual_now_ when woken
    absl::Duration expected;  // of the next task: moving average of those before
    bool running = false;
    bool ended = false;
  };

  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  bool IsLong(const Flow& flow) const { return flow.expected > options_.long_task; }
  // The flow to serve next; null where none may run now.
  Flow* Next() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool MayRun(const Flow& flow) const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  bool AnyMayRun() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);

  const PlanExecutorOptions options_;
  mutable absl::Mutex mutex_;
  // Nodes of a map stay where they are, so that a thread may keep a pointer while it runs a task.
  std::map<FlowId, Flow> flows_ ABSL_GUARDED_BY(mutex_);
  FlowId next_flow_ ABSL_GUARDED_BY(mutex_) = 1;
  absl::Duration virtual_now_ ABSL_GUARDED_BY(mutex_);
  size_t queued_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t running_ ABSL_GUARDED_BY(mutex_) = 0;
  int long_running_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t refused_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_;
};

}  // namespace sparsebalance
