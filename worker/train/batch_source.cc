#include "worker/train/batch_source.h"

#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/batch_digest.h"
#include "kernels/status_macros.h"

namespace sparsebalance {

absl::StatusOr<BatchSource> BatchSource::Create(const TrainOptions& options,
                                                const data::IndexedDataset* dataset,
                                                uint64_t next_step,
                                                data::SamplerPosition position) {
  SB_ASSIGN_OR_RETURN(
      data::GlobalBatchSampler sampler,
      data::GlobalBatchSampler::Create({.dataset_size = dataset->size(),
                                        .global_batch_size = options.global_batch_size,
                                        .seed = options.seed}));
  SB_RETURN_IF_ERROR(sampler.Restore(position));
  return BatchSource(dataset, std::move(sampler), next_step);
}

absl::StatusOr<v1::GlobalBatch> BatchSource::Make(uint64_t ahead) {
  const auto made = made_.find(step_ + ahead);
  if (made != made_.end()) return made->second;
  const data::GlobalBatch sampled = sampler_.Peek(ahead);
  v1::GlobalBatch batch;
  batch.set_step(step_ + ahead);
  batch.set_epoch(sampled.position.epoch);
  for (const uint64_t id : sampled.ids) {
    v1::BatchSequence& sequence = *batch.add_sequences();
    sequence.set_id(id);
    SB_ASSIGN_OR_RETURN(const int64_t tokens, dataset_->length(id));
    SB_ASSIGN_OR_RETURN(const int64_t supervised, dataset_->supervised_targets(id));
    sequence.set_tokens(static_cast<uint64_t>(tokens));
    sequence.set_supervised_tokens(static_cast<uint64_t>(supervised));
  }
  batch.set_digest(BatchDigest(batch));
  made_[step_ + ahead] = batch;
  return batch;
}

absl::StatusOr<v1::GlobalBatch> BatchSource::Current() { return Make(0); }

absl::StatusOr<v1::GlobalBatch> BatchSource::Following() { return Make(1); }

void BatchSource::Advance() {
  made_.erase(step_);
  sampler_.Next();
  ++step_;
}

v1::PlanRequest FallbackRequest(const v1::PlanSettings& settings, const v1::GlobalBatch& batch) {
  v1::PlanRequest request;
  *request.mutable_settings() = settings;
  request.set_step(batch.step());
  for (const v1::BatchSequence& in : batch.sequences()) {
    v1::Sequence& sequence = *request.add_sequences();
    sequence.set_id(in.id());
    sequence.set_tokens(in.tokens());
    sequence.set_supervised_tokens(in.supervised_tokens());
  }
  return request;
}

absl::Status CheckPlanForRank(const v1::Plan& plan, uint32_t rank, const v1::GlobalBatch& batch) {
  std::map<uint64_t, uint64_t> tokens;
  uint64_t supervised = 0;
  for (const v1::BatchSequence& sequence : batch.sequences()) {
    tokens[sequence.id()] = sequence.tokens();
    supervised += sequence.supervised_tokens();
  }
  if (plan.global_supervised_tokens() != supervised) {
    return absl::InvalidArgumentError(
        absl::StrCat("its loss is divided by ", plan.global_supervised_tokens(),
                     " tokens, the batch has ", supervised, " supervised ones"));
  }
  const v1::RankPlan* mine = nullptr;
  for (const v1::RankPlan& candidate : plan.ranks()) {
    if (candidate.rank() == rank) mine = &candidate;
  }
  if (mine == nullptr) {
    return absl::InvalidArgumentError(absl::StrCat("it has no entry for rank ", rank));
  }
  for (const v1::MicroBatch& micro_batch : mine->micro_batches()) {
    if (micro_batch.slices().empty() != micro_batch.zero_weight()) {
      return absl::InvalidArgumentError("it has an empty micro-batch that is not marked as filler");
    }
    for (const v1::Slice& slice : micro_batch.slices()) {
      const auto found = tokens.find(slice.sequence_id());
      if (found == tokens.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "sequence ", slice.sequence_id(), " is not in the batch, or stands twice on the rank"));
      }
      if (slice.token_begin() != 0 || slice.token_end() != found->second) {
        return absl::InvalidArgumentError(absl::StrCat(
            "sequence ", slice.sequence_id(), " has ", found->second, " tokens, the plan takes ",
            slice.token_begin(), " to ", slice.token_end()));
      }
      if (slice.budget_blocks() < 1) {
        return absl::InvalidArgumentError(
            absl::StrCat("sequence ", slice.sequence_id(), " has a budget of 0 blocks"));
      }
      tokens.erase(found);
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
