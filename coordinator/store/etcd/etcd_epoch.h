// Leader epochs out of etcd's revisions. An epoch is a revision plus a stored base, so that epochs
// rise with every claim. An etcd that was wiped begins again at revision 1: the base is then raised
// above what clients have seen.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/etcd/etcd_keys.h"

namespace sparsebalance {

struct EpochBase {
  uint64_t value = 0;
  int64_t put_at = 0;  // revision of the base's key; 0: it has none yet
};

// The base, raised first where the next revision would not make an epoch above `above`. Whatever is
// written while the base's key was last put at `put_at` gets such an epoch. DATA_LOSS where the
// stored base is no number.
absl::StatusOr<EpochBase> EpochBaseFor(EtcdClient& client, const EtcdKeys& keys, uint64_t above);

// A new epoch, above `above` and above every epoch that there was, stored.
absl::StatusOr<uint64_t> NewEpoch(EtcdClient& client, const EtcdKeys& keys, uint64_t above);

}  // namespace sparsebalance
