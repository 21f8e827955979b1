#include "worker/comm/local_communicator.h"

#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/synchronization/mutex.h"
#include "worker/comm/collective_op.h"

namespace sparsebalance {
namespace {

using comm_internal::CollectiveOp;
using comm_internal::OpKind;

// What a rank brings to a collective. The pointers are valid while the rank waits in Run().
struct Contribution {
  bool arrived = false;
  const void* in = nullptr;
  CollectiveOp op;
};

// One collective in progress. Ranks keep it alive while they copy the result out, and so the next
// one can begin before the slowest has left this one.
struct Round {
  explicit Round(int size) : contributions(size) {}
  std::vector<Contribution> contributions;
  int arrived = 0;
  bool complete = false;
  absl::Status status;
  std::vector<std::byte> result;
};

class Group {
 public:
  Group(int size, LocalGroupOptions options)
      : size_(size), options_(std::move(options)), round_(std::make_shared<Round>(size)) {}

  int size() const { return size_; }
  const LocalGroupOptions& options() const { return options_; }

  // `out` receives `out_bytes` of the result.
  absl::Status Run(int rank, const CollectiveOp& op, const void* in, void* out, size_t out_bytes) {
    absl::MutexLock lock(&mutex_);
    if (!broken_.ok()) return broken_;
    std::shared_ptr<Round> round = round_;
    round->contributions[rank] = {true, in, op};
    if (++round->arrived == size_) {
      Complete(*round);
      round_ = std::make_shared<Round>(size_);
      changed_.SignalAll();
    } else {
      const absl::Time deadline = absl::Now() + options_.timeout;
      while (!round->complete && broken_.ok()) {
        if (!changed_.WaitWithDeadline(&mutex_, deadline)) continue;
        if (round->complete || !broken_.ok()) break;
        Break(absl::UnavailableError(absl::StrCat("rank ", rank, ": ", op.ToString(), ": ranks ",
                                                  Missing(*round), " did not come within ",
                                                  absl::FormatDuration(options_.timeout))));
      }
    }
    if (!round->complete) return broken_;
    if (!round->status.ok()) return round->status;
    if (out_bytes > 0) std::memcpy(out, round->result.data(), out_bytes);
    return absl::OkStatus();
  }

  // Ends the group for all ranks; the first reason stays.
  void Fail(absl::Status reason) {
    absl::MutexLock lock(&mutex_);
    Break(std::move(reason));
  }

 private:
  void Break(absl::Status reason) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!broken_.ok()) return;
    broken_ = std::move(reason);
    changed_.SignalAll();
  }

  std::string Missing(const Round& round) const {
    std::vector<int> missing;
    for (int r = 0; r < size_; ++r) {
      if (!round.contributions[r].arrived) missing.push_back(r);
    }
    return absl::StrJoin(missing, ", ");
  }

  void Complete(Round& round) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    round.complete = true;
    const CollectiveOp& op = round.contributions[0].op;
    for (int r = 1; r < size_; ++r) {
      const CollectiveOp& other = round.contributions[r].op;
      if (other == op) continue;
      round.status = absl::InvalidArgumentError(
          absl::StrCat("ranks disagree on the collective: rank 0 called ", op.ToString(), ", rank ",
                       r, " called ", other.ToString()));
      Break(round.status);
      return;
    }
    const size_t bytes = op.count * comm_internal::ElementBytes(op.kind);
    if (bytes == 0) return;
    switch (op.kind) {
      case OpKind::kBarrier:
        return;
      case OpKind::kBroadcast:
        Append(round, op.root, bytes);
        return;
      case OpKind::kAllGather:
      case OpKind::kAllGatherInt64:
        for (int r = 0; r < size_; ++r) Append(round, r, bytes);
        return;
      default:
        Append(round, 0, bytes);
        for (int r = 1; r < size_; ++r) {
          comm_internal::Reduce(op.kind, round.result.data(), round.contributions[r].in, op.count);
        }
    }
  }

  static void Append(Round& round, uint32_t rank, size_t bytes) {
    const auto* begin = static_cast<const std::byte*>(round.contributions[rank].in);
    round.result.insert(round.result.end(), begin, begin + bytes);
  }

  const int size_;
  const LocalGroupOptions options_;
  absl::Mutex mutex_;
  absl::CondVar changed_;
  std::shared_ptr<Round> round_ ABSL_GUARDED_BY(mutex_);
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<Group> group, int rank)
      : group_(std::move(group)), rank_(rank) {}

  ~LocalCommunicator() override {
    group_->Fail(absl::UnavailableError(absl::StrCat("rank ", rank_, " left the group")));
  }

  int rank() const override { return rank_; }
  int size() const override { return group_->size(); }
  bool Supports(FloatBuffer::Location location) const override {
    return location == FloatBuffer::Location::kHost;
  }

  absl::Status AllReduceSum(FloatBuffer values) override {
    absl::Status status = comm_internal::CheckHostBuffer(values, OpKind::kAllReduceSum);
    if (!status.ok()) return status;
    return InPlace(OpKind::kAllReduceSum, values.span());
  }
  absl::Status AllReduceSumDouble(std::span<double> values) override {
    return InPlace(OpKind::kAllReduceSumDouble, values);
  }
  absl::Status AllReduceMaxInt64(std::span<int64_t> values) override {
    return InPlace(OpKind::kAllReduceMaxInt64, values);
  }
  absl::Status AllReduceMinInt64(std::span<int64_t> values) override {
    return InPlace(OpKind::kAllReduceMinInt64, values);
  }
  absl::Status AllGather(std::span<const double> in, std::span<double> out) override {
    return Gather(OpKind::kAllGather, in, out);
  }
  absl::Status AllGatherInt64(std::span<const int64_t> in, std::span<int64_t> out) override {
    return Gather(OpKind::kAllGatherInt64, in, out);
  }
  absl::Status Broadcast(FloatBuffer values, int root) override {
    absl::Status status = comm_internal::CheckHostBuffer(values, OpKind::kBroadcast);
    if (status.ok()) status = comm_internal::CheckRoot(root, size());
    if (!status.ok()) return status;
    return InPlace(OpKind::kBroadcast, values.span(), root);
  }
  absl::Status Barrier() override { return InPlace(OpKind::kBarrier, std::span<std::byte>()); }

  absl::Status Wait() override {
    absl::MutexLock lock(&state_mutex_);
    return final_;
  }

  void Abort() override {
    {
      absl::MutexLock lock(&state_mutex_);
      if (final_.ok()) {
        final_ = absl::CancelledError(absl::StrCat("rank ", rank_, ": aborted by this rank"));
      }
    }
    group_->Fail(absl::UnavailableError(absl::StrCat("rank ", rank_, " aborted")));
  }

 private:
  template <typename T>
  absl::Status InPlace(OpKind kind, std::span<T> values, int root = 0) {
    return Run({kind, values.size(), static_cast<uint32_t>(root)}, values.data(), values.data(),
               values.size_bytes());
  }

  template <typename T>
  absl::Status Gather(OpKind kind, std::span<const T> in, std::span<T> out) {
    absl::Status status = comm_internal::CheckGatherSizes(in.size(), out.size(), size(), kind);
    if (!status.ok()) return status;
    return Run({kind, in.size()}, in.data(), out.data(), out.size_bytes());
  }

  absl::Status Run(CollectiveOp op, const void* in, void* out, size_t out_bytes) {
    absl::MutexLock call_lock(&call_mutex_);
    op.sequence = ++calls_;
    {
      absl::MutexLock lock(&state_mutex_);
      if (!final_.ok()) return final_;
    }
    if (group_->options().before_collective) {
      absl::Status fault = group_->options().before_collective(rank_, op.sequence, op.ToString());
      if (!fault.ok()) {
        group_->Fail(absl::UnavailableError(
            absl::StrCat("rank ", rank_, " was lost at ", op.ToString(), ": ", fault.message())));
        return Finish(std::move(fault));
      }
    }
    return Finish(group_->Run(rank_, op, in, out, out_bytes));
  }

  // An error is this rank's last word, and Abort() explains the errors that it causes.
  absl::Status Finish(absl::Status status) {
    if (status.ok()) return status;
    absl::MutexLock lock(&state_mutex_);
    if (final_.ok()) final_ = std::move(status);
    return final_;
  }

  const std::shared_ptr<Group> group_;
  const int rank_;
  absl::Mutex call_mutex_ ABSL_ACQUIRED_BEFORE(state_mutex_);
  uint64_t calls_ ABSL_GUARDED_BY(call_mutex_) = 0;
  absl::Mutex state_mutex_;
  absl::Status final_ ABSL_GUARDED_BY(state_mutex_);
};

}  // namespace

LocalFault FailAt(int rank, uint64_t call, absl::Status error) {
  return [rank, call, error = std::move(error)](int at_rank, uint64_t at_call,
                                                std::string_view) -> absl::Status {
    return at_rank == rank && at_call == call ? error : absl::OkStatus();
  };
}

absl::StatusOr<std::vector<std::unique_ptr<Communicator>>> CreateLocalGroup(
    int size, LocalGroupOptions options) {
  if (size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("a group has at least one rank; size is ", size));
  }
  if (options.timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat("the timeout must be positive; it is ",
                                                   absl::FormatDuration(options.timeout)));
  }
  auto group = std::make_shared<Group>(size, std::move(options));
  std::vector<std::unique_ptr<Communicator>> ranks;
  ranks.reserve(size);
  for (int r = 0; r < size; ++r) ranks.push_back(std::make_unique<LocalCommunicator>(group, r));
  return ranks;
}

}  // namespace sparsebalance
