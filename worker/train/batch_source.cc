#include "worker/train/batch_source.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/service/batch_digest.h"
#include "kernels/status_macros.h"

namespace sparsebalance {

absl::StatusOr<BatchSource> BatchSource::Create(const TrainOptions& options,
                                                const data::IndexedDataset* dataset,
                                                BatchPosition position) {
  SB_ASSIGN_OR_RETURN(
      data::GlobalBatchSampler sampler,
      data::GlobalBatchSampler::Create({.dataset_size = dataset->size(),
                                        .global_batch_size = options.global_batch_size,
                                        .seed = options.seed}));
  SB_RETURN_IF_ERROR(sampler.Restore(position.sampler));
  BatchSource source(dataset, std::move(sampler), position.step,
                     std::max<uint64_t>(1, options.plan.lookahead_steps()));
  for (const CarriedSequence& carried : position.carried) {
    if (carried.place >= dataset->size() || carried.id >= dataset->size() ||
        !source.carried_.emplace(carried.place, Carried{carried.id, carried.home_step}).second) {
      return absl::InvalidArgumentError(
          absl::StrCat("the position carries sequence ", carried.id, " in the place of ",
                       carried.place, ", which the data set does not have or which is taken"));
    }
  }
  return source;
}

absl::StatusOr<v1::BatchSequence> BatchSource::Look(uint64_t id) {
  const auto known = looked_at_.find(id);
  if (known != looked_at_.end()) return known->second;
  v1::BatchSequence sequence;
  sequence.set_id(id);
  SB_ASSIGN_OR_RETURN(const int64_t tokens, dataset_->length(id));
  SB_ASSIGN_OR_RETURN(const int64_t supervised, dataset_->supervised_targets(id));
  sequence.set_tokens(static_cast<uint64_t>(tokens));
  sequence.set_supervised_tokens(static_cast<uint64_t>(supervised));
  looked_at_[id] = sequence;
  return sequence;
}

absl::Status BatchSource::AddSequences(const data::GlobalBatch& sampled, uint64_t step,
                                       google::protobuf::RepeatedPtrField<v1::BatchSequence>& out) {
  for (const uint64_t place : sampled.ids) {
    const auto carried = carried_.find(place);
    const bool moved = carried != carried_.end();
    SB_ASSIGN_OR_RETURN(v1::BatchSequence sequence, Look(moved ? carried->second.id : place));
    // One that came early, and is trained in this very step, was not deferred.
    if (moved && carried->second.home_step < step) {
      sequence.set_deferred_steps(static_cast<uint32_t>(step - carried->second.home_step));
    }
    *out.Add() = std::move(sequence);
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::GlobalBatch> BatchSource::Make(uint64_t ahead) {
  const data::GlobalBatch sampled = sampler_.Peek(ahead);
  v1::GlobalBatch batch;
  batch.set_step(step_ + ahead);
  batch.set_epoch(sampled.position.epoch);
  SB_RETURN_IF_ERROR(AddSequences(sampled, batch.step(), *batch.mutable_sequences()));
  for (uint64_t more = 1; more < lookahead_steps_; ++more) {
    const data::GlobalBatch later = sampler_.Peek(ahead + more);
    // Every epoch is trained whole before the next begins.
    if (later.position.epoch != sampled.position.epoch) break;
    v1::FollowingBatch& following = *batch.add_following();
    following.set_step(batch.step() + more);
    SB_RETURN_IF_ERROR(AddSequences(later, following.step(), *following.mutable_sequences()));
  }
  batch.set_digest(BatchDigest(batch));
  return batch;
}

absl::StatusOr<v1::GlobalBatch> BatchSource::Current() { return Make(0); }

absl::StatusOr<v1::GlobalBatch> BatchSource::Following() { return Make(1); }

absl::Status BatchSource::Exchange(
    const google::protobuf::RepeatedPtrField<v1::SequenceExchange>& exchanges) {
  // Places by the sequence that is trained there.
  const auto places = [&](uint64_t ahead) {
    std::map<uint64_t, uint64_t> by_id;
    for (const uint64_t place : sampler_.Peek(ahead).ids) {
      const auto carried = carried_.find(place);
      by_id[carried == carried_.end() ? place : carried->second.id] = place;
    }
    return by_id;
  };
  const auto home_of = [&](uint64_t place, uint64_t step) {
    const auto carried = carried_.find(place);
    return carried == carried_.end() ? step : carried->second.home_step;
  };
  if (exchanges.empty()) return absl::OkStatus();
  const std::map<uint64_t, uint64_t> mine = places(0);
  for (const v1::SequenceExchange& exchange : exchanges) {
    const std::map<uint64_t, uint64_t> theirs = places(exchange.later_step() - step_);
    const auto from = mine.find(exchange.later_id());
    const auto to = theirs.find(exchange.now_id());
    if (from == mine.end() || to == theirs.end()) {
      return absl::InternalError(absl::StrCat("sequences ", exchange.later_id(), " and ",
                                              exchange.now_id(), " cannot change places at step ",
                                              step_));
    }
    const Carried later{exchange.later_id(), home_of(from->second, step_)};
    const Carried now{exchange.now_id(), home_of(to->second, exchange.later_step())};
    carried_[from->second] = now;
    carried_[to->second] = later;
  }
  return absl::OkStatus();
}

void BatchSource::Advance() {
  for (const uint64_t place : sampler_.Next().ids) {
    const auto carried = carried_.find(place);
    looked_at_.erase(carried == carried_.end() ? place : carried->second.id);
    if (carried != carried_.end()) carried_.erase(carried);
  }
  ++step_;
}

BatchPosition BatchSource::Position() const {
  BatchPosition position{.step = step_, .sampler = sampler_.position(), .carried = {}};
  for (const auto& [place, carried] : carried_) {
    position.carried.push_back({place, carried.id, carried.home_step});
  }
  return position;
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

namespace {

// What is trained once the plan's exchanges are done, by id.
absl::StatusOr<std::map<uint64_t, v1::BatchSequence>> TrainedBatch(const v1::Plan& plan,
                                                                   const v1::GlobalBatch& batch,
                                                                   uint64_t lookahead_steps) {
  std::map<uint64_t, v1::BatchSequence> trained;
  for (const v1::BatchSequence& sequence : batch.sequences()) trained[sequence.id()] = sequence;
  if (plan.exchanges().empty()) return trained;
  std::map<uint64_t, v1::BatchSequence> own = trained;
  std::map<std::pair<uint64_t, uint64_t>, v1::BatchSequence> following;
  for (const v1::FollowingBatch& later : batch.following()) {
    for (const v1::BatchSequence& sequence : later.sequences()) {
      following[{later.step(), sequence.id()}] = sequence;
    }
  }
  for (const v1::SequenceExchange& exchange : plan.exchanges()) {
    const auto mine = own.find(exchange.later_id());
    const auto theirs = following.find({exchange.later_step(), exchange.now_id()});
    if (mine == own.end() || theirs == following.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat("it exchanges sequence ", exchange.later_id(), " for sequence ",
                       exchange.now_id(), " of step ", exchange.later_step(),
                       ", and one of them is not there; is lookahead_steps (", lookahead_steps,
                       ") what the plan was made with?"));
    }
    const uint64_t deferred =
        mine->second.deferred_steps() + (exchange.later_step() - batch.step());
    if (deferred >= lookahead_steps) {
      return absl::InvalidArgumentError(absl::StrCat(
          "it defers sequence ", exchange.later_id(), " by ", deferred, " steps, look-ahead over ",
          lookahead_steps, " steps allows ", lookahead_steps - 1));
    }
    trained.erase(exchange.later_id());
    trained[exchange.now_id()] = theirs->second;
    own.erase(mine);
    following.erase(theirs);
  }
  return trained;
}

}  // namespace

absl::Status CheckPlanForRank(const v1::Plan& plan, uint32_t rank, const v1::GlobalBatch& batch,
                              uint64_t lookahead_steps) {
  const auto trained = TrainedBatch(plan, batch, lookahead_steps);
  if (!trained.ok()) return trained.status();
  std::map<uint64_t, uint64_t> tokens;
  uint64_t supervised = 0;
  for (const auto& [id, sequence] : *trained) {
    tokens[id] = sequence.tokens();
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
