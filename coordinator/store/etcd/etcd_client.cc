#include "coordinator/store/etcd/etcd_client.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"

namespace sparsebalance {
namespace {

namespace api = etcdserverpb;

// Between rounds over members of which none answers, as while they elect a leader.
constexpr absl::Duration kRoundPause = absl::Milliseconds(100);
// For a new connection to a member whose last one failed, before the call fails.
constexpr absl::Duration kReconnect = absl::Milliseconds(100);
// The least time that a member gets before the next is tried.
constexpr absl::Duration kLeastShare = absl::Milliseconds(500);

// Says nothing about the request itself: another member may do better.
bool IsUnreachable(const grpc::Status& status) {
  // What a member says, by a code that means nothing, where the time it got ran out within it, as
  // while it waits for a majority: its word crossed our own deadline.
  if (status.error_code() == grpc::StatusCode::UNKNOWN &&
      (status.error_message() == "context deadline exceeded" ||
       status.error_message() == "context canceled")) {
    return true;
  }
  return status.error_code() == grpc::StatusCode::UNAVAILABLE ||
         status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED ||
         status.error_code() == grpc::StatusCode::CANCELLED;
}

// A member without a leader then refuses at once, and ends streams, instead of leaving us waiting.
void RequireLeader(grpc::ClientContext& context) { context.AddMetadata("hasleader", "true"); }

}  // namespace

EtcdRange EtcdRange::Prefix(std::string prefix) {
  // The least string that is above every string with the prefix.
  std::string end = prefix;
  while (!end.empty() && static_cast<unsigned char>(end.back()) == 0xff) end.pop_back();
  if (!end.empty()) end.back() = static_cast<char>(static_cast<unsigned char>(end.back()) + 1);
  return {std::move(prefix), std::move(end)};
}

void EtcdStopper::Stop() {
  absl::MutexLock lock(&mutex_);
  stopped_ = true;
  if (context_ != nullptr) context_->TryCancel();
}

struct EtcdClient::Member {
  explicit Member(std::shared_ptr<grpc::Channel> its_channel)
      : channel(std::move(its_channel)),
        kv(channel),
        watch(channel),
        lease(channel),
        maintenance(channel) {}

  // A channel without a connection makes one only while somebody waits for it; calls do not, but
  // fail at once.
  void Reconnect(absl::Time deadline) {
    if (channel->GetState(/*try_to_connect=*/true) != GRPC_CHANNEL_TRANSIENT_FAILURE) return;
    channel->WaitForStateChange(GRPC_CHANNEL_TRANSIENT_FAILURE,
                                absl::ToChronoTime(std::min(deadline, absl::Now() + kReconnect)));
  }

  const std::shared_ptr<grpc::Channel> channel;
  api::KV::Stub kv;
  api::Watch::Stub watch;
  api::Lease::Stub lease;
  api::Maintenance::Stub maintenance;
};

absl::StatusOr<std::unique_ptr<EtcdClient>> EtcdClient::Create(EtcdClientOptions options) {
  auto channels = MakeEtcdChannels(options.endpoints, options.tls);
  if (!channels.ok()) return channels.status();
  return std::unique_ptr<EtcdClient>(new EtcdClient(std::move(options), *channels));
}

EtcdClient::EtcdClient(EtcdClientOptions options,
                       const std::vector<std::shared_ptr<grpc::Channel>>& channels)
    : options_(std::move(options)) {
  for (const auto& channel : channels) members_.push_back(std::make_unique<Member>(channel));
}

EtcdClient::~EtcdClient() = default;

std::string EtcdClient::Endpoints() const { return absl::StrJoin(options_.endpoints, ","); }

size_t EtcdClient::CurrentMember() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

void EtcdClient::LeaveMember(size_t index) {
  absl::MutexLock lock(&mutex_);
  if (current_ == index) current_ = (index + 1) % members_.size();
  for (const auto& [context, member] : watches_) {
    if (member == index) context->TryCancel();
  }
}

absl::Status EtcdClient::WithEndpoint(const grpc::Status& status, size_t index) const {
  return absl::Status(
      static_cast<absl::StatusCode>(status.error_code()),
      absl::StrCat("etcd at ", options_.endpoints[index], ": ", status.error_message()));
}

absl::Status EtcdClient::Call(absl::Duration timeout, bool needs_leader, const Attempt& attempt) {
  const absl::Time deadline = absl::Now() + timeout;
  const absl::Duration share =
      std::max(timeout / static_cast<int64_t>(members_.size()), kLeastShare);
  std::vector<std::string> words(members_.size(), "not asked");
  for (size_t tries = 1;; ++tries) {
    const absl::Duration left = deadline - absl::Now();
    if (left <= absl::ZeroDuration()) break;
    const size_t index = CurrentMember();
    members_[index]->Reconnect(deadline);
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + std::min(left, share)));
    if (needs_leader) RequireLeader(context);
    const grpc::Status status = attempt(*members_[index], context);
    if (status.ok()) return absl::OkStatus();
    if (!IsUnreachable(status)) return WithEndpoint(status, index);
    words[index] = status.error_message();
    LeaveMember(index);
    if (tries % members_.size() == 0) {
      absl::SleepFor(std::clamp(deadline - absl::Now(), absl::ZeroDuration(), kRoundPause));
    }
  }
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = absl::StrCat(options_.endpoints[i], ": ", words[i]);
  }
  return absl::UnavailableError(absl::StrCat("etcd does not answer within ",
                                             absl::FormatDuration(timeout), " (",
                                             absl::StrJoin(words, "; "), ")"));
}

absl::StatusOr<EtcdSnapshot> EtcdClient::ReadRange(const EtcdRange& range, int64_t revision) {
  api::RangeRequest request;
  request.set_key(range.begin);
  request.set_range_end(range.end);
  request.set_limit(options_.page_keys);
  request.set_revision(revision);
  EtcdSnapshot snapshot;
  while (true) {
    api::RangeResponse page;
    const absl::Status status =
        Call(options_.call_timeout, true, [&](Member& member, grpc::ClientContext& context) {
          return member.kv.Range(&context, request, &page);
        });
    if (!status.ok()) return status;
    if (request.revision() == 0) request.set_revision(page.header().revision());
    for (api::KeyValue& kv : *page.mutable_kvs()) snapshot.kvs.push_back(std::move(kv));
    if (!page.more() || snapshot.kvs.empty()) break;
    // The least key after the last one.
    request.set_key(snapshot.kvs.back().key() + '\0');
  }
  snapshot.revision = request.revision();
  return snapshot;
}

absl::StatusOr<api::TxnResponse> EtcdClient::Txn(const api::TxnRequest& request) {
  return Txn(request, options_.call_timeout);
}

absl::StatusOr<api::TxnResponse> EtcdClient::Txn(const api::TxnRequest& request,
                                                 absl::Duration timeout) {
  api::TxnResponse response;
  const absl::Status status =
      Call(timeout, true, [&](Member& member, grpc::ClientContext& context) {
        return member.kv.Txn(&context, request, &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::StatusOr<EtcdClient::LeaseGranted> EtcdClient::LeaseGrant(absl::Duration ttl) {
  api::LeaseGrantRequest request;
  request.set_ttl(absl::ToInt64Seconds(absl::Ceil(ttl, absl::Seconds(1))));
  api::LeaseGrantResponse response;
  const absl::Status status =
      Call(options_.call_timeout, true, [&](Member& member, grpc::ClientContext& context) {
        return member.lease.LeaseGrant(&context, request, &response);
      });
  if (!status.ok()) return status;
  if (!response.error().empty()) {
    return absl::InternalError(absl::StrCat("etcd grants no lease: ", response.error()));
  }
  return LeaseGranted{response.id(), absl::Seconds(response.ttl())};
}

absl::StatusOr<absl::Duration> EtcdClient::LeaseKeepAlive(int64_t id, absl::Duration timeout) {
  api::LeaseKeepAliveRequest request;
  request.set_id(id);
  api::LeaseKeepAliveResponse response;
  // A stream of its own each time: renewals are seconds apart, and may go to another member each.
  const absl::Status status =
      Call(timeout, true, [&](Member& member, grpc::ClientContext& context) {
        auto stream = member.lease.LeaseKeepAlive(&context);
        stream->Write(request);
        stream->WritesDone();
        const bool answered = stream->Read(&response);
        const grpc::Status ended = stream->Finish();
        if (answered) return grpc::Status::OK;
        return ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "no answer") : ended;
      });
  if (!status.ok()) return status;
  if (response.ttl() <= 0) {
    return absl::NotFoundError(absl::StrCat("etcd has no lease ", absl::Hex(id), " any more"));
  }
  return absl::Seconds(response.ttl());
}

absl::Status EtcdClient::LeaseRevoke(int64_t id) {
  api::LeaseRevokeRequest request;
  request.set_id(id);
  api::LeaseRevokeResponse response;
  const absl::Status status =
      Call(options_.call_timeout, true, [&](Member& member, grpc::ClientContext& context) {
        return member.lease.LeaseRevoke(&context, request, &response);
      });
  return absl::IsNotFound(status) ? absl::OkStatus() : status;
}

absl::StatusOr<absl::Duration> EtcdClient::LeaseTimeToLive(int64_t id) {
  api::LeaseTimeToLiveRequest request;
  request.set_id(id);
  api::LeaseTimeToLiveResponse response;
  const absl::Status status =
      Call(options_.call_timeout, true, [&](Member& member, grpc::ClientContext& context) {
        return member.lease.LeaseTimeToLive(&context, request, &response);
      });
  if (!status.ok()) return status;
  if (response.ttl() < 0) {
    return absl::NotFoundError(absl::StrCat("etcd has no lease ", absl::Hex(id), " any more"));
  }
  return absl::Seconds(response.ttl());
}

absl::StatusOr<api::StatusResponse> EtcdClient::MemberStatus() {
  api::StatusResponse response;
  const absl::Status status =
      Call(options_.call_timeout, false, [&](Member& member, grpc::ClientContext& context) {
        return member.maintenance.Status(&context, api::StatusRequest(), &response);
      });
  if (!status.ok()) return status;
  return response;
}

absl::Status EtcdClient::Compact(int64_t revision) {
  api::CompactionRequest request;
  request.set_revision(revision);
  request.set_physical(true);
  api::CompactionResponse response;
  return Call(options_.call_timeout, true, [&](Member& member, grpc::ClientContext& context) {
    return member.kv.Compact(&context, request, &response);
  });
}

absl::Status EtcdClient::Watch(const EtcdRange& range, int64_t first, EtcdStopper& stopper,
                               const std::function<bool(const api::WatchResponse&)>& on_response) {
  grpc::ClientContext context;
  RequireLeader(context);
  {
    absl::MutexLock lock(&stopper.mutex_);
    if (stopper.stopped_) return absl::CancelledError("the watch was stopped");
    stopper.context_ = &context;
  }
  size_t index = 0;
  {
    absl::MutexLock lock(&mutex_);
    index = current_;
    watches_[&context] = index;
  }
  members_[index]->Reconnect(absl::InfiniteFuture());
  grpc::Status ended;
  bool enough = false;
  {
    const auto stream = members_[index]->watch.Watch(&context);
    api::WatchRequest request;
    api::WatchCreateRequest* create = request.mutable_create_request();
    create->set_key(range.begin);
    create->set_range_end(range.end);
    create->set_start_revision(first);
    stream->Write(request);
    api::WatchResponse response;
    while (!enough && stream->Read(&response)) {
      enough = !on_response(response);
      response.Clear();
    }
    if (enough) context.TryCancel();
    ended = stream->Finish();
  }
  {
    absl::MutexLock lock(&mutex_);
    watches_.erase(&context);
  }
  {
    absl::MutexLock lock(&stopper.mutex_);
    stopper.context_ = nullptr;
    if (enough) return absl::OkStatus();
    if (stopper.stopped_) return absl::CancelledError("the watch was stopped");
  }
  if (ended.ok()) return absl::UnavailableError("etcd ended the watch");
  // Not where it was cancelled from here: the member was left then, if it had to be.
  if (ended.error_code() == grpc::StatusCode::UNAVAILABLE) LeaveMember(index);
  return WithEndpoint(ended, index);
}

}  // namespace sparsebalance
