#include "coordinator/service/state_transfer.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

// Counts what it passes on.
class Sink {
 public:
  explicit Sink(const std::function<bool(const v1::StateRecord&)>& sink) : sink_(sink) {}

  absl::Status Put(const v1::StateRecord& record) {
    if (!sink_(record)) return absl::CancelledError("the receiver of the backup is gone");
    ++records_;
    return absl::OkStatus();
  }
  uint64_t records() const { return records_; }

 private:
  const std::function<bool(const v1::StateRecord&)>& sink_;
  uint64_t records_ = 0;
};

absl::Status ExportJob(Store& store, const StoredJob& job, Sink& sink) {
  v1::StateRecord record;
  v1::StateRecord::Job* entry = record.mutable_job();
  *entry->mutable_spec() = job.spec;
  entry->set_generation(job.generation);
  entry->set_finished(job.finished);
  if (absl::Status status = sink.Put(record); !status.ok()) return status;

  const auto latency = store.LoadLatencyState(job.id);
  if (!latency.ok()) return latency.status();
  if (!latency->empty()) {
    *record.mutable_latency_state()->mutable_job() = job.id.ToProto();
    record.mutable_latency_state()->set_bytes(*latency);
    if (absl::Status status = sink.Put(record); !status.ok()) return status;
  }
  auto coverage = store.LoadCoverage(job.id);
  if (!coverage.ok()) return coverage.status();
  for (CoverageChunk& chunk : *coverage) {
    *record.mutable_coverage()->mutable_job() = job.id.ToProto();
    record.mutable_coverage()->set_index(chunk.index);
    record.mutable_coverage()->set_bytes(std::move(chunk.bytes));
    if (absl::Status status = sink.Put(record); !status.ok()) return status;
  }
  auto consumed = store.LoadConsumed(job.id);
  if (!consumed.ok()) return consumed.status();
  for (v1::ConsumedBatch& batch : *consumed) {
    *record.mutable_consumed()->mutable_job() = job.id.ToProto();
    *record.mutable_consumed()->mutable_batch() = std::move(batch);
    if (absl::Status status = sink.Put(record); !status.ok()) return status;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ExportState(Store& store, const ExportOptions& options,
                         const std::function<bool(const v1::StateRecord&)>& receiver) {
  Sink sink(receiver);
  v1::StateRecord record;
  v1::StateRecord::Header* header = record.mutable_header();
  header->set_format(kStateFormat);
  header->set_server_version(options.version);
  header->set_leader_epoch(options.leader_epoch);
  header->set_unix_ms(absl::ToUnixMillis(options.now));
  if (absl::Status status = sink.Put(record); !status.ok()) return status;
  const auto wanted = [&](const std::string& ns) { return options.ns.empty() || ns == options.ns; };
  auto profiles = store.LoadProfiles();
  if (!profiles.ok()) return profiles.status();
  for (v1::LatencyProfile& profile : *profiles) {
    if (!wanted(profile.key().namespace_())) continue;
    *record.mutable_profile() = std::move(profile);
    if (absl::Status status = sink.Put(record); !status.ok()) return status;
  }
  const auto jobs = store.LoadJobs();
  if (!jobs.ok()) return jobs.status();
  for (const StoredJob& job : *jobs) {
    if (!wanted(job.id.ns)) continue;
    if (absl::Status status = ExportJob(store, job, sink); !status.ok()) return status;
  }
  record.mutable_trailer()->set_records(sink.records());
  return sink.Put(record);
}

absl::Status StateImporter::Add(const v1::StateRecord& record) {
  if (failed_.ok()) failed_ = Take(record);
  if (failed_.ok()) ++records_;
  return failed_;
}

absl::Status StateImporter::CheckJob(const v1::JobKey& job) const {
  if (job_ && JobId::From(job) == JobId::From(job_->spec.job())) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("record ", records_, " of the backup belongs to job ",
                   JobId::From(job).ToString(), ", but does not follow it"));
}

absl::Status StateImporter::HandOver() {
  if (!job_) return absl::OkStatus();
  JobSeed job = *std::move(job_);
  job_.reset();
  const uint64_t batches = job.consumed.size();
  if (absl::Status status = targets_.job(std::move(job), header_->leader_epoch()); !status.ok()) {
    return status;
  }
  taken_.set_jobs(taken_.jobs() + 1);
  taken_.set_consumed_batches(taken_.consumed_batches() + batches);
  return absl::OkStatus();
}

absl::Status StateImporter::Take(const v1::StateRecord& record) {
  using Record = v1::StateRecord;
  const auto misplaced = [&](absl::string_view what) {
    return absl::InvalidArgumentError(
        absl::StrCat("record ", records_, " of the backup is ", what, ": it was damaged"));
  };
  if (complete_) return misplaced("behind its end");
  if (record.record_case() == Record::kHeader) {
    if (header_) return misplaced("a second header");
    if (record.header().format() != kStateFormat) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the backup has format ", record.header().format(), ", this coordinator knows ",
          kStateFormat, "; restore it with version ", record.header().server_version()));
    }
    header_ = record.header();
    return absl::OkStatus();
  }
  if (!header_) return misplaced("not a header");
  switch (record.record_case()) {
    case Record::kProfile:
      if (absl::Status status = HandOver(); !status.ok()) return status;
      if (absl::Status status = targets_.profile(record.profile()); !status.ok()) return status;
      taken_.set_profiles(taken_.profiles() + 1);
      return absl::OkStatus();
    case Record::kJob: {
      if (absl::Status status = HandOver(); !status.ok()) return status;
      JobSeed& job = job_.emplace();
      job.spec = record.job().spec();
      job.generation = record.job().generation();
      job.finished = record.job().finished();
      return absl::OkStatus();
    }
    case Record::kCoverage:
      if (absl::Status status = CheckJob(record.coverage().job()); !status.ok()) return status;
      job_->knowledge.coverage.push_back({record.coverage().index(), record.coverage().bytes()});
      return absl::OkStatus();
    case Record::kLatencyState:
      if (absl::Status status = CheckJob(record.latency_state().job()); !status.ok()) return status;
      job_->knowledge.latency_state = record.latency_state().bytes();
      return absl::OkStatus();
    case Record::kConsumed:
      if (absl::Status status = CheckJob(record.consumed().job()); !status.ok()) return status;
      job_->consumed.push_back(record.consumed().batch());
      return absl::OkStatus();
    case Record::kTrailer:
      if (record.trailer().records() != records_) {
        return absl::DataLossError(
            absl::StrCat("the backup should hold ", record.trailer().records(),
                         " records before its end, ", records_, " came: it was damaged"));
      }
      complete_ = true;
      return HandOver();
    case Record::kHeader:
    case Record::RECORD_NOT_SET:
      break;
  }
  return misplaced("of no known kind");
}

absl::StatusOr<v1::ImportStateResponse> StateImporter::Finish() {
  if (!failed_.ok()) return failed_;
  if (!complete_) {
    return absl::DataLossError(absl::StrCat("the backup ends after ", records_,
                                            " records without its last one: it was cut short"));
  }
  return taken_;
}

}  // namespace sparsebalance
