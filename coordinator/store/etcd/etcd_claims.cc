#include "coordinator/store/etcd/etcd_claims.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/claim_errors.h"
#include "coordinator/store/etcd/etcd_epoch.h"
#include "coordinator/store/etcd/etcd_ops.h"
#include "coordinator/store/etcd/records.pb.h"

namespace sparsebalance {
namespace {

namespace api = etcdserverpb;

// Each means that somebody else has changed something in between.
constexpr int kTakeTries = 8;
// Between tries to remove stray keys, and the time that one try gets: the thread has losses to tell
// of.
constexpr absl::Duration kStrayPause = absl::Milliseconds(250);
constexpr absl::Duration kStrayTimeout = absl::Seconds(1);

std::string RandomId() {
  absl::BitGen random;
  return absl::StrCat(absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16),
                      absl::Hex(absl::Uniform<uint64_t>(random), absl::kZeroPad16));
}

absl::Status ShuttingDown() {
  return absl::UnavailableError("this coordinator is shutting down and takes no jobs");
}

}  // namespace

class EtcdClaims::Turn {
 public:
  Turn(EtcdClaims* claims, const JobId& id) : claims_(claims), id_(id) {
    absl::MutexLock lock(&claims_->mutex_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(claims_->mutex_) {
      return !claims_->busy_.contains(id_);
    };
    claims_->mutex_.Await(absl::Condition(&free));
    claims_->busy_.insert(id_);
  }
  ~Turn() {
    absl::MutexLock lock(&claims_->mutex_);
    claims_->busy_.erase(id_);
  }
  Turn(const Turn&) = delete;
  Turn& operator=(const Turn&) = delete;

 private:
  EtcdClaims* const claims_;
  const JobId id_;
};

absl::StatusOr<std::unique_ptr<EtcdClaims>> EtcdClaims::Start(EtcdClient* client,
                                                              EtcdClaimsOptions options) {
  if (options.address.empty()) {
    return absl::InvalidArgumentError(
        "other replicas need to know where clients reach this one; give it an address");
  }
  std::unique_ptr<EtcdClaims> claims(new EtcdClaims(client, std::move(options)));
  // A little longer than the call for it, which then says what is wrong.
  const auto lease = claims->lease_->Await(client->call_timeout() + absl::Seconds(1));
  if (!lease.ok()) return lease.status();
  return claims;
}

EtcdClaims::EtcdClaims(EtcdClient* client, EtcdClaimsOptions options)
    : client_(client),
      keys_(std::move(options.prefix)),
      address_(std::move(options.address)),
      replica_id_(RandomId()) {
  watcher_ = std::make_unique<EtcdWatcher>(
      client_, keys_.Claims(),
      EtcdWatcher::Listener{[this](const EtcdSnapshot& snapshot) { Listed(snapshot); },
                            [this](const std::vector<api::Event>& events) { Changed(events); }});
  lease_ = std::make_unique<EtcdLease>(client_, std::move(options.lease),
                                       [this](int64_t lease) { LeaseLost(lease); });
  thread_ = std::thread([this] { Run(); });
}

EtcdClaims::~EtcdClaims() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    work_ = true;
  }
  thread_.join();
}

absl::StatusOr<uint64_t> EtcdClaims::Claim(const JobId& id, uint64_t above) {
  if (absl::Status status = CheckCredibleEpoch(above); !status.ok()) return status;
  const Turn turn(this, id);
  int64_t outdated = 0;
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return ShuttingDown();
    const auto held = held_.find(id);
    if (held != held_.end() && lease_->Alive(held->second.fence.lease)) {
      if (held->second.epoch >= above) return held->second.epoch;
      // A client knows a higher epoch, so ours does not fence. The job is taken anew.
      outdated = held->second.fence.create_revision;
      LoseLocked(held);
    }
  }
  if (outdated != 0) {
    if (absl::Status status = Remove(id, outdated); !status.ok()) return status;
  }
  return Take(id, above);
}

absl::StatusOr<uint64_t> EtcdClaims::Take(const JobId& id, uint64_t above) {
  for (int i = 0; i < kTakeTries; ++i) {
    const auto lease = lease_->Await(client_->call_timeout());
    if (!lease.ok()) return lease.status();
    const auto base = EpochBaseFor(*client_, keys_, above);
    if (!base.ok()) return base.status();

    records::ClaimValue value;
    value.set_address(address_);
    value.set_replica_id(replica_id_);
    value.set_epoch_base(base->value);
    api::TxnRequest txn;
    *txn.add_compare() = CreatedAt(keys_.Claim(id), 0);
    // The base may have been raised meanwhile: a claim with a lower one could go below its
    // forerunner.
    *txn.add_compare() = LastPutAt(keys_.EpochBase(), base->put_at);
    *txn.add_success() = PutOp(keys_.Claim(id), value.SerializeAsString(), *lease);
    *txn.add_failure() = GetOp(keys_.Claim(id));
    const auto response = client_->Txn(txn);
    if (absl::IsNotFound(response.status())) {
      lease_->NotFound(*lease);
      continue;  // under a new one
    }
    if (!response.ok()) return response.status();
    if (response->succeeded()) {
      const int64_t revision = response->header().revision();
      return Took(id, {base->value + static_cast<uint64_t>(revision), {revision, *lease}});
    }
    const api::KeyValue* found = Got(*response, 0);
    if (found == nullptr) continue;  // the base was raised, or the owner has just gone
    const std::optional<SeenClaim> owner = Parse(*found);
    if (!owner) return absl::DataLossError("the claim of job " + id.ToString() + " is damaged");
    if (owner->replica_id != replica_id_) return NotOwner(id, *owner);
    // Made by a call of ours whose answer was lost, or left by a lease of ours that is over. It is
    // not taken up: a late removal of it may still be under way.
    if (absl::Status status = Remove(id, owner->create_revision); !status.ok()) return status;
  }
  return absl::UnavailableError(
      absl::StrCat("job ", id.ToString(), " could not be claimed: it changes hands all the time"));
}

absl::StatusOr<uint64_t> EtcdClaims::Took(const JobId& id, const HeldClaim& claim) {
  const int64_t revision = claim.fence.create_revision;
  absl::MutexLock lock(&mutex_);
  if (closed_ || !lease_->Alive(claim.fence.lease)) {
    stray_[id] = revision;
    work_ = true;
    return closed_ ? ShuttingDown()
                   : absl::UnavailableError(absl::StrCat("the lease ran out while job ",
                                                         id.ToString(), " was being claimed"));
  }
  // The watch may be ahead of us, and have told of the claim's end already.
  const auto seen = seen_.find(id);
  if (seen_revision_ >= revision &&
      (seen == seen_.end() || seen->second.create_revision != revision)) {
    stray_[id] = revision;  // if it is the watch that is wrong, because etcd was set back
    work_ = true;
    return absl::UnavailableError(
        absl::StrCat("the claim of job ", id.ToString(), " was deleted as soon as it was made"));
  }
  held_[id] = claim;
  return claim.epoch;
}

absl::StatusOr<uint64_t> EtcdClaims::Held(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  const auto held = held_.find(id);
  if (held != held_.end() && lease_->Alive(held->second.fence.lease)) return held->second.epoch;
  const auto seen = seen_.find(id);
  return seen == seen_.end() ? NotOwnerError(id, "", 0) : NotOwner(id, seen->second);
}

absl::Status EtcdClaims::NotOwner(const JobId& id, const SeenClaim& seen) const {
  // A claim of ours that we do not hold, or of the process that was here before us, is about to go:
  // clients must not be sent to where they are.
  if (seen.address == address_) return NotOwnerError(id, "", 0);
  return NotOwnerError(id, seen.address, seen.epoch);
}

absl::StatusOr<ClaimFence> EtcdClaims::FenceOf(const JobId& id, uint64_t epoch) {
  absl::MutexLock lock(&mutex_);
  const auto held = held_.find(id);
  if (held == held_.end() || !lease_->Alive(held->second.fence.lease)) {
    return absl::AbortedError(
        absl::StrCat("job ", id.ToString(), " is not this coordinator's; nothing is written"));
  }
  if (epoch != 0 && epoch != held->second.epoch) {
    return absl::AbortedError(absl::StrCat("job ", id.ToString(), " is held under leader epoch ",
                                           held->second.epoch, " by now; nothing of epoch ", epoch,
                                           " is written"));
  }
  return held->second.fence;
}

absl::Status EtcdClaims::RemoveOnce(const JobId& id, int64_t create_revision,
                                    absl::Duration timeout) {
  api::TxnRequest txn;
  *txn.add_compare() = CreatedAt(keys_.Claim(id), create_revision);
  *txn.add_success() = DeleteOp(EtcdRange::Key(keys_.Claim(id)));
  *txn.add_success() = DeleteOp(EtcdRange::Key(keys_.Mark(id)));
  // Where it is another's, or gone, all is well too.
  return client_->Txn(txn, timeout).status();
}

absl::Status EtcdClaims::Remove(const JobId& id, int64_t create_revision) {
  absl::Status status = RemoveOnce(id, create_revision, client_->call_timeout());
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    stray_[id] = create_revision;
    work_ = true;
  }
  return status;
}

absl::Status EtcdClaims::Release(const JobId& id) {
  const Turn turn(this, id);
  int64_t revision = 0;
  {
    absl::MutexLock lock(&mutex_);
    const auto held = held_.find(id);
    if (held == held_.end()) return absl::OkStatus();
    revision = held->second.fence.create_revision;
    held_.erase(held);
  }
  return Remove(id, revision);
}

absl::Status EtcdClaims::ReleaseAll() {
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    held_.clear();
    stray_.clear();
  }
  return lease_->End();
}

std::vector<JobClaims::Owned> EtcdClaims::Owners() {
  absl::MutexLock lock(&mutex_);
  std::map<JobId, Owned> owners;
  for (const auto& [id, seen] : seen_) {
    if (seen.replica_id != replica_id_) owners[id] = {id, seen.address, seen.epoch};
  }
  // Of our own we know better than the watch.
  for (const auto& [id, held] : held_) {
    if (lease_->Alive(held.fence.lease)) owners[id] = {id, address_, held.epoch};
  }
  std::vector<Owned> all;
  all.reserve(owners.size());
  for (auto& [id, owned] : owners) all.push_back(std::move(owned));
  return all;
}

void EtcdClaims::OnLost(Lost lost) {
  absl::MutexLock lock(&mutex_);
  on_lost_ = std::make_shared<Lost>(std::move(lost));
}

JobClaims::Health EtcdClaims::CheckHealth() {
  Health health;
  health.lease_left = lease_->Left();
  health.lease_alive = health.lease_left > absl::ZeroDuration();
  const absl::Status last = lease_->LastCall();
  health.store_answers = last.ok();
  health.problem = std::string(last.message());
  return health;
}

std::optional<EtcdClaims::SeenClaim> EtcdClaims::Parse(const api::KeyValue& kv) {
  records::ClaimValue value;
  if (!value.ParseFromString(kv.value())) return std::nullopt;
  return SeenClaim{value.address(), value.replica_id(),
                   value.epoch_base() + static_cast<uint64_t>(kv.create_revision()),
                   kv.create_revision()};
}

void EtcdClaims::LoseLocked(std::map<JobId, HeldClaim>::iterator held) {
  spdlog::warn("job {}: its claim under leader epoch {} is lost", held->first.ToString(),
               held->second.epoch);
  lost_.emplace_back(held->first, held->second.epoch);
  held_.erase(held);
  work_ = true;
}

void EtcdClaims::SawLocked(const JobId& id, const api::KeyValue& kv) {
  std::optional<SeenClaim> seen = Parse(kv);
  if (!seen) {
    spdlog::error("etcd's key {} is no claim", kv.key());
    return;
  }
  if (seen->replica_id == replica_id_) {
    stray_[id] = seen->create_revision;  // unless it is held: the thread looks
    work_ = true;
  }
  seen_[id] = *std::move(seen);
}

void EtcdClaims::Listed(const EtcdSnapshot& snapshot) {
  absl::MutexLock lock(&mutex_);
  const bool set_back = snapshot.revision < seen_revision_;
  seen_.clear();
  seen_revision_ = snapshot.revision;
  for (const api::KeyValue& kv : snapshot.kvs) {
    if (const std::optional<JobId> id = keys_.JobOf(kv.key())) SawLocked(*id, kv);
  }
  for (auto held = held_.begin(); held != held_.end();) {
    const auto next = std::next(held);
    const auto seen = seen_.find(held->first);
    const int64_t revision = held->second.fence.create_revision;
    const bool there = seen != seen_.end() && seen->second.create_revision == revision;
    // One that is younger than the list cannot be in it, unless etcd was set back.
    if (!there && (revision <= snapshot.revision || set_back)) LoseLocked(held);
    held = next;
  }
}

void EtcdClaims::Changed(const std::vector<api::Event>& events) {
  absl::MutexLock lock(&mutex_);
  for (const api::Event& event : events) {
    const api::KeyValue& kv = event.kv();
    seen_revision_ = kv.mod_revision();
    const std::optional<JobId> id = keys_.JobOf(kv.key());
    if (!id) continue;
    if (event.type() == api::Event::PUT) {
      SawLocked(*id, kv);
    } else {
      seen_.erase(*id);
    }
    // Whatever happens to the key after we have made it ends the claim: we never put it again.
    const auto held = held_.find(*id);
    if (held != held_.end() && held->second.fence.create_revision < kv.mod_revision()) {
      LoseLocked(held);
    }
  }
}

void EtcdClaims::LeaseLost(int64_t lease) {
  {
    absl::MutexLock lock(&mutex_);
    for (auto held = held_.begin(); held != held_.end();) {
      const auto next = std::next(held);
      if (held->second.fence.lease == lease) LoseLocked(held);
      held = next;
    }
  }
  // The lease may be gone because all of etcd's memory is.
  watcher_->ListAgain();
}

void EtcdClaims::Run() {
  while (true) {
    std::vector<std::pair<JobId, uint64_t>> lost;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&work_),
                              stray_.empty() ? absl::InfiniteDuration() : kStrayPause);
      if (stopping_) return;
      work_ = false;
      lost.swap(lost_);
    }
    TellLost(lost);
    RemoveStray();
  }
}

void EtcdClaims::TellLost(const std::vector<std::pair<JobId, uint64_t>>& lost) {
  std::shared_ptr<Lost> on_lost;
  {
    absl::MutexLock lock(&mutex_);
    on_lost = on_lost_;
  }
  if (on_lost == nullptr) return;
  for (const auto& [id, epoch] : lost) (*on_lost)(id, epoch);
}

void EtcdClaims::RemoveStray() {
  std::vector<std::pair<JobId, int64_t>> settled;
  {
    absl::MutexLock lock(&mutex_);
    for (auto stray = stray_.begin(); stray != stray_.end();) {
      const auto held = held_.find(stray->first);
      if (busy_.contains(stray->first)) {
        ++stray;  // it may be held in a moment
        continue;
      }
      if (held == held_.end() || held->second.fence.create_revision != stray->second) {
        settled.push_back(*stray);
      }
      stray = stray_.erase(stray);
    }
  }
  for (const auto& [id, revision] : settled) {
    if (RemoveOnce(id, revision, kStrayTimeout).ok()) continue;
    absl::MutexLock lock(&mutex_);
    stray_.emplace(id, revision);
  }
}

}  // namespace sparsebalance
