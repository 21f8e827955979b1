#include "coordinator/service/job_knowledge.h"

#include <algorithm>
#include <utility>

#include "coordinator/service/log_fields.h"

namespace sparsebalance {
namespace {

constexpr size_t kMostSequences = 1'000'000;

planner::EstimatorOptions EstimatorFor(const v1::JobSpec& spec) {
  planner::EstimatorOptions options;
  options.block_tokens = spec.plan().block_tokens();
  options.parallelism = spec.parallelism();
  return options;
}

}  // namespace

bool JobKnowledge::Fits(const v1::LatencyProfile& profile) const {
  return profile.key().namespace_() == spec_.job().namespace_() &&
         profile.key().device_class() == spec_.device_class() &&
         profile.key().model_class() == spec_.model_class() &&
         profile.model().block_tokens() == spec_.plan().block_tokens();
}

JobKnowledge::JobKnowledge(const v1::JobSpec& spec, KnowledgeSeed seed)
    : spec_(spec),
      profile_(seed.profile && Fits(*seed.profile) ? std::move(seed.profile) : std::nullopt),
      latency_(EstimatorFor(spec_), profile_),
      coverage_(spec_.plan().block_tokens()) {
  absl::MutexLock lock(&mutex_);
  if (spec_.plan().layer_budgets()) {
    // Together no more than the memory of means.
    const size_t most = std::max<size_t>(1, kMostSequences / std::max(1u, spec_.num_layers()));
    for (uint32_t l = 0; l < spec_.num_layers(); ++l) {
      layer_coverage_.emplace_back(spec_.plan().block_tokens(), most);
    }
  }
  if (!seed.latency_state.empty()) {
    if (absl::Status status = latency_.Restore(seed.latency_state); !status.ok()) {
      LogWarn({JobId::From(spec_.job()).ToString()},
              "learned latency is not taken up, it is learned again: {}",
              std::string(status.message()));
    }
  }
  for (const CoverageChunk& chunk : seed.coverage) {
    if (absl::Status status = coverage_.RestoreChunk(chunk.bytes); !status.ok()) {
      LogWarn({JobId::From(spec_.job()).ToString()},
              "chunk {} of coverage memory is not taken up, it is measured again: {}", chunk.index,
              std::string(status.message()));
    }
  }
}

void JobKnowledge::Observe(absl::Span<const v1::RankTelemetry* const> reports) {
  absl::MutexLock lock(&mutex_);
  for (const v1::RankTelemetry* report : reports) {
    latency_.Observe(*report);
    latency_changed_ = true;
    for (const v1::MicroBatchTelemetry& micro : report->micro_batches()) {
      for (const v1::SequenceTelemetry& sequence : micro.sequences()) {
        ObserveCoverage(*report, sequence);
      }
    }
  }
}

void JobKnowledge::ObserveCoverage(const v1::RankTelemetry& report,
                                   const v1::SequenceTelemetry& sequence) {
  const uint64_t id = sequence.sequence_id();
  if (full_ && !coverage_.Contains(id, sequence.tokens())) return;
  absl::Status status;
  if (!sequence.coverage().budget_blocks().empty()) {
    status = coverage_.Observe(id, sequence.tokens(), sequence.coverage());
  }
  if (static_cast<size_t>(sequence.layer_coverage_size()) == layer_coverage_.size()) {
    for (size_t l = 0; l < layer_coverage_.size() && status.ok(); ++l) {
      status = layer_coverage_[l].Observe(id, sequence.tokens(),
                                          sequence.layer_coverage(static_cast<int>(l)));
    }
  }
  if (!status.ok()) {
    LogWarn({JobId::From(spec_.job()).ToString(), 0, report.step()},
            "coverage of sequence {} from rank {} is not taken: {}", id, report.rank(),
            std::string(status.message()));
  }
}

void JobKnowledge::AddSequences(
    const google::protobuf::RepeatedPtrField<v1::BatchSequence>& sequences,
    google::protobuf::RepeatedPtrField<v1::Sequence>& out) const {
  for (const v1::BatchSequence& given : sequences) {
    v1::Sequence* sequence = out.Add();
    sequence->set_id(given.id());
    sequence->set_tokens(given.tokens());
    sequence->set_supervised_tokens(given.supervised_tokens());
    sequence->set_deferred_steps(given.deferred_steps());
    *sequence->mutable_coverage() = coverage_.Lookup(given.id(), given.tokens());
    for (const planner::CoverageMemory& layer : layer_coverage_) {
      if (layer.size() == 0) break;
      *sequence->add_layer_coverage() = layer.Lookup(given.id(), given.tokens());
    }
  }
}

void JobKnowledge::FillRequest(const v1::GlobalBatch& batch, v1::PlanRequest& request) const {
  *request.mutable_settings() = spec_.plan();
  request.set_step(batch.step());
  request.mutable_sequences()->Reserve(batch.sequences_size());
  absl::MutexLock lock(&mutex_);
  *request.mutable_latency() = latency_.model();
  for (v1::RankFactor& factor : latency_.rank_factors()) {
    *request.add_rank_factors() = std::move(factor);
  }
  AddSequences(batch.sequences(), *request.mutable_sequences());
  // A job that does not look ahead sends none; other batches than it asks for are not looked at.
  const uint64_t ahead = std::max<uint64_t>(1, spec_.plan().lookahead_steps()) - 1;
  for (const v1::FollowingBatch& following : batch.following()) {
    if (static_cast<uint64_t>(request.upcoming_size()) >= ahead) break;
    v1::UpcomingBatch* upcoming = request.add_upcoming();
    upcoming->set_step(following.step());
    AddSequences(following.sequences(), *upcoming->mutable_sequences());
  }
}

absl::StatusOr<v1::PutCoverageResponse> JobKnowledge::PutCoverage(
    const google::protobuf::RepeatedPtrField<v1::SequenceCoverage>& entries) {
  v1::PutCoverageResponse answer;
  absl::MutexLock lock(&mutex_);
  if (full_) return answer;
  for (const v1::SequenceCoverage& entry : entries) {
    const absl::StatusOr<bool> taken =
        coverage_.PutIfAbsent(entry.sequence_id(), entry.tokens(), entry.coverage());
    if (!taken.ok()) return taken.status();
    if (*taken) {
      answer.set_accepted(answer.accepted() + 1);
    } else {
      answer.set_already_known(answer.already_known() + 1);
    }
  }
  return answer;
}

bool JobKnowledge::OfferProfile(const v1::LatencyProfile& profile) {
  absl::MutexLock lock(&mutex_);
  if (!Fits(profile) || latency_.reports() != 0) return false;
  profile_ = profile;
  latency_ = planner::LatencyEstimator(EstimatorFor(spec_), profile_);
  return true;
}

void JobKnowledge::SetFull(bool full) {
  absl::MutexLock lock(&mutex_);
  full_ = full;
}

bool JobKnowledge::full() const {
  absl::MutexLock lock(&mutex_);
  return full_;
}

size_t JobKnowledge::bytes() const {
  absl::MutexLock lock(&mutex_);
  size_t sequences = coverage_.size();
  for (const planner::CoverageMemory& layer : layer_coverage_) sequences += layer.size();
  return sequences * planner::CoverageMemory::kBytesPerSequence;
}

void JobKnowledge::FillStatus(v1::JobStatus& status) const {
  absl::MutexLock lock(&mutex_);
  *status.mutable_latency() = latency_.model();
  status.set_latency_source(latency_.source());
  status.set_remembered_sequences(coverage_.size());
  status.set_memory_full(full_);
  const std::vector<double>& factors = latency_.time_factors();
  for (v1::RankStatus& rank : *status.mutable_ranks()) {
    rank.set_time_factor(factors[rank.rank()]);
  }
}

void JobKnowledge::FillFigures(JobFigures& figures) const {
  absl::MutexLock lock(&mutex_);
  figures.latency_source = latency_.source();
  figures.remembered_sequences = coverage_.size();
  const std::vector<double>& factors = latency_.time_factors();
  figures.max_time_factor = *std::max_element(factors.begin(), factors.end());
  figures.slow_ranks = static_cast<uint64_t>(std::count_if(
      factors.begin(), factors.end(), [](double factor) { return factor > kSlowRankFactor; }));
}

std::vector<StoreWrite> JobKnowledge::TakeWrites(const JobId& id, uint64_t epoch) {
  std::vector<StoreWrite> writes;
  absl::MutexLock lock(&mutex_);
  if (latency_changed_ || write_everything_) {
    writes.push_back(StoreLatencyState{id, latency_.Serialize(), epoch});
  }
  std::vector<size_t> chunks = coverage_.TakeChangedChunks();
  if (write_everything_) {
    chunks.clear();
    for (size_t index = 0; index < coverage_.NumChunks(); ++index) chunks.push_back(index);
  }
  // One chunk a write: a transaction then stays small however much was learned.
  for (const size_t index : chunks) {
    writes.push_back(StoreCoverage{id, {{index, coverage_.Chunk(index)}}, epoch});
  }
  latency_changed_ = false;
  write_everything_ = false;
  return writes;
}

void JobKnowledge::MarkUnwritten() {
  absl::MutexLock lock(&mutex_);
  write_everything_ = true;
}

KnowledgeSeed JobKnowledge::Export() const {
  KnowledgeSeed seed;
  absl::MutexLock lock(&mutex_);
  seed.profile = profile_;
  if (latency_.reports() != 0) seed.latency_state = latency_.Serialize();
  for (size_t index = 0; index < coverage_.NumChunks(); ++index) {
    seed.coverage.push_back({index, coverage_.Chunk(index)});
  }
  return seed;
}

}  // namespace sparsebalance
