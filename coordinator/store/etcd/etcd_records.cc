#include "coordinator/store/etcd/etcd_records.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/etcd/etcd_ops.h"
#include "coordinator/store/etcd/records.pb.h"

namespace sparsebalance {
namespace {

namespace api = etcdserverpb;

// Reads at a moment that etcd forgets meanwhile begin anew; a compaction is minutes apart from the
// next.
constexpr int kReadTries = 3;

std::string PartKey(const std::string& directory, size_t number) {
  return absl::StrCat(directory, absl::Hex(number, absl::kZeroPad8));
}

absl::Status Unreadable(const std::string& key, const std::string& why) {
  return absl::DataLossError(absl::StrCat("etcd's key ", key, " cannot be understood: ", why));
}

absl::StatusOr<std::string> ReadParts(EtcdClient& client, const EtcdKeys& keys,
                                      const std::string& path, const records::PartsOf& parts,
                                      int64_t revision) {
  auto read = client.ReadRange(EtcdRange::Prefix(keys.Parts(path, parts.generation())), revision);
  if (!read.ok()) return read.status();
  std::string bytes;
  bytes.reserve(parts.bytes());
  for (const api::KeyValue& kv : read->kvs) bytes += kv.value();
  if (read->kvs.size() != parts.count() || bytes.size() != parts.bytes()) {
    return Unreadable(keys.Record(path), "parts of it are missing");
  }
  return bytes;
}

absl::StatusOr<std::vector<EtcdRecord>> ReadOnce(EtcdClient& client, const EtcdKeys& keys,
                                                 const EtcdRange& range) {
  absl::StatusOr<EtcdSnapshot> snapshot = client.ReadRange(range);
  if (!snapshot.ok()) return snapshot.status();
  std::vector<EtcdRecord> found;
  found.reserve(snapshot->kvs.size());
  for (const api::KeyValue& kv : snapshot->kvs) {
    records::RecordValue value;
    if (!value.ParseFromString(kv.value())) return Unreadable(kv.key(), "its value is damaged");
    EtcdRecord record{keys.PathOf(kv.key()), ""};
    if (value.has_parts()) {
      auto bytes = ReadParts(client, keys, record.path, value.parts(), snapshot->revision);
      if (!bytes.ok()) return bytes.status();
      record.bytes = *std::move(bytes);
    } else {
      record.bytes = std::move(*value.mutable_whole());
    }
    found.push_back(std::move(record));
  }
  return found;
}

}  // namespace

absl::StatusOr<std::vector<EtcdRecord>> ReadRecords(EtcdClient& client, const EtcdKeys& keys,
                                                    std::string_view begin, std::string_view end) {
  const EtcdRange range = keys.Records(begin, end);
  for (int tries = 1;; ++tries) {
    absl::StatusOr<std::vector<EtcdRecord>> found = ReadOnce(client, keys, range);
    if (!absl::IsOutOfRange(found.status()) || tries == kReadTries) return found;
  }
}

EtcdRecordPut PutRecord(const EtcdKeys& keys, std::string_view path, const std::string& bytes,
                        const std::string& generation, const EtcdLimits& limits) {
  EtcdRecordPut put;
  records::RecordValue value;
  const std::string all_parts = keys.Parts(path);
  if (bytes.size() <= limits.part_bytes) {
    value.set_whole(bytes);
    put.switching.push_back(PutOp(keys.Record(path), value.SerializeAsString()));
    put.switching.push_back(DeleteOp(EtcdRange::Prefix(all_parts)));
    return put;
  }
  const std::string own_parts = keys.Parts(path, generation);
  for (size_t begin = 0; begin < bytes.size(); begin += limits.part_bytes) {
    put.parts.push_back(
        PutOp(PartKey(own_parts, put.parts.size()), bytes.substr(begin, limits.part_bytes)));
  }
  value.mutable_parts()->set_generation(generation);
  value.mutable_parts()->set_count(static_cast<uint32_t>(put.parts.size()));
  value.mutable_parts()->set_bytes(bytes.size());
  put.switching.push_back(PutOp(keys.Record(path), value.SerializeAsString()));
  // All generations but this one; among them those of writes that were never finished.
  put.switching.push_back(DeleteOp({all_parts, own_parts}));
  put.switching.push_back(DeleteOp({EndOf(own_parts), EndOf(all_parts)}));
  return put;
}

std::vector<api::RequestOp> DeleteRecord(const EtcdKeys& keys, std::string_view path) {
  return {DeleteOp(EtcdRange::Key(keys.Record(path))),
          DeleteOp(EtcdRange::Prefix(keys.Parts(path)))};
}

std::vector<api::RequestOp> DeleteRecords(const EtcdKeys& keys, std::string_view begin,
                                          std::string_view end) {
  return {DeleteOp(keys.Records(begin, end)), DeleteOp(keys.PartsOfRecords(begin, end))};
}

}  // namespace sparsebalance
