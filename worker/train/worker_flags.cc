#include "worker/train/worker_flags.h"

#include <unistd.h>

#include <array>
#include <numeric>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/settings_text.h"
#include "kernels/status_macros.h"
#include "worker/client/channel_flags.h"
#include "worker/client/incarnation.h"

namespace sparsebalance {
namespace {

std::string HostName() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "node";
  return name.data();
}

// Proto fields are set by setters, flags write to variables: these two join them.
template <typename Setter>
CLI::Option* AddSetter(CLI::App& app, const std::string& name, const std::string& help,
                       Setter setter) {
  return app.add_option_function<uint32_t>(name, setter, help);
}

void AddJobFlags(CLI::App& app, WorkerFlags& flags) {
  TrainOptions& train = flags.node.train;
  auto* job = app.add_option_group("Job");
  job->add_option_function<std::string>(
         "--namespace", [&train](const std::string& v) { train.job.set_namespace_(v); },
         "namespace of the job")
      ->default_str("default");
  job->add_option_function<std::string>(
         "--job", [&train](const std::string& v) { train.job.set_name(v); },
         "name of the job, the same on every node")
      ->default_str("job");
  job->add_option("--coordinator", flags.node.coordinator,
                  "address of the coordinator, or of each of its replicas with commas between; "
                  "empty: standalone, all ranks in this process")
      ->capture_default_str();
  AddChannelFlags(*job, flags.node.security, flags.node.insecure);
  job->add_option(
      "--node-id", flags.node.session.node_id,
      "name of this node, unique in the job and kept by the process that takes its place; "
      "default: node-N with --node-rank N, else the host's name");
  auto* ranks = job->add_option("--ranks", flags.node.ranks,
                                "global ranks of this node, for example 0,1; default: those of "
                                "--node-rank, else 0, or all if standalone")
                    ->delimiter(',');
  auto* node_rank =
      job->add_option(
             "--node-rank", flags.node_rank,
             "number of this node, from 0: it holds the ranks from N * --ranks-per-node on")
          ->excludes(ranks);
  job->add_option("--ranks-per-node", flags.ranks_per_node, "ranks of every node, with --node-rank")
      ->capture_default_str()
      ->check(CLI::PositiveNumber)
      ->needs(node_rank);
  job->add_option("--restart-attempt", flags.node.session.restart_attempt,
                  "how often the whole job was started again, as a scheduler counts it: processes "
                  "of an earlier attempt cannot take their ranks back, whatever their clocks say")
      ->capture_default_str()
      ->check(CLI::Range(0u, kMaxRestartAttempt));
  AddSetter(*job, "--data-parallel", "number of ranks that share a global batch",
            [&train](uint32_t v) { train.parallelism.set_data(v); })
      ->default_str("1");
  AddSetter(*job, "--pipeline-parallel", "pipeline stages", [&train](uint32_t v) {
    train.parallelism.set_pipeline(v);
  })->default_str("1");
  AddSetter(*job, "--sequence-parallel", "ranks that share a sequence", [&train](uint32_t v) {
    train.parallelism.set_sequence(v);
  })->default_str("1");
  job->add_option("--bind-host", flags.node.bind_host,
                  "address on which the other ranks reach this node")
      ->capture_default_str();
  job->add_option("--interface", flags.node.interface,
                  "network interface instead of --bind-host, for example eth0");
  job->add_option("--max-rejoins", flags.node.max_rejoins,
                  "times in a row to join again from the newest checkpoint after a peer was lost; "
                  "0: end with code 4")
      ->capture_default_str()
      ->check(CLI::NonNegativeNumber);
  job->add_option("--start-timeout-s", flags.start_timeout_s,
                  "how long to wait for the coordinator and the other nodes; 0: for ever")
      ->capture_default_str();
}

void AddPlanFlags(CLI::App& app, WorkerFlags& flags) {
  TrainOptions& train = flags.node.train;
  v1::PlanSettings& plan = train.plan;
  auto* group = app.add_option_group("Plan");
  group
      ->add_option("--policy", flags.node.policies,
                   absl::StrCat("one or more of ", absl::StrJoin(planner::PolicyNames(), ", "),
                                "; several train side by side and are compared"))
      ->delimiter(',')
      ->capture_default_str();
  group
      ->add_option("--block-steps", flags.node.block_steps,
                   "steps of one policy before the next one's turn")
      ->capture_default_str();
  group->add_option("--global-batch-size", train.global_batch_size, "sequences a step")
      ->capture_default_str();
  group
      ->add_option_function<uint64_t>(
          "--max-tokens-per-micro-batch",
          [&plan](uint64_t v) { plan.set_max_tokens_per_micro_batch(v); },
          "cap of a micro-batch, padding included")
      ->default_str("8192");
  AddSetter(*group, "--padding-multiple", "a sequence counts as a multiple of so many tokens",
            [&plan](uint32_t v) { plan.set_padding_multiple(v); })
      ->default_str("1");
  AddSetter(*group, "--micro-batch-size",
            "sequences in a micro-batch of the reference policies; 0: as many as fit",
            [&plan](uint32_t v) { plan.set_micro_batch_size(v); })
      ->default_str("0");
  AddSetter(*group, "--micro-batches-per-rank", "exactly so many on every rank; 0: free",
            [&plan](uint32_t v) { plan.set_micro_batches_per_rank(v); })
      ->default_str("0");
  group->add_flag_function(
      "--equal-micro-batch-count", [&plan](int64_t) { plan.set_equal_micro_batch_count(true); },
      "the same number of micro-batches on every rank");
  flags.block_tokens =
      AddSetter(*group, "--block-tokens", "tokens in a block of attention", [&plan](uint32_t v) {
        plan.set_block_tokens(v);
      })->default_str("64");
  AddSetter(*group, "--base-budget", "blocks a query attends to, its own included",
            [&plan](uint32_t v) { plan.set_base_budget_blocks(v); })
      ->default_str("8");
  AddSetter(*group, "--min-budget", "least budget in blocks", [&plan](uint32_t v) {
    plan.set_min_budget_blocks(v);
  })->default_str("1");
  AddSetter(*group, "--max-budget", "largest budget in blocks; 0: no bound", [&plan](uint32_t v) {
    plan.set_max_budget_blocks(v);
  })->default_str("0");
  group
      ->add_option_function<double>(
          "--coverage-guard", [&plan](double v) { plan.set_coverage_guard(v); },
          "share of a sequence's coverage that its budget may give up, 0 to 1")
      ->default_str("0.1");
  group
      ->add_option("--coverage-floor", flags.coverage_floor,
                   "baseline, guard, fixed, or a mean coverage between 0 and 1")
      ->capture_default_str();
  group->add_option("--paper-anchor", flags.paper_anchor, "mean, min or max; of policy `paper`")
      ->capture_default_str();
  group
      ->add_option("--search-effort", flags.search_effort,
                   "fast, normal (a few ms a plan) or high (up to 200 ms); of `sparsebalance`")
      ->capture_default_str();
  group->add_flag_callback(
      "--layer-budgets", [&plan] { plan.set_layer_budgets(true); },
      "budgets by layer, dealt by what each layer's coverage gains");
  group
      ->add_option_function<uint32_t>(
          "--lookahead-steps", [&plan](uint32_t v) { plan.set_lookahead_steps(v); },
          "global batches among which `sparsebalance` may exchange sequences; 1: none. No sequence "
          "is trained so many steps from its place")
      ->default_str("1");
  group
      ->add_option("--plan-deadline-ms", flags.plan_deadline_ms,
                   "how long a step waits for its plan before the fallback")
      ->capture_default_str();
  group
      ->add_option("--replay-plans", flags.node.replay_plans,
                   "train by recorded plans: files or folders")
      ->delimiter(',');
}

void AddModelFlags(CLI::App& app, WorkerFlags& flags) {
  TrainOptions& train = flags.node.train;
  auto* group = app.add_option_group("Model (Qwen2 family)");
  flags.model_flags.Add(*group, train.model);
  group
      ->add_option("--initializer-range", train.model.initializer_range,
                   "standard deviation of matrices that are drawn by --seed")
      ->capture_default_str();
  group->add_option("--init-from", train.init_from,
                    "folder of a Hugging Face model: shape and first parameters come from it; a "
                    "checkpoint that is resumed wins");
}

void AddTrainingFlags(CLI::App& app, WorkerFlags& flags) {
  TrainOptions& train = flags.node.train;
  OptimizerOptions& optimizer = train.optimizer;
  auto* group = app.add_option_group("Training");
  group
      ->add_option("--dataset", train.dataset_prefix,
                   "path of a packed data set without .bin or .idx (sparsebalance-data pack)")
      ->required();
  group->add_option("--steps", train.steps, "steps of the whole run")->capture_default_str();
  group->add_option("--seed", train.seed, "of the parameters and of the order of the data")
      ->capture_default_str();
  group->add_option("--learning-rate", optimizer.learning_rate, "peak")->capture_default_str();
  group->add_option("--min-learning-rate", optimizer.min_learning_rate, "end of the cosine")
      ->capture_default_str();
  group->add_option("--warmup-steps", optimizer.warmup_steps, "linear, to the peak")
      ->capture_default_str();
  group->add_option("--beta1", optimizer.beta1, "AdamW")->capture_default_str();
  group->add_option("--beta2", optimizer.beta2, "AdamW")->capture_default_str();
  group->add_option("--weight-decay", optimizer.weight_decay, "of matrices")->capture_default_str();
  group->add_option("--gradient-clip", optimizer.gradient_clip, "global norm; 0: off")
      ->capture_default_str();
  group
      ->add_option("--max-skipped-in-a-row", train.max_skipped_in_a_row,
                   "steps with a gradient that is not finite before the run stops")
      ->capture_default_str();
  group->add_flag("--activation-checkpointing", train.model.activation_checkpointing,
                  "keep less of the forward pass and compute it again in the backward pass");
  group
      ->add_option("--audit-every", train.audit_every,
                   "steps between audits of coverage against true attention mass; 0: none")
      ->capture_default_str();
  group->add_option("--checkpoint-dir", train.checkpoint_dir,
                    "folder shared by all nodes; empty: no checkpoints");
  group
      ->add_option("--checkpoint-every", train.checkpoint_every,
                   "steps; 0: when stopped and at the end")
      ->capture_default_str();
  group->add_option("--checkpoints-kept", train.checkpoints_kept, "older ones are removed")
      ->capture_default_str();
  group->add_flag("--resume", train.resume, "go on from the newest checkpoint, if there is one");
  group->add_option(
      "--export", train.export_dir,
      "folder that gets the trained model in Hugging Face form at the end of the run, or "
      "the adapters in PEFT's");
  group
      ->add_option("--export-dtype", flags.export_dtype,
                   "fp32, bf16 or fp16; training is in fp32, so only fp32 loses nothing")
      ->capture_default_str();
}

void AddMachineFlags(CLI::App& app, WorkerFlags& flags) {
  TrainOptions& train = flags.node.train;
  auto* group = app.add_option_group("Machine and output");
  group
      ->add_option("--backend", train.backend,
                   "auto, cpu or cuda; auto: GPUs where this build and this machine have them")
      ->capture_default_str();
  group
      ->add_option("--precision", train.precision,
                   "of activations: auto, fp32 or bf16; auto: bf16 on GPUs, fp32 on CPUs. "
                   "Weights, gradients and the optimizer are kept in fp32")
      ->capture_default_str();
  group
      ->add_option("--communicator", train.communicator,
                   "auto, nccl or gloo; auto: NCCL between GPUs where this build has it")
      ->check(CLI::IsMember({"auto", "nccl", "gloo"}))
      ->capture_default_str();
  group->add_option("--threads-per-rank", train.threads_per_rank, "CPU threads of each rank")
      ->capture_default_str();
  group
      ->add_option_function<uint32_t>(
          "--memory-limit-mib",
          [&train](uint32_t mib) { train.memory_limit_bytes = int64_t{mib} << 20; },
          "memory of a rank; lowers the tokens of a micro-batch to what it holds; 0: no limit")
      ->default_str("0");
  group
      ->add_option("--collective-timeout-s", flags.collective_timeout_s,
                   "how long a rank waits for its peers before it holds one for lost")
      ->capture_default_str();
  group->add_flag("--profile-at-start,!--no-profile-at-start", flags.node.profile_at_start,
                  "measure a latency profile where the coordinator has none (on by default)");
  group
      ->add_option("--output", flags.node.output_dir,
                   "folder for plans/, coverage/, steps.jsonl and summary.json; empty: nothing is "
                   "written")
      ->capture_default_str();
  group->add_option("--metrics-listen", flags.node.metrics_listen,
                    "host:port of this worker's /metrics; empty: none");
  group
      ->add_option(
          "--peak-tflops", flags.node.train.peak_tflops,
          "what a rank's device can do at most, for the MFU among the metrics; 0: as known "
          "of the GPU")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  group->add_option("--log-format", flags.log_format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  group->add_option("--log-level", flags.log_level, "debug, info, warn or error")
      ->check(CLI::IsMember({"debug", "info", "warn", "error"}))
      ->capture_default_str();
  group->add_flag("--quiet", flags.quiet, "no progress and no table on standard output");
}

// --global-batch-size reads SPARSEBALANCE_GLOBAL_BATCH_SIZE, and so on.
void AddEnvironmentNames(CLI::App& app) {
  for (CLI::App* group : app.get_subcommands([](CLI::App*) { return true; })) {
    for (CLI::Option* option : group->get_options()) {
      if (option->get_lnames().empty()) continue;
      std::string name = "SPARSEBALANCE_";
      for (const char c : option->get_lnames().front()) {
        name.push_back(c == '-' ? '_' : absl::ascii_toupper(static_cast<unsigned char>(c)));
      }
      option->envname(name);
    }
  }
}

}  // namespace

void AddWorkerFlags(CLI::App& app, WorkerFlags& flags) {
  TrainOptions& train = flags.node.train;
  train.job.set_namespace_("default");
  train.job.set_name("job");
  train.model.head_dim = 0;
  train.model.vocab_size = 0;
  train.parallelism.set_data(1);
  train.parallelism.set_pipeline(1);
  train.parallelism.set_sequence(1);
  train.plan.set_block_tokens(64);
  train.plan.set_base_budget_blocks(8);
  train.plan.set_min_budget_blocks(1);
  train.plan.set_max_tokens_per_micro_batch(8192);
  train.plan.set_padding_multiple(1);
  train.plan.set_coverage_guard(0.1);
  app.set_config("--config", "", "TOML file with any of these flags");
  app.allow_config_extras(CLI::config_extras_mode::error);
  AddJobFlags(app, flags);
  AddPlanFlags(app, flags);
  AddModelFlags(app, flags);
  AddTrainingFlags(app, flags);
  flags.fine_tuning_flags.Add(*app.add_option_group("Fine-tuning"), train);
  AddMachineFlags(app, flags);
  app.add_flag("--check-config", flags.check_config,
               "Check flags, environment and files but the data set, say what is wrong with them, "
               "and end");
  AddEnvironmentNames(app);
}

namespace {

absl::Status TakeRanksOfNode(WorkerFlags& flags) {
  const uint64_t world = flags.node.train.parallelism.data();
  const uint64_t first = uint64_t{*flags.node_rank} * flags.ranks_per_node;
  if (first + flags.ranks_per_node > world) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--node-rank ", *flags.node_rank, " with --ranks-per-node ", flags.ranks_per_node,
        " means ranks ", first, " to ", first + flags.ranks_per_node - 1, ", and the job has 0 to ",
        world - 1, " (--data-parallel ", world, "); nodes are numbered from 0"));
  }
  flags.node.ranks.resize(flags.ranks_per_node);
  std::iota(flags.node.ranks.begin(), flags.node.ranks.end(), static_cast<uint32_t>(first));
  return absl::OkStatus();
}

}  // namespace

absl::Status FinishWorkerFlags(WorkerFlags& flags) {
  WorkerNodeOptions& node = flags.node;
  TrainOptions& train = node.train;
  for (const absl::Status& status :
       {planner::Named("--coverage-floor",
                       planner::ParseCoverageFloor(flags.coverage_floor,
                                                   *train.plan.mutable_coverage_floor())),
        planner::Named("--paper-anchor", planner::ParsePaperAnchor(flags.paper_anchor, train.plan)),
        planner::Named("--search-effort",
                       planner::ParseSearchEffort(flags.search_effort, train.plan))}) {
    if (!status.ok()) return status;
  }
  if (!(flags.plan_deadline_ms >= 0)) {
    return absl::InvalidArgumentError("--plan-deadline-ms must not be negative");
  }
  train.plan_deadline = absl::Milliseconds(flags.plan_deadline_ms);
  if (!(flags.collective_timeout_s > 0)) {
    return absl::InvalidArgumentError("--collective-timeout-s must be above 0");
  }
  train.collective_timeout = absl::Seconds(flags.collective_timeout_s);
  if (flags.start_timeout_s > 0) {
    node.session.start_timeout = absl::Seconds(flags.start_timeout_s);
  }
  train.plan.set_data_parallel_size(train.parallelism.data());
  train.plan.set_pipeline_parallel_size(train.parallelism.pipeline());
  const auto export_type = model_io::ElementTypeFromFlag(flags.export_dtype);
  if (!export_type.ok()) return planner::Named("--export-dtype", export_type.status());
  train.export_type = *export_type;
  if (!train.init_from.empty()) {
    SB_RETURN_IF_ERROR(flags.model_flags.TakeFrom(train.init_from, train.model));
    // An export of ours states its block size; the flag may choose another.
    if (flags.block_tokens->count() == 0) {
      train.plan.set_block_tokens(static_cast<uint32_t>(train.model.block_tokens));
    }
  }
  SB_RETURN_IF_ERROR(flags.fine_tuning_flags.Finish(train));
  if (train.model.head_dim == 0 && train.model.num_heads > 0) {
    train.model.head_dim = train.model.hidden_size / train.model.num_heads;
  }
  train.model.block_tokens = static_cast<int>(train.plan.block_tokens());
  node.session.address = node.coordinator;
  if (node.session.node_id.empty()) {
    node.session.node_id =
        flags.node_rank.has_value() ? absl::StrCat("node-", *flags.node_rank) : HostName();
  }
  if (flags.node_rank.has_value()) SB_RETURN_IF_ERROR(TakeRanksOfNode(flags));
  if (node.ranks.empty()) {
    node.ranks.resize(node.coordinator.empty() ? train.parallelism.data() : 1);
    std::iota(node.ranks.begin(), node.ranks.end(), 0u);
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
