#include "worker/comm/collective_op.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace sparsebalance::comm_internal {
namespace {

const char* Name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduceSum:
      return "AllReduceSum";
    case OpKind::kAllReduceSumDouble:
      return "AllReduceSumDouble";
    case OpKind::kAllReduceMaxInt64:
      return "AllReduceMaxInt64";
    case OpKind::kAllReduceMinInt64:
      return "AllReduceMinInt64";
    case OpKind::kAllGather:
      return "AllGather";
    case OpKind::kAllGatherInt64:
      return "AllGatherInt64";
    case OpKind::kBroadcast:
      return "Broadcast";
    case OpKind::kBarrier:
      return "Barrier";
  }
  return "unknown operation";
}

template <typename T, typename F>
void Apply(void* into, const void* from, size_t count, F f) {
  T* a = static_cast<T*>(into);
  const T* b = static_cast<const T*>(from);
  for (size_t i = 0; i < count; ++i) a[i] = f(a[i], b[i]);
}

}  // namespace

std::string CollectiveOp::ToString() const {
  std::string text = Name(kind);
  if (kind != OpKind::kBarrier) absl::StrAppend(&text, " of ", count, " elements");
  if (kind == OpKind::kBroadcast) absl::StrAppend(&text, " from rank ", root);
  absl::StrAppend(&text, ", call ", sequence);
  return text;
}

size_t ElementBytes(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduceSum:
    case OpKind::kBroadcast:
      return sizeof(float);
    case OpKind::kAllReduceSumDouble:
    case OpKind::kAllGather:
      return sizeof(double);
    case OpKind::kAllReduceMaxInt64:
    case OpKind::kAllReduceMinInt64:
    case OpKind::kAllGatherInt64:
      return sizeof(int64_t);
    case OpKind::kBarrier:
      return 1;
  }
  return 1;
}

void Reduce(OpKind kind, void* into, const void* from, size_t count) {
  switch (kind) {
    case OpKind::kAllReduceSum:
      Apply<float>(into, from, count, [](float a, float b) { return a + b; });
      return;
    case OpKind::kAllReduceSumDouble:
      Apply<double>(into, from, count, [](double a, double b) { return a + b; });
      return;
    case OpKind::kAllReduceMaxInt64:
      Apply<int64_t>(into, from, count, [](int64_t a, int64_t b) { return std::max(a, b); });
      return;
    case OpKind::kAllReduceMinInt64:
      Apply<int64_t>(into, from, count, [](int64_t a, int64_t b) { return std::min(a, b); });
      return;
    case OpKind::kAllGather:
    case OpKind::kAllGatherInt64:
    case OpKind::kBroadcast:
    case OpKind::kBarrier:
      return;
  }
}

absl::Status CheckHostBuffer(const FloatBuffer& values, OpKind kind) {
  if (values.location == FloatBuffer::Location::kHost) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(Name(kind), ": the buffer of ", values.size,
                   " elements is in device memory, and this communicator reaches host memory "
                   "only; copy it to the host or use a communicator for GPUs"));
}

absl::Status CheckGatherSizes(size_t in, size_t out, int size, OpKind kind) {
  if (out == in * static_cast<size_t>(size)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Name(kind), ": the output has ", out,
                                                 " elements; ", size, " ranks of ", in,
                                                 " elements need ", in * size));
}

absl::Status CheckRoot(int root, int size) {
  if (root >= 0 && root < size) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("Broadcast: root is ", root, "; it must be a rank in [0, ", size, ")"));
}

}  // namespace sparsebalance::comm_internal
