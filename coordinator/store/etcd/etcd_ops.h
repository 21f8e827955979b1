// Parts of etcd transactions, in one line each.
#pragma once

#include <cstdint>
#include <string>
#include <utility>

#include "coordinator/store/etcd/etcd.pb.h"
#include "coordinator/store/etcd/etcd_client.h"

namespace sparsebalance {

// The key was made by this very revision; 0: it does not exist.
inline etcdserverpb::Compare CreatedAt(std::string key, int64_t revision) {
  etcdserverpb::Compare compare;
  compare.set_target(etcdserverpb::Compare::CREATE);
  compare.set_key(std::move(key));
  compare.set_create_revision(revision);
  return compare;
}

// The key was last put by this very revision; 0: it does not exist.
inline etcdserverpb::Compare LastPutAt(std::string key, int64_t revision) {
  etcdserverpb::Compare compare;
  compare.set_target(etcdserverpb::Compare::MOD);
  compare.set_key(std::move(key));
  compare.set_mod_revision(revision);
  return compare;
}

inline etcdserverpb::RequestOp GetOp(std::string key) {
  etcdserverpb::RequestOp op;
  op.mutable_request_range()->set_key(std::move(key));
  return op;
}

inline etcdserverpb::RequestOp PutOp(std::string key, std::string value, int64_t lease = 0) {
  etcdserverpb::RequestOp op;
  op.mutable_request_put()->set_key(std::move(key));
  op.mutable_request_put()->set_value(std::move(value));
  op.mutable_request_put()->set_lease(lease);
  return op;
}

inline etcdserverpb::RequestOp DeleteOp(EtcdRange range) {
  etcdserverpb::RequestOp op;
  op.mutable_request_delete_range()->set_key(std::move(range.begin));
  op.mutable_request_delete_range()->set_range_end(std::move(range.end));
  return op;
}

// What a GetOp of a transaction found; null: no such key.
inline const etcdserverpb::KeyValue* Got(const etcdserverpb::TxnResponse& response, int index) {
  if (index >= response.responses_size()) return nullptr;
  const auto& range = response.responses(index).response_range();
  return range.kvs().empty() ? nullptr : &range.kvs(0);
}

}  // namespace sparsebalance
