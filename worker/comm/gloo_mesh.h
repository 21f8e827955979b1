// The one file pair that speaks to Gloo: a TCP connection to every peer, tagged messages over them,
// and the reason why a peer went away. Catches everything that Gloo throws.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gloo/transport/context.h"
#include "gloo/transport/device.h"
#include "gloo/transport/unbound_buffer.h"
#include "worker/comm/gloo_communicator.h"

namespace sparsebalance::comm_internal {

class GlooMesh;

// A message under way. The memory it reads or writes must outlive it.
class Transfer {
 public:
  ~Transfer();
  Transfer(const Transfer&) = delete;
  Transfer& operator=(const Transfer&) = delete;

 private:
  friend class GlooMesh;
  Transfer(GlooMesh* mesh, int peer, bool is_send) : mesh_(mesh), peer_(peer), is_send_(is_send) {}

  GlooMesh* const mesh_;
  const int peer_;
  const bool is_send_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

// All but Abort() is for one thread at a time.
class GlooMesh {
 public:
  // Connects to every peer. size >= 2.
  static absl::StatusOr<std::unique_ptr<GlooMesh>> Connect(int rank, int size,
                                                           const GlooOptions& options,
                                                           const RendezvousExchange& exchange);
  // Tells the peers that this rank leaves, then closes.
  ~GlooMesh();
  GlooMesh(const GlooMesh&) = delete;
  GlooMesh& operator=(const GlooMesh&) = delete;

  // Start a message of `bytes` > 0 bytes. A sender and a receiver meet by `slot`, which must be
  // unique among the messages under way between two ranks. UNAVAILABLE where the peer is gone.
  absl::StatusOr<std::unique_ptr<Transfer>> Send(int peer, uint64_t slot, const void* data,
                                                 size_t bytes);
  absl::StatusOr<std::unique_ptr<Transfer>> Receive(int peer, uint64_t slot, void* data,
                                                    size_t bytes);

  // Blocks until the message is through. UNAVAILABLE where the peer is gone or the timeout passed;
  // CANCELLED after Abort().
  absl::Status Wait(Transfer& transfer);

  // Tells every reachable peer why this rank goes, then closes all connections: because a rank was
  // lost, if one was, else because of `own_reason`. Later calls fail. Transfers may still be alive.
  void Close(const std::string& own_reason);

  // The rank that is the cause of an UNAVAILABLE, -1 before one.
  int lost_rank() const { return lost_rank_; }

  // Thread-safe: makes the running Wait() and all later calls return CANCELLED. Does not close.
  void Abort() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class Transfer;
  struct Farewell;

  GlooMesh(int rank, int size, absl::Duration timeout);

  absl::Status OpenDevice(const GlooOptions& options);
  absl::StatusOr<std::string> OwnBlob(const GlooOptions& options);
  absl::Status ConnectPeers(const std::vector<std::string>& blobs, const GlooOptions& options);
  absl::Status AwaitFarewells();
  void Watch() ABSL_LOCKS_EXCLUDED(mutex_);
  void Listen() ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes Wait() return; its result is then the peer's error, or a timeout where that is set.
  void EndWait() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // The listener lets go of the farewell that it waits for.
  void StopListening() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::StatusOr<std::unique_ptr<Transfer>> Start(int peer, uint64_t slot, void* data, size_t bytes,
                                                  bool is_send);
  // Finds out whether `peer` is the cause or only passed the cause on, and remembers it.
  absl::Status PeerError(int peer, const std::string& what);
  absl::Status Cancelled() const;
  bool aborted() const ABSL_LOCKS_EXCLUDED(mutex_);

  const int rank_;
  const int size_;
  const absl::Duration timeout_;
  int lost_rank_ = -1;
  std::string lost_reason_;
  bool closed_ = false;

  std::shared_ptr<gloo::transport::Device> device_;
  std::shared_ptr<gloo::transport::Context> context_;
  // What each peer says when it goes: a receive is posted for it from the start.
  std::vector<std::unique_ptr<Farewell>> farewells_;
  std::vector<std::unique_ptr<Farewell>> farewells_sent_;

  mutable absl::Mutex mutex_;
  bool aborted_ ABSL_GUARDED_BY(mutex_) = false;
  // What Abort() has to wake.
  std::set<Transfer*> pending_ ABSL_GUARDED_BY(mutex_);
  // What Wait() waits for and until when; null between waits.
  Transfer* awaited_ ABSL_GUARDED_BY(mutex_) = nullptr;
  absl::Time waits_since_ ABSL_GUARDED_BY(mutex_);
  absl::Time deadline_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
  bool timed_out_ ABSL_GUARDED_BY(mutex_) = false;
  bool stop_watching_ ABSL_GUARDED_BY(mutex_) = false;
  absl::CondVar stopped_;
  // Ends a wait at its deadline. Gloo's own timeout would close all connections before the peers
  // could be told which rank it was.
  std::thread watchdog_;
  // Peer whose farewell the listener waits for; -1: none. Only it touches that buffer then.
  int listens_to_ ABSL_GUARDED_BY(mutex_) = -1;
  // Ends a wait whose peer is gone. Gloo tells that to messages that have not begun and to
  // farewells that have not come, but to no message of which a part is through.
  std::thread listener_;
};

}  // namespace sparsebalance::comm_internal
