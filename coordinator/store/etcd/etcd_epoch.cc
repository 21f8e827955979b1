#include "coordinator/store/etcd/etcd_epoch.h"

#include <algorithm>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "coordinator/store/etcd/etcd_ops.h"

namespace sparsebalance {
namespace {

// Others may change the base in between, each for a reason of its own; nobody does so for long.
constexpr int kEpochTries = 16;

struct ReadBase {
  EpochBase base;
  uint64_t revision = 0;  // of etcd, when the base was read
};

absl::StatusOr<ReadBase> Read(EtcdClient& client, const EtcdKeys& keys) {
  absl::StatusOr<EtcdSnapshot> snapshot = client.ReadRange(EtcdRange::Key(keys.EpochBase()));
  if (!snapshot.ok()) return snapshot.status();
  ReadBase read;
  read.revision = static_cast<uint64_t>(snapshot->revision);
  if (snapshot->kvs.empty()) return read;
  read.base.put_at = snapshot->kvs[0].mod_revision();
  if (!absl::SimpleAtoi(snapshot->kvs[0].value(), &read.base.value)) {
    return absl::DataLossError(absl::StrCat("etcd's key ", keys.EpochBase(), " is '",
                                            snapshot->kvs[0].value(),
                                            "', which is no number; put back what it was, or a "
                                            "number above every leader epoch that clients know"));
  }
  return read;
}

// The revision of the put; nothing where somebody else has put the base meanwhile.
absl::StatusOr<std::optional<uint64_t>> Replace(EtcdClient& client, const EtcdKeys& keys,
                                                const EpochBase& old, uint64_t value) {
  etcdserverpb::TxnRequest txn;
  *txn.add_compare() = LastPutAt(keys.EpochBase(), old.put_at);
  *txn.add_success() = PutOp(keys.EpochBase(), absl::StrCat(value));
  const auto response = client.Txn(txn);
  if (!response.ok()) return response.status();
  if (!response->succeeded()) return std::nullopt;
  return static_cast<uint64_t>(response->header().revision());
}

// The least base with which the revision after `revision` is above `above`.
uint64_t Raised(const ReadBase& read, uint64_t above) {
  return std::max(read.base.value, above > read.revision ? above - read.revision : 0);
}

absl::Status Contended(const EtcdKeys& keys) {
  return absl::UnavailableError(
      absl::StrCat("etcd's key ", keys.EpochBase(), " is changed by others all the time"));
}

}  // namespace

absl::StatusOr<EpochBase> EpochBaseFor(EtcdClient& client, const EtcdKeys& keys, uint64_t above) {
  for (int i = 0; i < kEpochTries; ++i) {
    absl::StatusOr<ReadBase> read = Read(client, keys);
    if (!read.ok()) return read.status();
    const uint64_t raised = Raised(*read, above);
    if (raised == read->base.value) return read->base;
    auto put = Replace(client, keys, read->base, raised);
    if (!put.ok()) return put.status();
    if (put->has_value()) return EpochBase{raised, static_cast<int64_t>(**put)};
  }
  return Contended(keys);
}

absl::StatusOr<uint64_t> NewEpoch(EtcdClient& client, const EtcdKeys& keys, uint64_t above) {
  for (int i = 0; i < kEpochTries; ++i) {
    absl::StatusOr<ReadBase> read = Read(client, keys);
    if (!read.ok()) return read.status();
    const uint64_t raised = Raised(*read, above);
    auto put = Replace(client, keys, read->base, raised);
    if (!put.ok()) return put.status();
    if (put->has_value()) return raised + **put;
  }
  return Contended(keys);
}

}  // namespace sparsebalance
