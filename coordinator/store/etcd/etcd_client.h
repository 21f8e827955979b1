// A client of etcd's v3 API for several threads at once.
//
//   EtcdClientOptions options;
//   options.endpoints = {"10.0.0.1:2379", "10.0.0.2:2379", "10.0.0.3:2379"};
//   auto client = EtcdClient::Create(options);  // connects to nothing yet
//   auto jobs = (*client)->ReadRange(EtcdRange::Prefix("/jobs/"));
//
// Calls block, at most for call_timeout. A call goes to the member that answered last; where that
// one cannot be reached, knows no leader or does not answer in its share of the time, to the next,
// round and round. So a request whose answer was lost may have been carried out, even twice, even
// later: what must happen once needs a comparison that holds only once.
//
// Errors: UNAVAILABLE with what each member said where none of them answers; else etcd's own
// code and words, with the endpoint.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/store/etcd/etcd.grpc.pb.h"
#include "coordinator/store/etcd/etcd_channel.h"
#include "grpcpp/client_context.h"

namespace sparsebalance {

struct EtcdClientOptions {
  std::vector<std::string> endpoints;  // HOST:PORT of every member
  EtcdTlsFiles tls;
  absl::Duration call_timeout = absl::Seconds(5);
  int64_t page_keys = 64;  // read at once from a range
};

// The keys from `begin` up to but without `end`; the one key `begin` where `end` is empty.
struct EtcdRange {
  std::string begin;
  std::string end;

  static EtcdRange Key(std::string key) { return {std::move(key), ""}; }
  static EtcdRange Prefix(std::string prefix);  // every key that starts so; not empty
};

// A range at one moment.
struct EtcdSnapshot {
  std::vector<etcdserverpb::KeyValue> kvs;  // by key
  int64_t revision = 0;
};

// Ends a watch from any thread, also one that has not begun.
class EtcdStopper {
 public:
  void Stop() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  friend class EtcdClient;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  grpc::ClientContext* context_ ABSL_GUARDED_BY(mutex_) = nullptr;  // of the watch under way
};

class EtcdClient {
 public:
  // Errors of MakeEtcdChannels.
  static absl::StatusOr<std::unique_ptr<EtcdClient>> Create(EtcdClientOptions options);

  ~EtcdClient();  // no call is under way
  EtcdClient(const EtcdClient&) = delete;
  EtcdClient& operator=(const EtcdClient&) = delete;

  // Reads page by page, all of it as it was at `revision`, or at the first page. Sees every write
  // that was acknowledged before the call. OUT_OF_RANGE: etcd has forgotten that moment meanwhile.
  absl::StatusOr<EtcdSnapshot> ReadRange(const EtcdRange& range, int64_t revision = 0);

  // NOT_FOUND: a put names a lease that is not there, and nothing was done.
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request);
  absl::StatusOr<etcdserverpb::TxnResponse> Txn(const etcdserverpb::TxnRequest& request,
                                                absl::Duration timeout);

  struct LeaseGranted {
    int64_t id = 0;
    absl::Duration ttl;  // etcd may grant more than it was asked for
  };
  absl::StatusOr<LeaseGranted> LeaseGrant(absl::Duration ttl);
  // The lease's time from now on, as etcd sees it; NOT_FOUND: it is over.
  absl::StatusOr<absl::Duration> LeaseKeepAlive(int64_t id, absl::Duration timeout);
  // With all keys that were put under it. One that is over already is fine.
  absl::Status LeaseRevoke(int64_t id);
  // Time that is left; NOT_FOUND: it is over.
  absl::StatusOr<absl::Duration> LeaseTimeToLive(int64_t id);

  // Of the member that calls go to, whether it has a leader or not.
  absl::StatusOr<etcdserverpb::StatusResponse> MemberStatus();

  // Forgets what was there only before `revision`.
  absl::Status Compact(int64_t revision);

  // Tells `on_response` of everything that happens in the range, from revision `first` on, until it
  // says false (OK), the stopper stops (CANCELLED), or the connection ends, as it also does when
  // calls leave its member (the error; another member is used next). Events are told from one
  // thread, the caller's.
  absl::Status Watch(const EtcdRange& range, int64_t first, EtcdStopper& stopper,
                     const std::function<bool(const etcdserverpb::WatchResponse&)>& on_response)
      ABSL_LOCKS_EXCLUDED(mutex_);

  std::string Endpoints() const;  // for people
  absl::Duration call_timeout() const { return options_.call_timeout; }

 private:
  struct Member;
  using Attempt = std::function<grpc::Status(Member&, grpc::ClientContext&)>;

  EtcdClient(EtcdClientOptions options,
             const std::vector<std::shared_ptr<grpc::Channel>>& channels);

  absl::Status Call(absl::Duration timeout, bool needs_leader, const Attempt& attempt)
      ABSL_LOCKS_EXCLUDED(mutex_);
  size_t CurrentMember() const ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls go to the next member from now on, and watches of this one end.
  void LeaveMember(size_t index) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status WithEndpoint(const grpc::Status& status, size_t index) const;

  const EtcdClientOptions options_;
  std::vector<std::unique_ptr<Member>> members_;  // in the order of the endpoints
  mutable absl::Mutex mutex_;
  size_t current_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<grpc::ClientContext*, size_t> watches_ ABSL_GUARDED_BY(mutex_);  // by member
};

}  // namespace sparsebalance
