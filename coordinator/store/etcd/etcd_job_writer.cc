#include "coordinator/store/etcd/etcd_job_writer.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/etcd/etcd_ops.h"

namespace sparsebalance {
namespace {

namespace api = etcdserverpb;

// The mark's put, besides what is collected.
constexpr size_t kOwnOperations = 1;
// A transaction finds another mark only where one that was given up came through after all.
constexpr int kWriteTries = 4;

size_t BytesOf(const api::RequestOp& op) { return op.ByteSizeLong(); }

bool Deletes(const api::DeleteRangeRequest& range, const std::string& key) {
  return range.range_end().empty() ? key == range.key()
                                   : key >= range.key() && key < range.range_end();
}

// etcd refuses transactions in which a key is put twice, or put and deleted.
bool Collide(const api::RequestOp& a, const api::RequestOp& b) {
  if (a.has_request_put() && b.has_request_put()) {
    return a.request_put().key() == b.request_put().key();
  }
  if (a.has_request_put() && b.has_request_delete_range()) {
    return Deletes(b.request_delete_range(), a.request_put().key());
  }
  if (a.has_request_delete_range() && b.has_request_put()) {
    return Deletes(a.request_delete_range(), b.request_put().key());
  }
  return false;
}

}  // namespace

EtcdJobWriter::EtcdJobWriter(const Parts* parts, JobId id, JobMark* mark)
    : parts_(*parts), id_(std::move(id)), mark_(*mark) {}

bool EtcdJobWriter::Fits(const std::vector<api::RequestOp>& operations, uint64_t epoch) const {
  const auto& collected = collected_.success();
  if (collected.empty()) return true;
  const size_t count = static_cast<size_t>(collected.size()) + operations.size();
  if (epoch != epoch_ || count + kOwnOperations > parts_.limits->txn_operations) return false;
  size_t bytes = collected_bytes_;
  for (const api::RequestOp& op : operations) {
    bytes += BytesOf(op);
    for (const api::RequestOp& other : collected) {
      if (Collide(op, other)) return false;
    }
  }
  return bytes <= parts_.limits->txn_bytes;
}

absl::Status EtcdJobWriter::Add(std::vector<api::RequestOp> operations, uint64_t epoch) {
  if (!Fits(operations, epoch)) {
    if (absl::Status status = Flush(); !status.ok()) return status;
  }
  epoch_ = epoch;
  for (api::RequestOp& op : operations) {
    collected_bytes_ += BytesOf(op);
    *collected_.add_success() = std::move(op);
  }
  return absl::OkStatus();
}

absl::Status EtcdJobWriter::Put(const std::string& path, const std::string& bytes, uint64_t epoch) {
  EtcdRecordPut put = PutRecord(*parts_.keys, path, bytes, parts_.token(), *parts_.limits);
  // Nobody reads the parts before the switch, so it does not matter what they are written with.
  for (api::RequestOp& part : put.parts) {
    if (absl::Status status = Add({std::move(part)}, epoch); !status.ok()) return status;
  }
  return Add(std::move(put.switching), epoch);
}

absl::Status EtcdJobWriter::Flush() {
  if (collected_.success().empty()) return absl::OkStatus();
  const api::TxnRequest collected = std::exchange(collected_, {});
  collected_bytes_ = 0;
  const absl::StatusOr<ClaimFence> fence = parts_.fences->FenceOf(id_, epoch_);
  if (!fence.ok()) return fence.status();
  return Commit(*fence, collected);
}

absl::Status EtcdJobWriter::Commit(const ClaimFence& fence, const api::TxnRequest& collected) {
  if (mark_.claim != fence.create_revision) mark_ = {fence.create_revision, 0};
  const std::string claim_key = parts_.keys->Claim(id_);
  const std::string mark_key = parts_.keys->Mark(id_);
  const std::string token = parts_.token();
  for (int i = 0; i < kWriteTries; ++i) {
    api::TxnRequest txn = collected;
    *txn.add_compare() = CreatedAt(claim_key, fence.create_revision);
    *txn.add_compare() = LastPutAt(mark_key, mark_.put_at);
    // Under the claim's lease: it goes with the claim, and in an etcd that was wiped, where the
    // revisions could be the same by chance, there is no such lease.
    *txn.add_success() = PutOp(mark_key, token, fence.lease);
    *txn.add_failure() = GetOp(claim_key);
    *txn.add_failure() = GetOp(mark_key);
    const auto response = parts_.client->Txn(txn);
    if (absl::IsNotFound(response.status())) return Aborted();
    if (!response.ok()) return response.status();
    if (response->succeeded()) {
      mark_.put_at = response->header().revision();
      return absl::OkStatus();
    }
    const api::KeyValue* claim = Got(*response, 0);
    if (claim == nullptr || claim->create_revision() != fence.create_revision) return Aborted();
    const api::KeyValue* mark = Got(*response, 1);
    mark_.put_at = mark == nullptr ? 0 : mark->mod_revision();
    if (mark != nullptr && mark->value() == token) return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("etcd's key ", mark_key, " is changed by others than the job's owner"));
}

absl::Status EtcdJobWriter::Aborted() const {
  return absl::AbortedError(absl::StrCat(
      "job ", id_.ToString(), " is not this coordinator's any more; nothing of it is written"));
}

}  // namespace sparsebalance
