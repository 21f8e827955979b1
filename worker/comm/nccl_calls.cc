#include "worker/comm/nccl_calls.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "worker/comm/gpu_result.h"

namespace sparsebalance::comm_internal {
namespace {

bool Gathers(OpKind kind) { return kind == OpKind::kAllGather || kind == OpKind::kAllGatherInt64; }

NcclType TypeOf(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduceSum:
    case OpKind::kBroadcast:
      return NcclType::kFloat;
    case OpKind::kAllReduceSumDouble:
    case OpKind::kAllGather:
      return NcclType::kDouble;
    default:
      return NcclType::kInt64;
  }
}

NcclReduction ReductionOf(OpKind kind) {
  if (kind == OpKind::kAllReduceMaxInt64) return NcclReduction::kMax;
  if (kind == OpKind::kAllReduceMinInt64) return NcclReduction::kMin;
  return NcclReduction::kSum;
}

CollectiveOp OpOf(const NcclHeader& header) {
  return {static_cast<OpKind>(header.kind), static_cast<uint64_t>(header.count),
          static_cast<uint32_t>(header.root), static_cast<uint64_t>(header.sequence)};
}

}  // namespace

absl::Status NcclCalls::Copy(void* to, const void* from, size_t bytes) {
  SB_GPU_RETURN_IF_ERROR(device_->device(),
                         device_->api().CopyAsync(to, from, bytes, device_->stream()));
  return absl::OkStatus();
}

absl::Status NcclCalls::Follow(void* stream) {
  if (!pending_ || stream == pending_stream_) return absl::OkStatus();
  SB_GPU_RETURN_IF_ERROR(device_->device(),
                         device_->api().StreamWaitEvent(stream, device_->tail_event()));
  return absl::OkStatus();
}

// FNV-1a over the words.
void NcclCalls::Remember(const CollectiveOp& op) {
  for (const uint64_t word : {static_cast<uint64_t>(op.kind), op.count, uint64_t{op.root}}) {
    history_ = (history_ ^ word) * 0x100000001b3U;
  }
}

absl::Status NcclCalls::Enqueue(const CollectiveOp& op, void* data, size_t count, void* stream) {
  NcclApi& api = device_->api();
  void* const comm = device_->comm();
  if (Gathers(op.kind)) {
    SB_NCCL_RETURN_IF_ERROR(*device_,
                            api.AllGather(data, count, TypeOf(op.kind), rank_, comm, stream));
  } else if (op.kind == OpKind::kBroadcast) {
    SB_NCCL_RETURN_IF_ERROR(*device_, api.Broadcast(data, count, TypeOf(op.kind),
                                                    static_cast<int>(op.root), comm, stream));
  } else {
    SB_NCCL_RETURN_IF_ERROR(
        *device_, api.AllReduce(data, count, TypeOf(op.kind), ReductionOf(op.kind), comm, stream));
  }
  return absl::OkStatus();
}

absl::Status NcclCalls::Agree(const CollectiveOp& op) {
  const NcclHeader own = {static_cast<int64_t>(op.kind), static_cast<int64_t>(op.count), op.root,
                          static_cast<int64_t>(op.sequence), static_cast<int64_t>(history_)};
  const Staging headers = device_->headers();
  const size_t offset = rank_ * sizeof(NcclHeader);
  std::memcpy(headers.pinned + offset, &own, sizeof(own));
  absl::Status status = Copy(headers.device + offset, headers.pinned + offset, sizeof(own));
  if (!status.ok()) return status;
  constexpr size_t kWords = sizeof(NcclHeader) / sizeof(int64_t);
  status = Enqueue({OpKind::kAllGatherInt64}, headers.device, kWords, device_->stream());
  if (!status.ok()) return status;
  status = Copy(headers.pinned, headers.device, size_ * sizeof(NcclHeader));
  if (!status.ok()) return status;
  SB_GPU_RETURN_IF_ERROR(device_->device(),
                         device_->api().RecordEvent(device_->slot_event(0), device_->stream()));
  status = device_->Await(device_->slot_event(0));
  if (!status.ok()) return status;

  NcclHeader first;
  std::memcpy(&first, headers.pinned, sizeof(first));
  for (int r = 1; r < size_; ++r) {
    NcclHeader other;
    std::memcpy(&other, headers.pinned + r * sizeof(NcclHeader), sizeof(other));
    if (OpOf(other) != OpOf(first)) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks disagree on the collective: rank 0 called ", OpOf(first).ToString(),
                       ", rank ", r, " called ", OpOf(other).ToString()));
    }
    if (other.history != first.history) {
      return absl::InvalidArgumentError(
          absl::StrCat("ranks disagree on a collective before this one: ranks 0 and ", r,
                       " called others, or with other counts, since they last agreed"));
    }
  }
  return absl::OkStatus();
}

absl::Status NcclCalls::Staged(const CollectiveOp& op, const std::byte* in, std::byte* out) {
  const size_t element = ElementBytes(op.kind);
  const size_t ranks = Gathers(op.kind) ? size_ : 1;  // values that come out for one that goes in
  const size_t piece = staging_bytes_ / (element * ranks);
  const size_t pieces = (op.count + piece - 1) / piece;
  const auto count_of = [&](size_t p) { return std::min<size_t>(piece, op.count - p * piece); };

  const auto put = [&](size_t p) -> absl::Status {
    const int index = static_cast<int>(p % NcclDevice::kSlots);
    const Staging slot = device_->slot(index);
    const size_t bytes = count_of(p) * element;
    const size_t own = ranks > 1 ? rank_ * bytes : 0;
    std::memcpy(slot.pinned + own, in + p * piece * element, bytes);
    absl::Status status = Copy(slot.device + own, slot.pinned + own, bytes);
    if (status.ok()) status = Enqueue(op, slot.device, count_of(p), device_->stream());
    if (status.ok()) status = Copy(slot.pinned, slot.device, bytes * ranks);
    if (!status.ok()) return status;
    SB_GPU_RETURN_IF_ERROR(device_->device(), device_->api().RecordEvent(device_->slot_event(index),
                                                                         device_->stream()));
    return absl::OkStatus();
  };
  const auto take = [&](size_t p) -> absl::Status {
    const int index = static_cast<int>(p % NcclDevice::kSlots);
    absl::Status status = device_->Await(device_->slot_event(index));
    if (!status.ok()) return status;
    const size_t bytes = count_of(p) * element;
    for (size_t r = 0; r < ranks; ++r) {
      std::memcpy(out + (r * op.count + p * piece) * element,
                  device_->slot(index).pinned + r * bytes, bytes);
    }
    return absl::OkStatus();
  };

  for (size_t p = 0; p < pieces + NcclDevice::kSlots; ++p) {
    absl::Status status;
    if (p >= NcclDevice::kSlots && p - NcclDevice::kSlots < pieces) {
      status = take(p - NcclDevice::kSlots);
    }
    if (status.ok() && p < pieces) status = put(p);
    if (!status.ok()) return status;
  }
  return absl::OkStatus();
}

absl::Status NcclCalls::RunHost(const CollectiveOp& op, const std::byte* in, std::byte* out) {
  absl::Status status = Follow(device_->stream());
  if (status.ok()) status = Agree(op);
  if (!status.ok()) return status;
  // The exchange of headers came after all that was enqueued.
  pending_ = false;
  Remember(op);
  return op.kind == OpKind::kBarrier ? status : Staged(op, in, out);
}

absl::Status NcclCalls::RunDevice(const CollectiveOp& op, const FloatBuffer& values) {
  absl::Status status = device_->CheckAsync();
  if (!status.ok()) return status;
  Remember(op);
  if (values.size == 0) return status;
  status = Follow(values.stream);
  if (!status.ok()) return status;
  // From here on something may be on the stream, also where a later bucket fails.
  pending_ = true;
  pending_stream_ = values.stream;
  pending_op_ = op;
  const size_t bucket = bucket_bytes_ / sizeof(float);
  for (size_t begin = 0; begin < values.size; begin += bucket) {
    status = Enqueue(op, values.data + begin, std::min(bucket, values.size - begin), values.stream);
    if (!status.ok()) return status;
  }
  SB_GPU_RETURN_IF_ERROR(device_->device(),
                         device_->api().RecordEvent(device_->tail_event(), values.stream));
  return absl::OkStatus();
}

absl::Status NcclCalls::Wait() {
  if (!pending_) return absl::OkStatus();
  absl::Status status = device_->Await(device_->tail_event());
  if (status.ok()) pending_ = false;
  return status;
}

}  // namespace sparsebalance::comm_internal
