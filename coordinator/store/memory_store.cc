#include "coordinator/store/memory_store.h"

#include <algorithm>
#include <utility>

namespace sparsebalance {

struct MemoryStore::Applier {
  MemoryStore* store;

  void operator()(const StoreJob& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    store->jobs_[write.job.id] = write.job;
  }
  void operator()(const RemoveJob& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    store->jobs_.erase(write.id);
    store->data_.erase(write.id);
  }
  void operator()(const StoreProfile& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    const v1::ProfileKey& key = write.profile.key();
    store->profiles_[{key.namespace_(), key.device_class(), key.model_class()}] = write.profile;
  }
  void operator()(const StoreCoverage& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    for (const CoverageChunk& chunk : write.chunks) {
      store->data_[write.id].coverage[chunk.index] = chunk.bytes;
    }
  }
  void operator()(const RemoveCoverage& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    store->data_[write.id].coverage.clear();
  }
  void operator()(const StoreLatencyState& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    store->data_[write.id].latency = write.bytes;
  }
  void operator()(const StoreConsumed& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    store->data_[write.id].consumed[write.batch.step()] = write.batch;
  }
  void operator()(const CutConsumed& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    auto& consumed = store->data_[write.id].consumed;
    consumed.erase(consumed.lower_bound(write.first_step), consumed.end());
  }
  void operator()(const PruneConsumed& write) ABSL_NO_THREAD_SAFETY_ANALYSIS {
    std::erase_if(store->data_[write.id].consumed,
                  [&](const auto& entry) { return entry.second.epoch() < write.first_kept_epoch; });
  }
};

absl::StatusOr<uint64_t> MemoryStore::RaiseLeaderEpoch(uint64_t above) {
  absl::MutexLock lock(&mutex_);
  epoch_ = std::max(epoch_, above) + 1;
  return epoch_;
}

absl::StatusOr<std::vector<StoredJob>> MemoryStore::LoadJobs() {
  absl::MutexLock lock(&mutex_);
  std::vector<StoredJob> jobs;
  jobs.reserve(jobs_.size());
  for (const auto& [id, job] : jobs_) jobs.push_back(job);
  return jobs;
}

absl::StatusOr<std::vector<v1::LatencyProfile>> MemoryStore::LoadProfiles() {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::LatencyProfile> profiles;
  profiles.reserve(profiles_.size());
  for (const auto& [key, profile] : profiles_) profiles.push_back(profile);
  return profiles;
}

absl::StatusOr<std::vector<CoverageChunk>> MemoryStore::LoadCoverage(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  std::vector<CoverageChunk> chunks;
  const auto data = data_.find(id);
  if (data == data_.end()) return chunks;
  chunks.reserve(data->second.coverage.size());
  for (const auto& [index, bytes] : data->second.coverage) chunks.push_back({index, bytes});
  return chunks;
}

absl::StatusOr<std::string> MemoryStore::LoadLatencyState(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  const auto data = data_.find(id);
  return data == data_.end() ? std::string() : data->second.latency;
}

absl::StatusOr<std::vector<v1::ConsumedBatch>> MemoryStore::LoadConsumed(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::ConsumedBatch> batches;
  const auto data = data_.find(id);
  if (data == data_.end()) return batches;
  batches.reserve(data->second.consumed.size());
  for (const auto& [step, batch] : data->second.consumed) batches.push_back(batch);
  return batches;
}

absl::Status MemoryStore::Apply(absl::Span<const StoreWrite> writes) {
  absl::MutexLock lock(&mutex_);
  if (!write_failure_.ok()) return write_failure_;
  for (const StoreWrite& write : writes) std::visit(Applier{this}, write);
  return absl::OkStatus();
}

void MemoryStore::FailWrites(absl::Status status) {
  absl::MutexLock lock(&mutex_);
  write_failure_ = std::move(status);
}

}  // namespace sparsebalance
