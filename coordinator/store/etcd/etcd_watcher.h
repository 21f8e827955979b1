// Follows a range of keys for as long as it lives, over lost connections, members and history.
#pragma once

#include <cstdint>
#include <functional>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/store/etcd/etcd_client.h"

namespace sparsebalance {

class EtcdWatcher {
 public:
  // Both are called from the watcher's thread, without locks.
  struct Listener {
    // Everything that is in the range: at first, and after changes were missed, as where etcd
    // has forgotten them or was set back.
    std::function<void(const EtcdSnapshot&)> listed;
    // What has changed since, revisions rising, each whole.
    std::function<void(const std::vector<etcdserverpb::Event>&)> changed;
  };

  // `client` outlives the watcher.
  EtcdWatcher(EtcdClient* client, EtcdRange range, Listener listener);
  ~EtcdWatcher();  // waits for a read under way, at most the client's call_timeout

  EtcdWatcher(const EtcdWatcher&) = delete;
  EtcdWatcher& operator=(const EtcdWatcher&) = delete;

  // Lists anew, soon.
  void ListAgain() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  void Run() ABSL_LOCKS_EXCLUDED(mutex_);
  void List();
  // Returns when the connection ends.
  void Follow() ABSL_LOCKS_EXCLUDED(mutex_);
  // False: the watch is of no use any more.
  bool Hear(const etcdserverpb::WatchResponse& response) ABSL_LOCKS_EXCLUDED(mutex_);

  EtcdClient* const client_;
  const EtcdRange range_;
  const Listener listener_;
  int64_t seen_ = 0;  // revision up to which everything was told; the thread's own
  absl::Mutex mutex_;
  bool listed_ ABSL_GUARDED_BY(mutex_) = false;  // and nothing was missed since
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  EtcdStopper* following_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the connection under way
  std::thread thread_;
};

}  // namespace sparsebalance
