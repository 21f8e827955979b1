#include "worker/train/trainer.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/planner/digest.h"
#include "coordinator/planner/planner.h"
#include "kernels/status_macros.h"
#include "worker/client/plan_agreement.h"
#include "worker/model/adamw.h"
#include "worker/train/file_util.h"

namespace sparsebalance {
namespace {

class Stopwatch {
 public:
  double Milliseconds() const {
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin_)
        .count();
  }

 private:
  std::chrono::steady_clock::time_point begin_ = std::chrono::steady_clock::now();
};

const v1::RankPlan* FindRank(const v1::Plan& plan, uint32_t rank) {
  for (const v1::RankPlan& candidate : plan.ranks()) {
    if (candidate.rank() == rank) return &candidate;
  }
  return nullptr;
}

// Ranks that begin with different parameters would train different models and never notice: only
// gradients are exchanged. Collective.
absl::Status CheckSameModel(RankCompute& compute, Communicator& comm) {
  SB_ASSIGN_OR_RETURN(const uint64_t fingerprint, compute.ModelFingerprint());
  // The greatest of x and of -x are opposite only where all are equal.
  const auto mine = static_cast<int64_t>(fingerprint >> 1);
  std::array<int64_t, 2> greatest = {mine, -mine};
  SB_RETURN_IF_ERROR(comm.AllReduceMaxInt64(greatest));
  if (greatest[0] == -greatest[1]) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "the ranks begin with different parameters: give all of them the same --seed and the same "
      "model in --init-from");
}

std::string LoraText(const model::LoraConfig& lora) {
  if (!lora.enabled()) return "all parameters";
  return absl::StrCat("adapters of rank ", lora.rank, ", alpha ", lora.alpha, ", on ",
                      model::ProjectionsText(lora.targets));
}

}  // namespace

Trainer::Trainer(const TrainOptions& options, TrainerDependencies dependencies,
                 std::unique_ptr<RankCompute> compute, BatchSource batches)
    : options_(options),
      dependencies_(std::move(dependencies)),
      rank_(static_cast<uint32_t>(dependencies_.comm->rank())),
      compute_(std::move(compute)),
      batches_(std::move(batches)) {
  if (const std::string_view bus_id = compute_->device_bus_id(); !bus_id.empty()) {
    gpu_ = GpuMonitor::Create(bus_id, dependencies_.log);
  }
  if (!options_.checkpoint_dir.empty()) {
    checkpoints_.emplace(options_.checkpoint_dir, options_.checkpoints_kept, dependencies_.log);
  }
}

absl::Status Trainer::Initialize(const TrainOptions& options, const data::IndexedDataset& dataset,
                                 const Checkpoint* checkpoint, RankCompute& compute) {
  const bool adapters = options.model.lora.enabled();
  if (checkpoint == nullptr) {
    if (!options.init_from.empty()) SB_RETURN_IF_ERROR(compute.InitFrom(options.init_from));
    if (!options.lora_init_from.empty()) {
      SB_RETURN_IF_ERROR(compute.InitAdaptersFrom(options.lora_init_from));
    }
    return absl::OkStatus();
  }
  const TrainPosition& position = checkpoint->position;
  const auto refuse = [&](const std::string& what, const std::string& there,
                          const std::string& here) {
    return absl::InvalidArgumentError(absl::StrCat("checkpoint ", checkpoint->folder,
                                                   " was made with another ", what, " (", there,
                                                   " there, ", here, " here)"));
  };
  if (position.dataset_fingerprint != dataset.fingerprint()) {
    return refuse("data set", absl::StrCat(absl::Hex(position.dataset_fingerprint)),
                  absl::StrCat(absl::Hex(dataset.fingerprint())));
  }
  if (position.model_class != ModelClass(options.model)) {
    return refuse("model", position.model_class, ModelClass(options.model));
  }
  if (position.model.has_value() && position.model->rope_theta != options.model.rope_theta) {
    return refuse("rope_theta", absl::StrCat(position.model->rope_theta),
                  absl::StrCat(options.model.rope_theta));
  }
  if (position.model.has_value() && position.model->rms_norm_eps != options.model.rms_norm_eps) {
    return refuse("rms_norm_eps", absl::StrCat(position.model->rms_norm_eps),
                  absl::StrCat(options.model.rms_norm_eps));
  }
  const std::string adapters_there =
      LoraText(position.model.has_value() ? position.model->lora : model::LoraConfig());
  if (adapters_there != LoraText(options.model.lora)) {
    return refuse("set of trained parameters", adapters_there, LoraText(options.model.lora));
  }
  if (position.seed != options.seed) {
    return refuse("seed", absl::StrCat(position.seed), absl::StrCat(options.seed));
  }
  if (adapters) {
    SB_RETURN_IF_ERROR(compute.InitFrom(options.init_from));
    SB_ASSIGN_OR_RETURN(const uint64_t fingerprint, compute.BaseFingerprint());
    if (fingerprint != position.base_fingerprint) {
      return absl::InvalidArgumentError(absl::StrCat(
          "the model in ", options.init_from, " (--init-from) is not the one that the adapters of ",
          checkpoint->folder, " were trained on, which was in ", position.base_model));
    }
  }
  return compute.Restore(checkpoint->model, checkpoint->optimizer, position.optimizer_steps);
}

absl::StatusOr<std::unique_ptr<Trainer>> Trainer::Create(const TrainOptions& options,
                                                         TrainerDependencies dependencies,
                                                         const Checkpoint* checkpoint) {
  SB_ASSIGN_OR_RETURN(std::unique_ptr<RankCompute> compute,
                      RankCompute::Create(options, dependencies.dataset, dependencies.device));
  SB_RETURN_IF_ERROR(compute->Connect(dependencies.comm));
  SB_RETURN_IF_ERROR(Initialize(options, *dependencies.dataset, checkpoint, *compute));
  TrainPosition position;
  if (checkpoint != nullptr) position = checkpoint->position;
  uint64_t base_fingerprint = 0;
  if (options.model.lora.enabled()) {
    SB_ASSIGN_OR_RETURN(base_fingerprint, compute->BaseFingerprint());
  }
  if (dependencies.comm->rank() == 0) {
    SB_ASSIGN_OR_RETURN(const std::string what, compute->DescribeTraining());
    dependencies.log(what);
  }
  SB_RETURN_IF_ERROR(CheckSameModel(*compute, *dependencies.comm));
  SB_ASSIGN_OR_RETURN(
      BatchSource batches,
      BatchSource::Create(options, dependencies.dataset,
                          {.step = position.next_step,
                           .sampler = {.epoch = position.epoch, .offset = position.offset},
                           .carried = position.carried}));
  std::unique_ptr<Trainer> trainer(
      new Trainer(options, std::move(dependencies), std::move(compute), std::move(batches)));
  trainer->base_fingerprint_ = base_fingerprint;
  if (checkpoint != nullptr) {
    trainer->skipped_steps_ = position.skipped_steps;
    const std::string mine = absl::StrCat("coverage-rank-", trainer->rank_, ".bin");
    for (const std::string& path : checkpoint->coverage_files) {
      if (!path.ends_with(mine)) continue;
      absl::StatusOr<std::vector<v1::SequenceCoverage>> entries = CoverageNotes::Load(path);
      if (entries.ok()) {
        trainer->notes_.PutAll(*entries);
      } else {
        trainer->dependencies_.log(absl::StrCat(entries.status().message(),
                                                "; training goes on without what it remembered"));
      }
    }
  }
  return trainer;
}

absl::Status Trainer::Prefetch() {
  if (dependencies_.plans == nullptr || batches_.step() >= options_.steps) return absl::OkStatus();
  SB_ASSIGN_OR_RETURN(const v1::GlobalBatch batch, batches_.Current());
  dependencies_.plans->Request(batch);
  return absl::OkStatus();
}

absl::StatusOr<Trainer::ChosenPlan> Trainer::ChoosePlan(const v1::GlobalBatch& batch,
                                                        bool stop_requested, RankStepStats& stats) {
  SB_ASSIGN_OR_RETURN(v1::Plan fallback,
                      planner::MakeFallbackPlan(FallbackRequest(options_.plan, batch)));
  fallback.set_fallback(v1::FALLBACK_REASON_NO_PLAN);

  std::optional<PlanOffer> offer;
  // If it comes to the fallback although this rank has a plan, it is for the others.
  v1::NoPlanReason reason = v1::NO_PLAN_REASON_RANKS_DIFFER;
  if (dependencies_.plans != nullptr) {
    SB_RETURN_IF_ERROR(dependencies_.plans->Health());
    const Stopwatch waiting;
    offer = dependencies_.plans->Wait(batch.step(), absl::Now() + options_.plan_deadline);
    stats.plan_wait_ms = waiting.Milliseconds();
    if (!offer.has_value()) {
      reason = dependencies_.plans->CoordinatorAway() ? v1::NO_PLAN_REASON_COORDINATOR_AWAY
                                                      : v1::NO_PLAN_REASON_LATE;
    }
    // A record that has no such step, or a member that was replaced, ends the run here.
    SB_RETURN_IF_ERROR(dependencies_.plans->Health());
  }
  if (offer.has_value()) {
    if (absl::Status status = CheckPlanForRank(*offer->plan, rank_, batch, LookaheadSteps());
        !status.ok()) {
      if (dependencies_.plans_required) {
        return absl::InvalidArgumentError(
            absl::StrCat("the recorded plan of step ", batch.step(),
                         " does not fit this job: ", status.message()));
      }
      dependencies_.log(
          absl::StrCat("plan of step ", batch.step(), " is not used: ", status.message()));
      offer.reset();
      reason = v1::NO_PLAN_REASON_UNFIT;
    }
  }

  PlanVote vote;
  vote.step = batch.step();
  vote.fallback_digest = planner::Digest(fallback);
  vote.stop_requested = stop_requested;
  if (offer.has_value()) {
    vote.has_plan = true;
    vote.leader_epoch = offer->leader_epoch;
    vote.generation = offer->generation;
    vote.plan_digest = offer->digest;
  }
  const Stopwatch agreeing;
  SB_ASSIGN_OR_RETURN(const PlanAgreement agreement, AgreeOnPlan(*dependencies_.comm, vote));
  stats.agreement_ms = agreeing.Milliseconds();

  ChosenPlan chosen;
  chosen.stop = agreement.stop;
  if (agreement.use_plan) {
    chosen.plan = offer->plan;
    chosen.digest = offer->digest;
    chosen.leader_epoch = offer->leader_epoch;
    chosen.generation = offer->generation;
    // In a replay: the recorded run used its fallback here.
    chosen.used_fallback = offer->plan->fallback() == v1::FALLBACK_REASON_NO_PLAN;
  } else {
    chosen.plan = std::make_shared<const v1::Plan>(std::move(fallback));
    chosen.digest = vote.fallback_digest;
    // Standalone, the `length` plan is what was asked for.
    chosen.used_fallback = dependencies_.plans != nullptr;
    if (chosen.used_fallback) chosen.no_plan_reason = reason;
    if (dependencies_.plans != nullptr && rank_ == 0 && !chosen.stop) {
      dependencies_.log(absl::StrCat("step ", batch.step(),
                                     " is trained by the fallback plan: ", agreement.reason));
    }
  }
  return chosen;
}

absl::Status Trainer::RecordPlan(const ChosenPlan& chosen, uint64_t step) {
  if (dependencies_.recorder == nullptr) return absl::OkStatus();
  v1::PlanRecord record;
  record.set_step(step);
  record.set_plan_digest(chosen.digest);
  record.set_used_fallback(chosen.used_fallback);
  record.set_leader_epoch(chosen.leader_epoch);
  record.set_generation(chosen.generation);
  *record.mutable_plan() = *chosen.plan;
  record.mutable_plan()->clear_ranks();
  *record.mutable_plan()->add_ranks() = *FindRank(*chosen.plan, rank_);
  return dependencies_.recorder->Add(record, dependencies_.local_ranks);
}

absl::Status Trainer::ReduceAndUpdate(RankStepStats& stats) {
  SB_RETURN_IF_ERROR(compute_->ReduceGradients(stats));
  SB_ASSIGN_OR_RETURN(const double norm, compute_->GradientNorm());
  record_.gradient_norm = norm;
  record_.skipped = !std::isfinite(norm);
  if (record_.skipped) return absl::OkStatus();

  const OptimizerOptions& optimizer = options_.optimizer;
  record_.learning_rate =
      model::LearningRate(ScheduleOf(options_), static_cast<int64_t>(compute_->optimizer_steps()));
  return compute_->Update(record_.learning_rate, model::ClipScale(norm, optimizer.gradient_clip));
}

absl::StatusOr<StepOutcome> Trainer::RunStep(bool stop_requested) {
  const Stopwatch whole;
  const uint64_t step = batches_.step();
  if (step >= options_.steps) return StepOutcome::kFinished;
  SB_ASSIGN_OR_RETURN(v1::GlobalBatch batch, batches_.Current());

  RankStepStats stats;
  record_ = StepRecord();
  record_.step = step;
  SB_ASSIGN_OR_RETURN(const ChosenPlan chosen, ChoosePlan(batch, stop_requested, stats));
  if (chosen.stop) return StepOutcome::kStopped;
  if (!chosen.plan->exchanges().empty()) {
    SB_RETURN_IF_ERROR(batches_.Exchange(chosen.plan->exchanges()));
    SB_ASSIGN_OR_RETURN(batch, batches_.Current());
  }
  if (dependencies_.plans != nullptr && step + 1 < options_.steps) {
    SB_ASSIGN_OR_RETURN(const v1::GlobalBatch next, batches_.Following());
    dependencies_.plans->Request(next);
  }
  SB_RETURN_IF_ERROR(RecordPlan(chosen, step));

  v1::RankTelemetry telemetry;
  telemetry.set_rank(rank_);
  telemetry.set_step(step);
  SB_RETURN_IF_ERROR(compute_->Run(*FindRank(*chosen.plan, rank_), step,
                                   chosen.plan->global_supervised_tokens(), Audits(step), telemetry,
                                   stats));
  SB_RETURN_IF_ERROR(ReduceAndUpdate(stats));
  stats.step_ms = whole.Milliseconds();
  stats.no_plan_reason = chosen.no_plan_reason;

  SB_ASSIGN_OR_RETURN(record_.ranks, GatherStats(*dependencies_.comm, stats));
  stats.idle_ms = record_.ranks[rank_].idle_ms;
  record_.policy = chosen.plan->policy();
  record_.used_fallback = chosen.used_fallback;
  record_.predicted_step_ms = chosen.used_fallback ? 0 : chosen.plan->predicted_step_ms();
  Report(batch, chosen, std::move(telemetry), stats);
  batches_.Advance();

  if (!record_.skipped) {
    skipped_in_a_row_ = 0;
  } else {
    skipped_steps_.push_back(step);
    std::vector<uint64_t> ids;
    for (const v1::BatchSequence& sequence : batch.sequences()) ids.push_back(sequence.id());
    dependencies_.log(absl::StrCat("step ", step,
                                   ": the gradient is not finite, no update is made; ",
                                   "sequences ", absl::StrJoin(ids, ", ")));
    if (++skipped_in_a_row_ >= options_.max_skipped_in_a_row) {
      return absl::OutOfRangeError(
          absl::StrCat("the gradient was not finite in ", skipped_in_a_row_,
                       " steps in a row, the last with sequences ", absl::StrJoin(ids, ", "),
                       "; lower the learning rate or look at the data"));
    }
  }
  if (checkpoints_.has_value() && options_.checkpoint_every > 0 &&
      batches_.step() % options_.checkpoint_every == 0) {
    if (absl::Status status = SaveCheckpoint(); !status.ok()) {
      // The checkpoints before this one are whole, so training is worth more than stopping.
      dependencies_.log(absl::StrCat("checkpoint of step ", batches_.step(),
                                     " was not written: ", status.message()));
      if (absl::IsInvalidArgument(status)) return status;
    }
  }
  return StepOutcome::kTrained;
}

void Trainer::Report(const v1::GlobalBatch& batch, const ChosenPlan& chosen,
                     v1::RankTelemetry telemetry, const RankStepStats& stats) {
  for (const v1::MicroBatchTelemetry& micro_batch : telemetry.micro_batches()) {
    for (const v1::SequenceTelemetry& sequence : micro_batch.sequences()) notes_.Put(sequence);
  }
  if (dependencies_.plans == nullptr) return;
  telemetry.set_step_ms(stats.step_ms);
  telemetry.set_compute_ms(stats.compute_ms);
  telemetry.set_idle_ms(stats.idle_ms);
  telemetry.set_plan_wait_ms(stats.plan_wait_ms);
  telemetry.set_agreement_ms(stats.agreement_ms);
  telemetry.set_peak_memory_bytes(static_cast<uint64_t>(stats.peak_memory_bytes));
  telemetry.set_used_fallback(chosen.used_fallback);
  telemetry.set_no_plan_reason(chosen.no_plan_reason);
  telemetry.set_guard_raises(static_cast<uint64_t>(stats.guard_raises));
  telemetry.set_plan_digest(chosen.digest);
  if (gpu_ != nullptr && gpu_->Poll().has_value()) {
    const GpuFacts& facts = *gpu_->Poll();
    v1::GpuTelemetry& gpu = *telemetry.mutable_gpu();
    gpu.set_name(facts.name);
    gpu.set_memory_used_bytes(facts.memory_used_bytes);
    gpu.set_memory_total_bytes(facts.memory_total_bytes);
    for (const std::string& reason : facts.throttle_reasons) gpu.add_throttle_reasons(reason);
  }
  dependencies_.plans->Report(std::move(telemetry));
  if (rank_ == 0) {
    v1::ConsumedBatch consumed;
    consumed.set_step(batch.step());
    consumed.set_epoch(batch.epoch());
    for (const v1::BatchSequence& sequence : batch.sequences()) {
      consumed.add_sequence_ids(sequence.id());
    }
    dependencies_.plans->ReportConsumed(std::move(consumed));
  }
}

TrainPosition Trainer::Position() const {
  TrainPosition position;
  BatchPosition batches = batches_.Position();
  position.next_step = batches.step;
  position.epoch = batches.sampler.epoch;
  position.offset = batches.sampler.offset;
  position.carried = std::move(batches.carried);
  position.optimizer_steps = compute_->optimizer_steps();
  position.seed = options_.seed;
  position.dataset_fingerprint = dependencies_.dataset->fingerprint();
  position.model_class = ModelClass(options_.model);
  position.model = options_.model;
  if (options_.model.lora.enabled()) {
    position.base_model = AbsolutePath(options_.init_from);
    position.base_fingerprint = base_fingerprint_;
  }
  position.skipped_steps = skipped_steps_;
  return position;
}

absl::Status Trainer::SaveCheckpoint() {
  if (!checkpoints_.has_value()) return absl::OkStatus();
  std::vector<TensorView> model;
  std::vector<TensorView> optimizer;
  if (rank_ == 0) {
    SB_ASSIGN_OR_RETURN(model, compute_->ModelTensors());
    SB_ASSIGN_OR_RETURN(optimizer, compute_->OptimizerTensors());
  }
  return checkpoints_->Save(*dependencies_.comm, Position(), model, optimizer, notes_);
}

}  // namespace sparsebalance
