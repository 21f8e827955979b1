// sbctl: what an operator asks a coordinator, and what can be found out without one.
//
// Exit codes: 0 answered, 1 there is no answer (coordinator unreachable, unknown job, bad input
// file), 2 a mistake on the command line.

#include <grpc/support/log.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/cli/completion.h"
#include "coordinator/cli/coordinator_session.h"
#include "coordinator/cli/online_verbs.h"
#include "coordinator/cli/plan_requests.h"
#include "coordinator/cli/simulate.h"
#include "coordinator/config/version.h"
#include "coordinator/planner/planner.h"
#include "worker/client/channel_credentials.h"
#include "worker/client/channel_flags.h"

namespace sparsebalance {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;

struct Flags {
  std::string coordinator = "127.0.0.1:7070";
  double timeout_seconds = 10;
  std::string requests;
  std::string policy;
  std::string effort;
  std::string shell;
  ChannelSecurity security;
  bool insecure = false;
  OnlineFlags online;
};

int Finish(const absl::Status& status) {
  if (status.ok()) return 0;
  std::cerr << "sbctl: " << status.message() << "\n";
  return kFailed;
}

int PlanFromFile(const Flags& flags) {
  PlanRequestsOptions options;
  options.path = flags.requests;
  options.policy = flags.policy;
  options.effort = flags.effort;
  options.json = flags.online.format == "json";
  options.explain = flags.online.explain;
  return Finish(PlanRequests(options, std::cout));
}

void AddSimulateFlags(CLI::App& verb, SimulateFlags& flags) {
  verb.add_option("--workload", flags.workload,
                  "Lengths: chatqa2-like, longalign-like, or a file: quantile,tokens; a list of "
                  "lengths; or PATH.idx of a packed dataset")
      ->capture_default_str();
  verb.add_option("--dp", flags.data_parallel, "Data-parallel ranks")->capture_default_str();
  verb.add_option("--pp", flags.pipeline_parallel, "Pipeline stages")->capture_default_str();
  verb.add_option("--micro-batch-size", flags.micro_batch_size,
                  "Sequences a micro-batch of the reference policies")
      ->capture_default_str();
  verb.add_option("--global-batch-size", flags.global_batch_size, "Sequences a step")
      ->capture_default_str();
  verb.add_option("--max-tokens", flags.max_tokens, "Tokens that a micro-batch may hold")
      ->capture_default_str();
  verb.add_option("--steps", flags.steps, "Steps")->capture_default_str();
  verb.add_option("--seed", flags.seed, "Of lengths and coverage")->capture_default_str();
  verb.add_option("--policies", flags.policies, "Comma-separated; speed-up is over the first")
      ->delimiter(',')
      ->check(CLI::IsMember(planner::PolicyNames()));
  verb.add_option("--profile", flags.profile,
                  "Latency profile as JSON; without it a modelled one of Qwen2.5-3B on H200");
  verb.add_option("--coverage", flags.coverage,
                  "family, family:LOW:HIGH (range of alpha), or a file of recorded curves")
      ->capture_default_str();
  verb.add_option("--guard", flags.guard, "Part of its coverage that a sequence may lose")
      ->capture_default_str();
  verb.add_option("--floor", flags.floor, "baseline, guard, fixed, or a mean coverage")
      ->capture_default_str();
  verb.add_option("--block-tokens", flags.block_tokens, "Tokens a block")->capture_default_str();
  verb.add_option("--base-budget", flags.base_budget, "Blocks of the fixed budget")
      ->capture_default_str();
  verb.add_option("--max-budget", flags.max_budget, "Blocks that a budget may reach")
      ->capture_default_str();
  verb.add_option("--effort", flags.effort, "Search with this effort: fast, normal or high")
      ->capture_default_str();
  verb.add_option("--lookahead-steps", flags.lookahead_steps,
                  "Batches among which `sparsebalance` may exchange sequences; 1: none")
      ->capture_default_str();
  verb.add_option("--layers", flags.layers,
                  "Draw a coverage curve for each of so many layers and let `sparsebalance` give "
                  "every layer a budget; 0: one budget for all layers")
      ->capture_default_str();
  verb.add_option("--html", flags.html, "Also write a page with timelines to this file");
}

int Main(int argc, char** argv) {
  Flags flags;
  CLI::App app("Asks a SparseBalance coordinator about its jobs, and plans without one.", "sbctl");
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", VersionText("sbctl"));
  app.require_subcommand(1);
  app.add_option("--coordinator", flags.coordinator, "HOST:PORT")
      ->capture_default_str()
      ->envname("SPARSEBALANCE_COORDINATOR");
  AddChannelFlags(app, flags.security, flags.insecure);
  app.add_option("--timeout", flags.timeout_seconds, "Seconds to wait for an answer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--format", flags.online.format, "table, json, or (for jobs) names")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json", "names"}));
  // So that flags may also follow the verb.
  app.fallthrough();
  OnlineFlags& online = flags.online;
  const auto add_job = [&](CLI::App* verb) {
    return verb->add_option("job", online.job, "[NAMESPACE/]NAME");
  };
  CLI::App* jobs = app.add_subcommand("jobs", "All jobs");
  jobs->add_option("--namespace", online.ns, "Only jobs of this namespace");
  CLI::App* job = app.add_subcommand("job", "One job: its ranks and latest steps");
  add_job(job)->required();
  CLI::App* plan =
      app.add_subcommand("plan", "The plan of a recent step, or plans for batches in a file");
  CLI::Option* plan_job = add_job(plan);
  CLI::Option* plan_step = plan->add_option("step", online.step, "STEP");
  plan_job->needs(plan_step);
  CLI::Option* requests =
      plan->add_option("--requests", flags.requests,
                       "Plan the batches of this file, one request in JSON a line, without a "
                       "coordinator")
          ->check(CLI::ExistingFile)
          ->excludes(plan_job);
  plan->add_option("--policy", flags.policy, "Plan them by this policy")
      ->check(CLI::IsMember(planner::PolicyNames()))
      ->needs(requests);
  plan->add_option("--effort", flags.effort, "Search with this effort: fast, normal or high")
      ->check(CLI::IsMember({"fast", "normal", "high"}))
      ->needs(requests);
  plan->add_flag("--explain", online.explain, "Say why it is so");
  CLI::App* watch = app.add_subcommand("watch", "A live table of one job, or of all");
  add_job(watch);
  watch->add_option("--namespace", online.ns, "Only jobs of this namespace");
  watch->add_option("--updates", online.updates, "End after so many; 0: when interrupted")
      ->capture_default_str();
  CLI::App* evict = app.add_subcommand("evict", "Take a node out of its job, as if it had died");
  add_job(evict)->required();
  evict->add_option("node", online.node, "NODE, as `sbctl job` shows it")->required();
  evict->add_option("--reason", online.reason, "Told to the other nodes");
  CLI::App* remove = app.add_subcommand("remove", "Forget a job and all that is stored about it");
  add_job(remove)->required();
  remove->add_flag("--force", online.force, "Also where nodes are in it");
  CLI::App* drain = app.add_subcommand("drain", "Let the coordinator hand its jobs over and end");
  drain->add_option("--reason", online.reason, "For its log");
  CLI::App* backup =
      app.add_subcommand("backup", "Write all that the coordinator stores to a file");
  backup->add_option("file", online.file, "FILE")->required();
  backup->add_option("--namespace", online.ns, "Only jobs and profiles of this namespace");
  CLI::App* restore = app.add_subcommand("restore", "Give a backup to a coordinator");
  restore->add_option("file", online.file, "FILE")->required()->check(CLI::ExistingFile);
  restore->add_flag("--replace", online.replace, "Jobs that are there, without nodes, give way");
  CLI::App* completion =
      app.add_subcommand("completion", "A script for your shell to complete sbctl");
  completion->add_option("shell", flags.shell, "bash, zsh or fish")->required();
  SimulateFlags simulate_flags;
  CLI::App* simulate = app.add_subcommand(
      "simulate", "Policies side by side on generated batches, without a coordinator");
  AddSimulateFlags(*simulate, simulate_flags);
  std::string trace;
  CLI::App* replay =
      app.add_subcommand("replay", "What a recorded run's trace says about its balance");
  replay->add_option("--trace", trace, "CSV of every forward's and backward's start and duration")
      ->required();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {  // --help, --version
    return app.exit(e);
  } catch (const CLI::Error& e) {
    std::cerr << "sbctl: " << e.what() << " (see sbctl --help)\n";
    return kUsage;
  }
  if (plan->parsed() && !flags.requests.empty()) return PlanFromFile(flags);
  if (plan->parsed() && online.job.empty()) {
    std::cerr << "sbctl: plan needs a job and a step, or --requests FILE (see sbctl plan --help)\n";
    return kUsage;
  }
  if (completion->parsed()) {
    const absl::StatusOr<std::string> script = CompletionScript(app, flags.shell);
    if (!script.ok()) return Finish(script.status());
    std::cout << *script;
    return 0;
  }
  const bool json = online.format == "json";
  if (simulate->parsed()) {
    simulate_flags.json = json;
    return Finish(RunSimulate(simulate_flags, std::cout));
  }
  if (replay->parsed()) return Finish(RunReplay(trace, json, std::cout));
  const auto tls = LoadChannelSecurity(flags.coordinator, flags.security, flags.insecure);
  if (!tls.ok()) return Finish(tls.status());
  OnlineVerbs verbs(CoordinatorSession(flags.coordinator, absl::Seconds(flags.timeout_seconds),
                                       [tls = *tls](const std::string& address) {
                                         return MakeCoordinatorChannel(address, tls.get());
                                       }),
                    online);
  if (jobs->parsed()) return verbs.Jobs();
  if (job->parsed()) return verbs.Job();
  if (watch->parsed()) return verbs.Watch();
  if (evict->parsed()) return verbs.Evict();
  if (remove->parsed()) return verbs.Remove();
  if (drain->parsed()) return verbs.Drain();
  if (backup->parsed()) return verbs.Backup();
  if (restore->parsed()) return verbs.Restore();
  return verbs.Plan();
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) {
  // What is worth a warning; the rest would stand between the answers.
  auto logger =
      std::make_shared<spdlog::logger>("sbctl", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("sbctl: %v");
  logger->set_level(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  // gRPC's own lines would stand beside ours.
  gpr_set_log_function([](gpr_log_func_args*) {});
  return sparsebalance::Main(argc, argv);
}
