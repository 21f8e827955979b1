#include "coordinator/service/plan_executor.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace sparsebalance {
namespace {

// Weight of the latest task in a flow's expected time.
constexpr double kLatestWeight = 0.5;

PlanExecutorOptions Completed(PlanExecutorOptions options) {
  options.threads = std::max(options.threads, 1);
  if (!options.now) {
    options.now = [] {
      return absl::UnixEpoch() +
             absl::FromChrono(std::chrono::duration_cast<std::chrono::nanoseconds>(
                 std::chrono::steady_clock::now().time_since_epoch()));
    };
  }
  return options;
}

}  // namespace

ThreadPoolExecutor::ThreadPoolExecutor(PlanExecutorOptions options)
    : options_(Completed(std::move(options))) {
  threads_.reserve(static_cast<size_t>(options_.threads));
  for (int i = 0; i < options_.threads; ++i) threads_.emplace_back([this] { Run(); });
}

ThreadPoolExecutor::~ThreadPoolExecutor() { Stop(); }

PlanExecutor::FlowId ThreadPoolExecutor::NewFlow() {
  absl::MutexLock lock(&mutex_);
  flows_[next_flow_];
  return next_flow_++;
}

void ThreadPoolExecutor::EndFlow(FlowId flow) {
  absl::MutexLock lock(&mutex_);
  const auto entry = flows_.find(flow);
  if (entry == flows_.end()) return;
  entry->second.ended = true;
  if (!entry->second.running && entry->second.tasks.empty()) flows_.erase(entry);
}

bool ThreadPoolExecutor::TrySubmit(FlowId flow, Task task) {
  absl::MutexLock lock(&mutex_);
  const auto entry = flows_.find(flow);
  if (stopping_ || entry == flows_.end()) return false;
  Flow& taken = entry->second;
  if (queued_ >= options_.max_queued ||
      (!taken.tasks.empty() && queued_ >= options_.max_queued / 2)) {
    ++refused_;
    return false;
  }
  if (taken.tasks.empty() && !taken.running) taken.used = std::max(taken.used, virtual_now_);
  taken.tasks.push_back({std::move(task), options_.now()});
  ++queued_;
  return true;
}

ThreadPoolExecutor::Load ThreadPoolExecutor::load() const {
  absl::MutexLock lock(&mutex_);
  Load load;
  load.queued = queued_;
  load.running = running_;
  load.refused = refused_;
  const absl::Time now = options_.now();
  for (const auto& [id, flow] : flows_) {
    if (!flow.tasks.empty()) {
      load.oldest_wait = std::max(load.oldest_wait, now - flow.tasks.front().since);
    }
  }
  return load;
}

void ThreadPoolExecutor::Stop() {
  std::vector<Task> dropped;  // destroyed after the lock: tasks may own anything
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    for (auto& [id, flow] : flows_) {
      for (Queued& queued : flow.tasks) dropped.push_back(std::move(queued.task));
      flow.tasks.clear();
    }
    queued_ = 0;
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
}

bool ThreadPoolExecutor::MayRun(const Flow& flow) const {
  if (flow.running || flow.tasks.empty()) return false;
  return !IsLong(flow) || options_.threads == 1 || long_running_ < options_.threads - 1;
}

bool ThreadPoolExecutor::AnyMayRun() const {
  return std::any_of(flows_.begin(), flows_.end(),
                     [this](const auto& entry)
                         ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return MayRun(entry.second); });
}

ThreadPoolExecutor::Flow* ThreadPoolExecutor::Next() {
  Flow* next = nullptr;
  for (auto& [id, flow] : flows_) {
    if (MayRun(flow) && (next == nullptr || flow.used < next->used)) next = &flow;
  }
  return next;
}

void ThreadPoolExecutor::Run() {
  while (true) {
    Flow* flow = nullptr;
    bool counts_as_long = false;
    Task task;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return stopping_ || (queued_ > 0 && AnyMayRun());
      };
      mutex_.Await(absl::Condition(&work));
      if (stopping_) return;
      flow = Next();
      task = std::move(flow->tasks.front().task);
      flow->tasks.pop_front();
      --queued_;
      flow->running = true;
      ++running_;
      counts_as_long = IsLong(*flow);
      if (counts_as_long) ++long_running_;
      virtual_now_ = std::max(virtual_now_, flow->used);
    }
    const absl::Time begin = options_.now();
    task();
    task = nullptr;  // what it owns goes before the flow may end
    const absl::Duration took = options_.now() - begin;
    absl::MutexLock lock(&mutex_);
    flow->running = false;
    --running_;
    if (counts_as_long) --long_running_;
    flow->used += took;
    flow->expected = flow->expected == absl::ZeroDuration()
                         ? took
                         : flow->expected * (1 - kLatestWeight) + took * kLatestWeight;
    if (flow->ended && flow->tasks.empty()) {
      std::erase_if(flows_, [flow](const auto& entry) { return &entry.second == flow; });
    }
  }
}

}  // namespace sparsebalance
