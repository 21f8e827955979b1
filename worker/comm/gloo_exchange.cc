#include "worker/comm/gloo_exchange.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance::comm_internal {
namespace {

constexpr uint64_t kHeaderMagic = 0x53424f5048454144;  // "SBOPHEAD"

enum Phase : uint32_t { kHeader = 1, kScatter = 2, kGather = 3, kWhole = 4 };

// A bijection on 64 bits that spreads them (the finalizer of SplitMix64).
uint64_t Spread(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

GlooExchange::GlooExchange(GlooMesh* mesh, int rank, int size, size_t bucket_bytes,
                           const CollectiveOp& op)
    : mesh_(mesh),
      rank_(rank),
      size_(size),
      bucket_bytes_(bucket_bytes),
      op_(op),
      element_bytes_(ElementBytes(op.kind)) {}

absl::Status GlooExchange::Run(const std::byte* in, std::byte* out) {
  absl::Status status = StartHeaders();
  if (!status.ok()) return status;
  if (op_.count > 0) {
    switch (op_.kind) {
      case OpKind::kBarrier:
        break;
      case OpKind::kBroadcast:
        status = Broadcast(out);
        break;
      case OpKind::kAllGather:
      case OpKind::kAllGatherInt64:
        status = Gather(in, out);
        break;
      default:
        status = Reduce(out);
    }
  }
  return status.ok() ? CheckHeaders() : status;
}

absl::Status GlooExchange::StartHeaders() {
  own_header_ = {kHeaderMagic, op_.sequence, op_.count, static_cast<uint32_t>(op_.kind), op_.root};
  headers_.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    absl::Status status = Receive(header_transfers_, peer, kHeader, 0,
                                  reinterpret_cast<std::byte*>(&headers_[peer]), sizeof(Header));
    if (status.ok()) {
      status = Send(header_transfers_, peer, kHeader, 0,
                    reinterpret_cast<const std::byte*>(&own_header_), sizeof(Header));
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::CheckHeaders() {
  if (headers_checked_) return absl::OkStatus();
  headers_checked_ = true;
  for (const std::unique_ptr<Transfer>& transfer : header_transfers_) {
    absl::Status status = mesh_->Wait(*transfer);
    if (!status.ok()) return status;
  }
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    const Header& header = headers_[peer];
    const CollectiveOp theirs = {static_cast<OpKind>(header.kind), header.count, header.root,
                                 header.sequence};
    if (header.magic == kHeaderMagic && theirs == op_) continue;
    return absl::InvalidArgumentError(absl::StrCat("ranks disagree on the collective: rank ", peer,
                                                   " called ", theirs.ToString()));
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::Reduce(std::byte* data) {
  return op_.count * element_bytes_ <= GlooCommunicator::kDirectBytes ? ReduceDirect(data)
                                                                      : ReduceBuckets(data);
}

absl::Status GlooExchange::ReduceDirect(std::byte* data) {
  const size_t bytes = op_.count * element_bytes_;
  std::vector<std::vector<std::byte>>& received = buckets_[0].received;
  Transfers& transfers = buckets_[0].scatter;
  received.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    received[peer].resize(bytes);
    absl::Status status = Receive(transfers, peer, kWhole, 0, received[peer].data(), bytes);
    if (status.ok()) status = Send(transfers, peer, kWhole, 0, data, bytes);
    if (!status.ok()) return status;
  }
  absl::Status status = WaitAll(transfers);
  if (status.ok()) AddInRankOrder(data, received, op_.count);
  return status;
}

absl::Status GlooExchange::ReduceBuckets(std::byte* data) {
  const size_t bucket_count = bucket_bytes_ / element_bytes_;
  const size_t buckets = (op_.count + bucket_count - 1) / bucket_count;
  // While one bucket is added up, the next one travels.
  for (size_t b = 0; b <= buckets; ++b) {
    if (b < buckets) {
      Bucket& next = buckets_[b % 2];
      absl::Status status = WaitAll(next.gather);
      if (!status.ok()) return status;
      next.begin = b * bucket_count;
      next.count = std::min(bucket_count, op_.count - next.begin);
      next.index = b;
      status = StartScatter(data, next);
      if (!status.ok()) return status;
    }
    if (b == 0) continue;
    Bucket& current = buckets_[(b - 1) % 2];
    absl::Status status = WaitAll(current.scatter);
    if (!status.ok()) return status;
    const size_t begin = PartBegin(current, rank_);
    AddInRankOrder(data + begin * element_bytes_, current.received,
                   PartBegin(current, rank_ + 1) - begin);
    status = StartGather(data, current);
    if (!status.ok()) return status;
  }
  for (Bucket& bucket : buckets_) {
    absl::Status status = WaitAll(bucket.gather);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::StartScatter(std::byte* data, Bucket& bucket) {
  const size_t own_bytes =
      (PartBegin(bucket, rank_ + 1) - PartBegin(bucket, rank_)) * element_bytes_;
  bucket.received.resize(size_);
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    bucket.received[peer].resize(own_bytes);
    absl::Status status = Receive(bucket.scatter, peer, kScatter, bucket.index,
                                  bucket.received[peer].data(), own_bytes);
    if (status.ok()) {
      const size_t begin = PartBegin(bucket, peer);
      status = Send(bucket.scatter, peer, kScatter, bucket.index, data + begin * element_bytes_,
                    (PartBegin(bucket, peer + 1) - begin) * element_bytes_);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::StartGather(std::byte* data, Bucket& bucket) {
  const size_t own_begin = PartBegin(bucket, rank_);
  const size_t own_bytes = (PartBegin(bucket, rank_ + 1) - own_begin) * element_bytes_;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    // The peer's sum overwrites what was sent to it: it cannot come before that was received.
    const size_t begin = PartBegin(bucket, peer);
    absl::Status status =
        Receive(bucket.gather, peer, kGather, bucket.index, data + begin * element_bytes_,
                (PartBegin(bucket, peer + 1) - begin) * element_bytes_);
    if (status.ok()) {
      status = Send(bucket.gather, peer, kGather, bucket.index, data + own_begin * element_bytes_,
                    own_bytes);
    }
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status GlooExchange::Gather(const std::byte* in, std::byte* out) {
  const size_t bytes = op_.count * element_bytes_;
  std::memcpy(out + rank_ * bytes, in, bytes);
  Transfers& transfers = buckets_[0].gather;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    absl::Status status = Receive(transfers, peer, kWhole, 0, out + peer * bytes, bytes);
    if (status.ok()) status = Send(transfers, peer, kWhole, 0, in, bytes);
    if (!status.ok()) return status;
  }
  return WaitAll(transfers);
}

absl::Status GlooExchange::Broadcast(std::byte* data) {
  const size_t bytes = op_.count * element_bytes_;
  const int root = static_cast<int>(op_.root);
  Transfers& transfers = buckets_[0].gather;
  for (int peer = 0; peer < size_; ++peer) {
    if (peer == rank_) continue;
    absl::Status status;
    if (rank_ == root) status = Send(transfers, peer, kWhole, 0, data, bytes);
    if (peer == root) status = Receive(transfers, peer, kWhole, 0, data, bytes);
    if (!status.ok()) return status;
  }
  return WaitAll(transfers);
}

size_t GlooExchange::PartBegin(const Bucket& bucket, int rank) const {
  return bucket.begin + bucket.count * static_cast<size_t>(rank) / static_cast<size_t>(size_);
}

void GlooExchange::AddInRankOrder(std::byte* own, std::vector<std::vector<std::byte>>& received,
                                  size_t count) {
  if (count == 0) return;
  std::byte* sum = rank_ == 0 ? own : received[0].data();
  for (int r = 1; r < size_; ++r) {
    comm_internal::Reduce(op_.kind, sum, r == rank_ ? own : received[r].data(), count);
  }
  if (sum != own) std::memcpy(own, sum, count * element_bytes_);
}

absl::Status GlooExchange::Send(Transfers& into, int peer, uint32_t phase, uint64_t index,
                                const std::byte* data, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Transfer>> transfer =
      mesh_->Send(peer, Slot(phase, index), data, bytes);
  if (!transfer.ok()) return transfer.status();
  into.push_back(*std::move(transfer));
  return absl::OkStatus();
}

absl::Status GlooExchange::Receive(Transfers& into, int peer, uint32_t phase, uint64_t index,
                                   std::byte* data, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<Transfer>> transfer =
      mesh_->Receive(peer, Slot(phase, index), data, bytes);
  if (!transfer.ok()) return transfer.status();
  into.push_back(*std::move(transfer));
  return absl::OkStatus();
}

absl::Status GlooExchange::WaitAll(Transfers& transfers) {
  if (transfers.empty()) return absl::OkStatus();
  absl::Status status = CheckHeaders();
  if (!status.ok()) return status;
  for (const std::unique_ptr<Transfer>& transfer : transfers) {
    status = mesh_->Wait(*transfer);
    if (!status.ok()) return status;
  }
  transfers.clear();
  return absl::OkStatus();
}

uint64_t GlooExchange::Slot(uint32_t phase, uint64_t index) const {
  // Headers meet by the number of the call alone. Data also needs the same kind, count and root:
  // Gloo ends the process where a message is longer than the buffer that it meets.
  uint64_t slot = Spread(op_.sequence * 8 + phase);
  if (phase != kHeader) {
    slot = Spread(slot + op_.count);
    slot = Spread(slot + (static_cast<uint64_t>(op_.kind) << 32 | op_.root));
    slot = Spread(slot + index);
  }
  return std::max<uint64_t>(slot, 1);  // 0 is the mesh's own
}

}  // namespace sparsebalance::comm_internal
