#include "worker/train/job_run.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/local_communicator.h"
#include "worker/comm/nccl_api.h"
#include "worker/comm/nccl_communicator.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/peft_adapter.h"
#include "worker/train/file_util.h"

namespace sparsebalance {
namespace {

// Plans come from one place, telemetry goes to another: a replay under a coordinator's eyes.
class ReplayWithReports : public PlanSource {
 public:
  ReplayWithReports(PlanReplay* replay, PlanSource* session) : replay_(replay), session_(session) {}
  void Request(const v1::GlobalBatch&) override {}
  std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) override {
    return replay_->Wait(step, deadline);
  }
  void Report(v1::RankTelemetry telemetry) override {
    if (session_ != nullptr) session_->Report(std::move(telemetry));
  }
  void ReportConsumed(v1::ConsumedBatch consumed) override {
    if (session_ != nullptr) session_->ReportConsumed(std::move(consumed));
  }
  absl::Status Health() override {
    if (absl::Status status = replay_->Health(); !status.ok()) return status;
    return session_ != nullptr ? session_->Health() : absl::OkStatus();
  }

 private:
  PlanReplay* replay_;
  PlanSource* session_;
};

}  // namespace

v1::JobKey JobOf(const WorkerNodeOptions& options, const std::string& policy) {
  v1::JobKey job = options.train.job;
  if (options.policies.size() > 1) job.set_name(absl::StrCat(job.name(), "-", policy));
  return job;
}

JobRun::JobRun(const WorkerNodeOptions& options, const std::string& policy,
               const data::IndexedDataset* dataset)
    : options_(options), policy_(policy), dataset_(dataset), train_(options.train) {
  train_.plan.set_policy(policy);
  if (options.policies.size() > 1) {
    train_.job = JobOf(options, policy);
    if (!train_.checkpoint_dir.empty()) train_.checkpoint_dir += "/" + policy;
    if (!train_.export_dir.empty()) train_.export_dir += "/" + policy;
  }
  trainers_.resize(options.ranks.size());
  comms_.resize(options.ranks.size());
}

absl::StatusOr<std::unique_ptr<JobRun>> JobRun::Create(const WorkerNodeOptions& options,
                                                       const std::string& policy,
                                                       const data::IndexedDataset* dataset,
                                                       const StopSignal* stop) {
  std::unique_ptr<JobRun> run(new JobRun(options, policy, dataset));
  TrainOptions& train = run->train_;
  SB_RETURN_IF_ERROR(ValidateTrainOptions(train, *dataset));

  if (train.resume && !train.checkpoint_dir.empty()) {
    const CheckpointStore store(train.checkpoint_dir, train.checkpoints_kept, options.log);
    SB_ASSIGN_OR_RETURN(run->checkpoint_, store.LoadNewest());
    options.log(
        run->checkpoint_.has_value()
            ? absl::StrCat("job ", train.job.name(), ": resuming from ", run->checkpoint_->folder)
            : absl::StrCat("job ", train.job.name(), ": no checkpoint in ", train.checkpoint_dir,
                           ", starting anew"));
  }
  // What cannot work is said before the run, not after it.
  const bool adapters = train.model.lora.enabled();
  if (!train.init_from.empty() && (adapters || !run->checkpoint_.has_value())) {
    SB_ASSIGN_OR_RETURN(const model_io::HfWeights weights,
                        model_io::HfWeights::Open(train.init_from));
    SB_RETURN_IF_ERROR(weights.CheckFits(train.model, options.log));
  }
  if (!train.export_dir.empty()) {
    if (absl::Status status = adapters
                                  ? model_io::CheckAdapterFolder(train.export_dir)
                                  : model_io::CheckSaveFolder(train.export_dir, train.init_from);
        !status.ok()) {
      return absl::Status(status.code(), absl::StrCat("--export: ", status.message()));
    }
  }
  if (!options.output_dir.empty()) {
    SB_ASSIGN_OR_RETURN(run->recorder_,
                        PlanRecorder::Open(absl::StrCat(options.output_dir, "/plans/", policy, "/",
                                                        options.session.node_id, ".jsonl"),
                                           /*append=*/run->checkpoint_.has_value()));
  }
  if (!options.replay_plans.empty()) {
    SB_ASSIGN_OR_RETURN(run->replay_, PlanReplay::Load(options.replay_plans));
  }
  if (!options.coordinator.empty()) {
    NodeSessionOptions session = options.session;
    session.log = options.log;
    SB_ASSIGN_OR_RETURN(run->session_,
                        NodeSession::Register(session, JobSpecFromOptions(train, *dataset), stop));
    run->plans_ = run->session_.get();
  } else {
    auto group = CreateLocalGroup(static_cast<int>(options.ranks.size()),
                                  {.timeout = train.collective_timeout});
    if (!group.ok()) return group.status();
    absl::MutexLock lock(&run->mutex_);
    run->comms_ = *std::move(group);
  }
  if (run->replay_ != nullptr) {
    run->wrapped_ = std::make_unique<ReplayWithReports>(run->replay_.get(), run->session_.get());
    run->plans_ = run->wrapped_.get();
  }
  if (options.wrap_plan_source) {
    run->wrapped_ = options.wrap_plan_source(run->plans_);
    run->plans_ = run->wrapped_.get();
  }
  JobRun* self = run.get();
  run->rendezvous_ = std::make_unique<NodeRendezvous>(
      options.ranks.size(),
      [self](const std::vector<std::string>& blobs) { return self->JoinAll(blobs); });
  return run;
}

absl::StatusOr<std::vector<std::string>> JobRun::JoinAll(const std::vector<std::string>& blobs) {
  std::vector<v1::RankInfo> ranks;
  for (size_t i = 0; i < options_.ranks.size(); ++i) {
    v1::RankInfo& rank = ranks.emplace_back();
    rank.set_rank(options_.ranks[i]);
    rank.set_rendezvous(blobs[i]);
    rank.set_device_name(DeviceClass(train_));
  }
  const uint64_t next_step = checkpoint_.has_value() ? checkpoint_->position.next_step : 0;
  SB_ASSIGN_OR_RETURN(const v1::JoinJobResponse joined,
                      session_->Join(std::move(ranks), next_step));
  std::vector<std::string> all;
  for (const v1::Member& member : joined.members()) all.push_back(member.rendezvous());
  return all;
}

absl::StatusOr<std::unique_ptr<Communicator>> JobRun::ConnectRank(size_t index, int rank,
                                                                  int size) {
  const RendezvousExchange exchange = [this, index](std::string own_blob) {
    return rendezvous_->Meet(index, std::move(own_blob));
  };
  if (train_.communicator == "nccl" ||
      (train_.communicator == "auto" && train_.backend == "cuda")) {
    auto api = SystemNcclApi();
    if (api.ok()) {
      return NcclCommunicator::Connect(
          *std::move(api), rank, size,
          {.device = static_cast<int>(index), .timeout = train_.collective_timeout}, exchange);
    }
    if (train_.communicator == "nccl") return api.status();
    if (index == 0) {
      options_.log(absl::StrCat("gradients of the GPUs are summed by Gloo, through the host: ",
                                api.status().message()));
    }
  }
  return GlooCommunicator::Connect(rank, size,
                                   {.bind_host = options_.bind_host,
                                    .interface = options_.interface,
                                    .timeout = train_.collective_timeout},
                                   exchange);
}

absl::Status JobRun::Connect(size_t index) {
  if (session_ == nullptr) return absl::OkStatus();  // connected at creation
  const int size = static_cast<int>(train_.parallelism.data());
  const int rank = static_cast<int>(options_.ranks[index]);
  if (size == 1) {
    if (auto joined = rendezvous_->Meet(index, ""); !joined.ok()) return joined.status();
  }
  SB_ASSIGN_OR_RETURN(std::unique_ptr<Communicator> comm, ConnectRank(index, rank, size));
  absl::MutexLock lock(&mutex_);
  if (!aborted_.ok()) return aborted_;
  comms_[index] = std::move(comm);
  return absl::OkStatus();
}

absl::Status JobRun::StartRank(size_t index) {
  SB_RETURN_IF_ERROR(Connect(index));
  TrainerDependencies dependencies;
  {
    absl::MutexLock lock(&mutex_);
    dependencies.comm = comms_[index].get();
  }
  dependencies.plans = plans_;
  dependencies.plans_required = replay_ != nullptr;
  dependencies.dataset = dataset_;
  dependencies.recorder = recorder_.get();
  dependencies.local_ranks = options_.ranks.size();
  dependencies.device = static_cast<int>(index);
  dependencies.log = [this](const std::string& line) {
    options_.log(absl::StrCat("job ", train_.job.name(), ": ", line));
  };
  SB_ASSIGN_OR_RETURN(trainers_[index],
                      Trainer::Create(train_, std::move(dependencies),
                                      checkpoint_.has_value() ? &*checkpoint_ : nullptr));
  if (session_ != nullptr && trainers_[index]->coverage_notes().size() > 0) {
    const absl::Status status = session_->PutCoverage(trainers_[index]->coverage_notes().Entries());
    if (!status.ok()) {
      options_.log(absl::StrCat("the coordinator did not take the checkpoint's coverage: ",
                                status.message()));
    }
  }
  return trainers_[index]->Prefetch();
}

void JobRun::Abort(const absl::Status& why) {
  rendezvous_->Fail(why);
  absl::MutexLock lock(&mutex_);
  if (aborted_.ok()) aborted_ = why;
  for (const std::unique_ptr<Communicator>& comm : comms_) {
    if (comm != nullptr) comm->Abort();
  }
}

absl::Status JobRun::WriteCoverage() const {
  if (options_.output_dir.empty()) return absl::OkStatus();
  CoverageNotes all;
  for (const std::unique_ptr<Trainer>& trainer : trainers_) {
    if (trainer != nullptr) all.PutAll(trainer->coverage_notes().Entries());
  }
  const std::string folder = absl::StrCat(options_.output_dir, "/coverage/", policy_);
  std::error_code error;
  std::filesystem::create_directories(folder, error);  // writing says what is wrong
  return WriteFile(absl::StrCat(folder, "/", options_.session.node_id, ".jsonl"), all.JsonLines());
}

absl::Status JobRun::Export(size_t index) {
  if (train_.export_dir.empty() || options_.ranks[index] != 0) return absl::OkStatus();
  const absl::Status status =
      trainers_[index]->compute().Export(train_.export_dir, train_.export_type);
  if (!status.ok()) {
    // One code, whatever the system said: a full disk is to be mended like a wrong flag.
    return absl::InvalidArgumentError(
        absl::StrCat("all steps are done, but the model was not exported to ", train_.export_dir,
                     " (--export): ", status.message()));
  }
  options_.log(absl::StrCat("job ", train_.job.name(), ": the ",
                            train_.model.lora.enabled() ? "adapters are" : "model is", " in ",
                            train_.export_dir));
  return absl::OkStatus();
}

void JobRun::Leave(const std::string& reason, bool finished) {
  if (session_ == nullptr) return;
  const absl::Status status = session_->Leave(reason, finished);
  if (!status.ok()) {
    options_.log(absl::StrCat("job ", train_.job.name(),
                              ": could not tell the coordinator about leaving (",
                              absl::StatusCodeToString(status.code()), ": ", status.message(),
                              "); its lease will run out"));
  }
}

}  // namespace sparsebalance
