#include "coordinator/store/etcd/etcd_watcher.h"

#include <utility>

#include "absl/status/status.h"

namespace sparsebalance {
namespace {

// Before the next try after a connection has ended.
constexpr absl::Duration kPause = absl::Milliseconds(100);

}  // namespace

EtcdWatcher::EtcdWatcher(EtcdClient* client, EtcdRange range, Listener listener)
    : client_(client),
      range_(std::move(range)),
      listener_(std::move(listener)),
      thread_([this] { Run(); }) {}

EtcdWatcher::~EtcdWatcher() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (following_ != nullptr) following_->Stop();
  }
  thread_.join();
}

void EtcdWatcher::ListAgain() {
  absl::MutexLock lock(&mutex_);
  listed_ = false;
  if (following_ != nullptr) following_->Stop();
}

void EtcdWatcher::Run() {
  while (true) {
    bool listed = false;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
      // What is missed from here on is asked for again by another ListAgain.
      listed = std::exchange(listed_, true);
    }
    if (!listed) List();
    Follow();
    absl::MutexLock lock(&mutex_);
    mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kPause);
  }
}

void EtcdWatcher::List() {
  const absl::StatusOr<EtcdSnapshot> snapshot = client_->ReadRange(range_);
  if (!snapshot.ok()) {
    absl::MutexLock lock(&mutex_);
    listed_ = false;
    return;
  }
  seen_ = snapshot->revision;
  listener_.listed(*snapshot);
}

void EtcdWatcher::Follow() {
  EtcdStopper stopper;
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_ || !listed_) return;
    following_ = &stopper;
  }
  // However it ends, it is taken up again where it stopped.
  client_
      ->Watch(range_, seen_ + 1, stopper,
              [this](const etcdserverpb::WatchResponse& response) { return Hear(response); })
      .IgnoreError();
  absl::MutexLock lock(&mutex_);
  following_ = nullptr;
}

bool EtcdWatcher::Hear(const etcdserverpb::WatchResponse& response) {
  // A store that was wiped or set back does not have the revision that we would wait for. (Nor has
  // a member that lags behind, which costs a few lists for nothing.)
  const bool set_back = response.created() && response.header().revision() < seen_;
  if (set_back || response.canceled()) {
    absl::MutexLock lock(&mutex_);
    listed_ = false;
    return false;
  }
  if (response.events().empty()) return true;
  listener_.changed({response.events().begin(), response.events().end()});
  seen_ = response.events().rbegin()->kv().mod_revision();
  return true;
}

}  // namespace sparsebalance
