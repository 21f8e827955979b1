#include "coordinator/store/etcd/etcd_lease.h"

#include <spdlog/spdlog.h>
#include <time.h>

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

// Of a lease's time, what is relied on.
constexpr double kSureShare = 0.8;
// Two renewals may fail before the time that is sure is over.
constexpr double kRenewShare = 1.0 / 3;
// After a failed call, which has usually waited for its time-out already.
constexpr absl::Duration kRetry = absl::Milliseconds(200);

}  // namespace

absl::Duration BootTime() {
  timespec now{};
  clock_gettime(CLOCK_BOOTTIME, &now);
  return absl::DurationFromTimespec(now);
}

EtcdLease::EtcdLease(EtcdClient* client, EtcdLeaseOptions options,
                     std::function<void(int64_t id)> lost)
    : client_(client), options_(std::move(options)), lost_(std::move(lost)) {
  {
    absl::MutexLock lock(&mutex_);
    next_call_ = options_.now();
  }
  thread_ = std::thread([this] { Run(); });
}

EtcdLease::~EtcdLease() { StopThread(); }

void EtcdLease::StopThread() {
  {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
    wake_ = true;
    sure_until_ = absl::ZeroDuration();
  }
  if (thread_.joinable()) thread_.join();
}

bool EtcdLease::SureLocked() const { return id_ != 0 && options_.now() < sure_until_; }

absl::StatusOr<int64_t> EtcdLease::Await(absl::Duration timeout) {
  absl::MutexLock lock(&mutex_);
  const auto decided = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return ending_ || SureLocked();
  };
  mutex_.AwaitWithTimeout(absl::Condition(&decided), timeout);
  if (ending_) return absl::UnavailableError("the coordinator is shutting down");
  if (!SureLocked()) {
    return absl::UnavailableError(
        absl::StrCat("there is no lease to claim jobs under: ",
                     last_call_.ok() ? "etcd is slow" : last_call_.message()));
  }
  return id_;
}

void EtcdLease::NotFound(int64_t id) {
  absl::MutexLock lock(&mutex_);
  if (id != id_) return;
  sure_until_ = absl::ZeroDuration();
  wake_ = true;
}

bool EtcdLease::Alive(int64_t id) {
  absl::MutexLock lock(&mutex_);
  return id == id_ && SureLocked();
}

absl::Duration EtcdLease::Left() {
  absl::MutexLock lock(&mutex_);
  return SureLocked() ? std::max(sure_until_ - options_.now(), absl::ZeroDuration())
                      : absl::ZeroDuration();
}

absl::Status EtcdLease::LastCall() {
  absl::MutexLock lock(&mutex_);
  return last_call_;
}

absl::Status EtcdLease::End() {
  StopThread();
  {
    absl::MutexLock lock(&mutex_);
    if (id_ != 0) abandoned_.push_back(std::exchange(id_, 0));
  }
  return RevokeAbandoned();
}

void EtcdLease::Run() {
  while (true) {
    int64_t id = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.AwaitWithTimeout(absl::Condition(&wake_), next_call_ - options_.now());
      if (ending_) return;
      wake_ = false;
      id = id_;
    }
    if (id == 0) {
      Grant();
    } else {
      Renew(id);
    }
  }
}

void EtcdLease::HoldLocked(int64_t id, absl::Duration sent, absl::Duration ttl) {
  id_ = id;
  sure_until_ = sent + ttl * kSureShare;
  next_call_ = sent + ttl * kRenewShare;
  last_call_ = absl::OkStatus();
}

void EtcdLease::FailedLocked(const absl::Status& status) {
  last_call_ = status;
  next_call_ = options_.now() + kRetry;
  if (id_ != 0) next_call_ = std::min(next_call_, sure_until_);
}

absl::Status EtcdLease::RevokeAbandoned() {
  while (true) {
    int64_t id = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (abandoned_.empty()) return absl::OkStatus();
      id = abandoned_.back();
    }
    if (absl::Status status = client_->LeaseRevoke(id); !status.ok()) return status;
    absl::MutexLock lock(&mutex_);
    abandoned_.pop_back();
  }
}

void EtcdLease::Grant() {
  // What was claimed under a lost lease is of no use to us, but keeps others away.
  if (absl::Status status = RevokeAbandoned(); !status.ok()) {
    absl::MutexLock lock(&mutex_);
    return FailedLocked(status);
  }
  const absl::Duration sent = options_.now();
  const absl::StatusOr<EtcdClient::LeaseGranted> granted = client_->LeaseGrant(options_.ttl);
  absl::MutexLock lock(&mutex_);
  if (!granted.ok()) return FailedLocked(granted.status());
  if (ending_) {
    abandoned_.push_back(granted->id);
    return;
  }
  HoldLocked(granted->id, sent, granted->ttl);
  spdlog::info("etcd lease {:x}: granted for {}", granted->id, absl::FormatDuration(granted->ttl));
}

void EtcdLease::Renew(int64_t id) {
  const absl::Duration sent = options_.now();
  absl::Duration left;
  {
    absl::MutexLock lock(&mutex_);
    left = sure_until_ - sent;
  }
  // Nothing is asked where it is too late: the answer could not save the lease.
  absl::StatusOr<absl::Duration> ttl =
      absl::DeadlineExceededError("its time was over, or etcd has ended it");
  if (left > absl::ZeroDuration()) {
    ttl = client_->LeaseKeepAlive(id, std::min(left, client_->call_timeout()));
  }
  {
    absl::MutexLock lock(&mutex_);
    if (ending_) return;
    if (SureLocked() && ttl.ok()) return HoldLocked(id, sent, *ttl);
    if (SureLocked() && !absl::IsNotFound(ttl.status())) return FailedLocked(ttl.status());
    id_ = 0;
    abandoned_.push_back(id);
    if (!ttl.ok()) last_call_ = ttl.status();
    next_call_ = options_.now();
  }
  spdlog::warn("etcd lease {:x}: lost: {}", id,
               ttl.ok() ? "it was renewed too late" : std::string(ttl.status().message()));
  lost_(id);
}

}  // namespace sparsebalance
