// Values of any size behind etcd's keys. One that is too big for a request is written in parts
// under a generation of its own, then the record's key is switched to it in one transaction, in
// which the parts of older generations go: readers see the old value or the new one, whole.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/etcd/etcd_keys.h"

namespace sparsebalance {

// etcd's own limits, as it has them by default, are 1.5 MiB a request and 128 operations a
// transaction.
struct EtcdLimits {
  size_t txn_operations = 128;
  size_t txn_bytes =
      1 << 20;  // of keys and values, below etcd's limit by what else a request holds
  size_t part_bytes = 256 << 10;  // bigger values are split
};

struct EtcdRecord {
  std::string path;
  std::string bytes;
};

// The records in [begin, end), by path, all as they were at one moment. DATA_LOSS: one cannot be
// understood.
absl::StatusOr<std::vector<EtcdRecord>> ReadRecords(EtcdClient& client, const EtcdKeys& keys,
                                                    std::string_view begin, std::string_view end);

// How a record gets a value.
struct EtcdRecordPut {
  std::vector<etcdserverpb::RequestOp> parts;      // first, in any number of transactions
  std::vector<etcdserverpb::RequestOp> switching;  // then these, in one
};

// `generation` was never used for the record before, and holds only letters and digits.
EtcdRecordPut PutRecord(const EtcdKeys& keys, std::string_view path, const std::string& bytes,
                        const std::string& generation, const EtcdLimits& limits);

// In one transaction: the record at the path; all in [begin, end).
std::vector<etcdserverpb::RequestOp> DeleteRecord(const EtcdKeys& keys, std::string_view path);
std::vector<etcdserverpb::RequestOp> DeleteRecords(const EtcdKeys& keys, std::string_view begin,
                                                   std::string_view end);

}  // namespace sparsebalance
