#include "coordinator/store/store_writer.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"

namespace sparsebalance {

StoreWriter::StoreWriter(Store* store, StoreWriterOptions options)
    : store_(store), options_(options), thread_([this] { Run(); }) {}

StoreWriter::~StoreWriter() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

absl::Status StoreWriter::Write(StoreWrite write, Done done) {
  absl::MutexLock lock(&mutex_);
  absl::Status refusal;
  if (closing_) {
    refusal = absl::UnavailableError("the store is closing");
  } else if (queue_.size() >= options_.max_queued) {
    refusal = absl::ResourceExhaustedError(
        absl::StrCat("the store is behind by ", queue_.size(), " writes; this one was not queued"));
  }
  if (!refusal.ok()) {
    NoteLocked(refusal);
    return refusal;
  }
  queue_.push_back({std::move(write), std::move(done)});
  ++accepted_;
  return absl::OkStatus();
}

absl::Status StoreWriter::Flush() {
  absl::MutexLock lock(&mutex_);
  const uint64_t target = accepted_;
  const auto reached = [this, target]()
                           ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return tried_ >= target; };
  mutex_.Await(absl::Condition(&reached));
  return std::exchange(first_error_, absl::OkStatus());
}

uint64_t StoreWriter::failed_writes() const {
  absl::MutexLock lock(&mutex_);
  return failed_;
}

absl::Status StoreWriter::health() const {
  absl::MutexLock lock(&mutex_);
  return last_;
}

void StoreWriter::Note(const absl::Status& status) {
  absl::MutexLock lock(&mutex_);
  last_ = status;
  if (!status.ok()) NoteLocked(status);
}

void StoreWriter::NoteLocked(const absl::Status& status) {
  ++failed_;
  if (first_error_.ok()) first_error_ = status;
}

void StoreWriter::Run() {
  while (true) {
    std::vector<Entry> batch;
    {
      absl::MutexLock lock(&mutex_);
      const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
        return closing_ || !queue_.empty();
      };
      mutex_.Await(absl::Condition(&work));
      if (queue_.empty()) return;
      const size_t take = std::min(queue_.size(), options_.max_batch);
      batch.assign(std::make_move_iterator(queue_.begin()),
                   std::make_move_iterator(queue_.begin() + static_cast<std::ptrdiff_t>(take)));
      queue_.erase(queue_.begin(), queue_.begin() + static_cast<std::ptrdiff_t>(take));
    }
    const size_t size = batch.size();
    ApplyBatch(std::move(batch));
    absl::MutexLock lock(&mutex_);
    tried_ += size;
  }
}

void StoreWriter::ApplyBatch(std::vector<Entry> batch) {
  std::vector<StoreWrite> writes;
  writes.reserve(batch.size());
  for (Entry& entry : batch) writes.push_back(std::move(entry.write));
  std::vector<absl::Status> outcomes(batch.size());
  ApplyRange(writes, absl::MakeSpan(outcomes));
  for (size_t i = 0; i < batch.size(); ++i) {
    Note(outcomes[i]);
    if (batch[i].done) batch[i].done(outcomes[i]);
  }
}

void StoreWriter::ApplyRange(absl::Span<const StoreWrite> writes,
                             absl::Span<absl::Status> outcomes) {
  const absl::Time begin = absl::Now();
  const absl::Status whole = store_->Apply(writes);
  if (options_.observer) options_.observer(absl::Now() - begin);
  if (whole.ok()) return;
  // One bad write must not take its neighbours along. But where the store is away each further try
  // would wait for its time-out.
  if (writes.size() == 1 || absl::IsUnavailable(whole)) {
    std::fill(outcomes.begin(), outcomes.end(), whole);
    return;
  }
  // What the store has applied of a failed call is applied again, which changes nothing: order is
  // kept.
  const size_t half = writes.size() / 2;
  ApplyRange(writes.first(half), outcomes.first(half));
  ApplyRange(writes.subspan(half), outcomes.subspan(half));
}

}  // namespace sparsebalance
