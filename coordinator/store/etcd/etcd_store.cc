#include "coordinator/store/etcd/etcd_store.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>
#include <utility>
#include <variant>

#include "absl/random/random.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/store/etcd/etcd_epoch.h"
#include "coordinator/store/etcd/etcd_ops.h"
#include "coordinator/store/etcd/records.pb.h"

namespace sparsebalance {
namespace {

namespace api = etcdserverpb;

// Another replica may write the same profile at the same time, and then it is our turn again.
constexpr int kProfileTries = 8;

// Tokens that no other process and no other call makes.
std::function<std::string()> TokenSource() {
  absl::BitGen random;
  const uint64_t process = absl::Uniform<uint64_t>(random);
  return [process, count = std::make_shared<std::atomic<uint64_t>>(0)] {
    return absl::StrCat(absl::Hex(process, absl::kZeroPad16), absl::Hex(++*count));
  };
}

// The job that the write belongs to; null: none.
const JobId* JobOf(const StoreWrite& write) {
  return std::visit(
      [](const auto& w) -> const JobId* {
        if constexpr (requires { w.job.id; }) {
          return &w.job.id;
        } else if constexpr (requires { w.id; }) {
          return &w.id;
        } else {
          return nullptr;
        }
      },
      write);
}

absl::Status Damaged(const std::string& what, const JobId& id) {
  return absl::DataLossError(absl::StrCat(what, " of job ", id.ToString(), " cannot be read"));
}

}  // namespace

// Writes of one job, each handed to the job's writer.
struct EtcdStore::Applier {
  EtcdStore* store;
  EtcdJobWriter& writer;

  absl::Status operator()(const StoreJob& write) const {
    records::JobRow row;
    *row.mutable_spec() = write.job.spec;
    row.set_generation(write.job.generation);
    row.set_finished(write.job.finished);
    return writer.Put(record_path::Job(write.job.id), row.SerializeAsString(), write.epoch);
  }
  absl::Status operator()(const RemoveJob& write) const {
    std::vector<api::RequestOp> all = store->All(record_path::AllCoverage(write.id));
    for (std::vector<api::RequestOp> more :
         {DeleteRecord(store->keys_, record_path::Job(write.id)),
          DeleteRecord(store->keys_, record_path::Latency(write.id)),
          store->All(record_path::AllConsumed(write.id))}) {
      std::move(more.begin(), more.end(), std::back_inserter(all));
    }
    return writer.Add(std::move(all), write.epoch);
  }
  absl::Status operator()(const StoreProfile&) const {
    return absl::InternalError("a profile belongs to no job");
  }
  absl::Status operator()(const StoreCoverage& write) const {
    for (const CoverageChunk& chunk : write.chunks) {
      const std::string path = record_path::Coverage(write.id, chunk.index);
      if (absl::Status status = writer.Put(path, chunk.bytes, write.epoch); !status.ok()) {
        return status;
      }
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const RemoveCoverage& write) const {
    return writer.Add(store->All(record_path::AllCoverage(write.id)), write.epoch);
  }
  absl::Status operator()(const StoreLatencyState& write) const {
    const std::string path = record_path::Latency(write.id);
    if (write.bytes.empty()) return writer.Add(DeleteRecord(store->keys_, path), write.epoch);
    return writer.Put(path, write.bytes, write.epoch);
  }
  absl::Status operator()(const StoreConsumed& write) const {
    return writer.Put(record_path::Consumed(write.id, write.batch.step()),
                      write.batch.SerializeAsString(), write.epoch);
  }
  absl::Status operator()(const CutConsumed& write) const {
    return writer.Add(DeleteRecords(store->keys_, record_path::Consumed(write.id, write.first_step),
                                    EndOf(record_path::AllConsumed(write.id))),
                      write.epoch);
  }
  absl::Status operator()(const PruneConsumed& write) const { return store->Prune(write, writer); }
};

absl::StatusOr<std::unique_ptr<EtcdStore>> EtcdStore::Open(EtcdClient* client, ClaimFences* fences,
                                                           EtcdStoreOptions options) {
  const auto etcd = client->MemberStatus();
  if (!etcd.ok()) return etcd.status();
  std::unique_ptr<EtcdStore> store(new EtcdStore(client, fences, std::move(options)));
  spdlog::info("store {}: version {}, {} bytes", store->Description(), etcd->version(),
               etcd->db_size());
  for (const std::string& alarm : etcd->errors()) {
    spdlog::warn("store {}: etcd says {}", store->Description(), alarm);
  }
  return store;
}

EtcdStore::EtcdStore(EtcdClient* client, ClaimFences* fences, EtcdStoreOptions options)
    : client_(client),
      keys_(std::move(options.prefix)),
      limits_(options.limits),
      writer_parts_{client, &keys_, fences, &limits_, TokenSource()} {}

std::string EtcdStore::Description() const {
  return absl::StrCat("etcd ", client_->Endpoints(), " under ", keys_.prefix());
}

std::vector<api::RequestOp> EtcdStore::All(const std::string& directory) const {
  return DeleteRecords(keys_, directory, EndOf(directory));
}

absl::StatusOr<uint64_t> EtcdStore::RaiseLeaderEpoch(uint64_t above) {
  return NewEpoch(*client_, keys_, above);
}

absl::StatusOr<std::vector<EtcdRecord>> EtcdStore::Read(const std::string& directory) {
  return ReadRecords(*client_, keys_, directory, EndOf(directory));
}

absl::StatusOr<std::vector<StoredJob>> EtcdStore::LoadJobs() {
  const auto found = Read(record_path::AllJobs());
  if (!found.ok()) return found.status();
  std::vector<StoredJob> jobs;
  jobs.reserve(found->size());
  for (const EtcdRecord& record : *found) {
    const std::string key = keys_.Record(record.path);
    std::optional<JobId> id = keys_.JobOf(key);
    if (!id) return absl::DataLossError(absl::StrCat("etcd's key ", key, " names no job"));
    records::JobRow row;
    if (!row.ParseFromString(record.bytes)) return Damaged("the spec", *id);
    jobs.push_back(
        {*std::move(id), std::move(*row.mutable_spec()), row.generation(), row.finished()});
  }
  // Escaped names sort differently.
  std::sort(jobs.begin(), jobs.end(),
            [](const StoredJob& a, const StoredJob& b) { return a.id < b.id; });
  return jobs;
}

absl::StatusOr<std::optional<StoredJob>> EtcdStore::LoadJob(const JobId& id) {
  const std::string path = record_path::Job(id);
  // Everything that starts so: other jobs' names may, too.
  const auto found = Read(path);
  if (!found.ok()) return found.status();
  for (const EtcdRecord& record : *found) {
    if (record.path != path) continue;
    records::JobRow row;
    if (!row.ParseFromString(record.bytes)) return Damaged("the spec", id);
    return StoredJob{id, std::move(*row.mutable_spec()), row.generation(), row.finished()};
  }
  return std::optional<StoredJob>();
}

absl::StatusOr<std::vector<v1::LatencyProfile>> EtcdStore::LoadProfiles() {
  const auto found = Read(record_path::AllProfiles());
  if (!found.ok()) return found.status();
  std::vector<v1::LatencyProfile> profiles;
  profiles.reserve(found->size());
  for (const EtcdRecord& record : *found) {
    if (!profiles.emplace_back().ParseFromString(record.bytes)) {
      return absl::DataLossError(
          absl::StrCat("the latency profile ", keys_.Record(record.path), " cannot be read"));
    }
  }
  const auto name = [](const v1::LatencyProfile& profile) {
    const v1::ProfileKey& key = profile.key();
    return std::tie(key.namespace_(), key.device_class(), key.model_class());
  };
  std::sort(profiles.begin(), profiles.end(),
            [&](const auto& a, const auto& b) { return name(a) < name(b); });
  return profiles;
}

absl::StatusOr<std::vector<CoverageChunk>> EtcdStore::LoadCoverage(const JobId& id) {
  auto found = Read(record_path::AllCoverage(id));
  if (!found.ok()) return found.status();
  std::vector<CoverageChunk> chunks;
  chunks.reserve(found->size());
  for (EtcdRecord& record : *found) {
    const std::optional<uint64_t> index = record_path::Number(record.path);
    if (!index) return Damaged("the coverage", id);
    chunks.push_back({*index, std::move(record.bytes)});
  }
  return chunks;
}

absl::StatusOr<std::string> EtcdStore::LoadLatencyState(const JobId& id) {
  const std::string path = record_path::Latency(id);
  // The one record at this very path.
  auto found = ReadRecords(*client_, keys_, path, path + '\0');
  if (!found.ok()) return found.status();
  return found->empty() ? std::string() : std::move(found->front().bytes);
}

absl::StatusOr<std::vector<v1::ConsumedBatch>> EtcdStore::LoadConsumed(const JobId& id) {
  const auto found = Read(record_path::AllConsumed(id));
  if (!found.ok()) return found.status();
  std::vector<v1::ConsumedBatch> batches;
  batches.reserve(found->size());
  for (const EtcdRecord& record : *found) {
    if (!batches.emplace_back().ParseFromString(record.bytes)) {
      return Damaged("a consumed batch", id);
    }
  }
  return batches;
}

absl::Status EtcdStore::Apply(absl::Span<const StoreWrite> writes) {
  // Jobs are independent of each other, so that each gets as few transactions as can be.
  std::vector<std::pair<const JobId*, std::vector<const StoreWrite*>>> groups;
  std::map<JobId, size_t> group_of;
  for (const StoreWrite& write : writes) {
    const JobId* job = JobOf(write);
    if (job == nullptr) {
      groups.push_back({nullptr, {&write}});
      continue;
    }
    const auto [group, is_new] = group_of.try_emplace(*job, groups.size());
    if (is_new) groups.push_back({job, {}});
    groups[group->second].second.push_back(&write);
  }
  absl::MutexLock lock(&mutex_);
  absl::Status first;
  for (const auto& [job, group] : groups) {
    const absl::Status status = job == nullptr
                                    ? PutProfile(std::get<StoreProfile>(*group[0]).profile)
                                    : ApplyToJob(*job, group);
    // Each further try would wait for its time-out.
    if (absl::IsUnavailable(status)) return status;
    first.Update(status);
  }
  return first;
}

absl::Status EtcdStore::ApplyToJob(const JobId& id, const std::vector<const StoreWrite*>& writes) {
  EtcdJobWriter writer(&writer_parts_, id, &marks_[id]);
  const Applier applier{this, writer};
  absl::Status status;
  for (const StoreWrite* write : writes) {
    status = std::visit(applier, *write);
    if (!status.ok()) break;
  }
  if (status.ok()) status = writer.Flush();
  // Nothing more is to be expected of the job, or it is another's. A mark that is missed is found
  // again.
  if (absl::IsAborted(status) || std::holds_alternative<RemoveJob>(*writes.back())) {
    marks_.erase(id);
  }
  return status;
}

absl::Status EtcdStore::Prune(const PruneConsumed& write, EtcdJobWriter& writer) {
  // Epochs are in the batches, not in their keys. Nobody else writes them while the job is ours.
  if (absl::Status status = writer.Flush(); !status.ok()) return status;
  const std::string directory = record_path::AllConsumed(write.id);
  const auto found = Read(directory);
  if (!found.ok()) return found.status();
  const std::string* first = nullptr;  // of neighbours that go together
  const auto remove_before = [&](const std::string& end) {
    if (first == nullptr) return absl::OkStatus();
    return writer.Add(DeleteRecords(keys_, *std::exchange(first, nullptr), end), write.epoch);
  };
  for (const EtcdRecord& record : *found) {
    v1::ConsumedBatch batch;
    if (!batch.ParseFromString(record.bytes)) return Damaged("a consumed batch", write.id);
    if (batch.epoch() < write.first_kept_epoch) {
      if (first == nullptr) first = &record.path;
    } else if (absl::Status status = remove_before(record.path); !status.ok()) {
      return status;
    }
  }
  return remove_before(EndOf(directory));
}

absl::Status EtcdStore::PutProfile(const v1::LatencyProfile& profile) {
  const std::string path = record_path::Profile(profile.key());
  const std::string key = keys_.Record(path);
  for (int i = 0; i < kProfileTries; ++i) {
    const auto old = client_->ReadRange(EtcdRange::Key(key));
    if (!old.ok()) return old.status();
    EtcdRecordPut put =
        PutRecord(keys_, path, profile.SerializeAsString(), writer_parts_.token(), limits_);
    for (api::RequestOp& part : put.parts) {
      api::TxnRequest txn;
      *txn.add_success() = std::move(part);
      if (const auto response = client_->Txn(txn); !response.ok()) return response.status();
    }
    api::TxnRequest txn;
    *txn.add_compare() = LastPutAt(key, old->kvs.empty() ? 0 : old->kvs[0].mod_revision());
    for (api::RequestOp& op : put.switching) *txn.add_success() = std::move(op);
    const auto response = client_->Txn(txn);
    if (!response.ok()) return response.status();
    // Else it is written again, parts and all: whoever was first has deleted them.
    if (response->succeeded()) return absl::OkStatus();
  }
  return absl::UnavailableError(
      absl::StrCat("the latency profile ", key, " is written by others all the time"));
}

}  // namespace sparsebalance
