// sbctl: what an operator asks a coordinator, and what can be found out without one.
//
// Exit codes: 0 answered, 1 there is no answer (coordinator unreachable, unknown job, bad input
// file), 2 a mistake on the command line.

#include <grpc/support/log.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/cli/plan_requests.h"
#include "coordinator/cli/simulate.h"
#include "coordinator/cli/views.h"
#include "coordinator/planner/planner.h"
#include "coordinator/service/status_conversion.h"
#include "google/protobuf/util/json_util.h"
#include "grpcpp/grpcpp.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance {
namespace {

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int kMaxMessageBytes = 64 * 1024 * 1024;

struct Flags {
  std::string coordinator = "127.0.0.1:7070";
  std::string format = "table";
  double timeout_seconds = 10;
  std::string job;
  std::string ns;
  uint64_t step = 0;
  bool explain = false;
  std::string requests;
  std::string policy;
  std::string effort;
};

v1::JobKey ParseJob(const std::string& text) {
  v1::JobKey key;
  const size_t slash = text.find('/');
  key.set_namespace_(slash == std::string::npos ? "default" : text.substr(0, slash));
  key.set_name(slash == std::string::npos ? text : text.substr(slash + 1));
  return key;
}

class Session {
 public:
  explicit Session(const Flags& flags) : flags_(flags) {
    grpc::ChannelArguments arguments;
    arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
    stub_ = v1::Coordinator::NewStub(grpc::CreateCustomChannel(
        flags.coordinator, grpc::InsecureChannelCredentials(), arguments));
  }

  int Jobs() {
    v1::ListJobsRequest request;
    request.set_namespace_(flags_.ns);
    v1::ListJobsResponse answer;
    const absl::Status status = Call(&v1::Coordinator::Stub::ListJobs, request, &answer);
    if (!status.ok()) return Fail(status);
    return Show(answer, [&] { return JobsView(answer); });
  }

  int Job() {
    v1::GetJobRequest request;
    *request.mutable_job() = ParseJob(flags_.job);
    v1::GetJobResponse answer;
    const absl::Status status = Call(&v1::Coordinator::Stub::GetJob, request, &answer);
    if (!status.ok()) return Fail(status);
    return Show(answer.status(), [&] { return JobView(answer.status()); });
  }

  int Plan() {
    v1::GetPlanRequest request;
    *request.mutable_job() = ParseJob(flags_.job);
    request.set_step(flags_.step);
    request.set_explain(flags_.explain);
    v1::GetPlanResponse answer;
    const absl::Status status = Call(&v1::Coordinator::Stub::GetPlan, request, &answer);
    if (!status.ok()) return Fail(status);
    return Show(answer, [&] { return PlanView(request.job(), answer); });
  }

 private:
  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (v1::Coordinator::Stub::*method)(grpc::ClientContext*,
                                                                  const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    context.set_deadline(
        std::chrono::system_clock::now() +
        std::chrono::microseconds(static_cast<int64_t>(flags_.timeout_seconds * 1e6)));
    return FromGrpcStatus((stub_.get()->*method)(&context, request, response));
  }

  template <typename View>
  int Show(const google::protobuf::Message& message, View view) {
    if (flags_.format == "table") {
      std::cout << view();
      return 0;
    }
    google::protobuf::util::JsonPrintOptions options;
    options.add_whitespace = true;
    options.preserve_proto_field_names = true;
    options.always_print_primitive_fields = true;
    std::string text;
    if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
      std::cerr << "sbctl: the answer cannot be written as JSON\n";
      return kFailed;
    }
    std::cout << text;
    return 0;
  }

  int Fail(const absl::Status& status) {
    std::string line(status.message());
    if (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status)) {
      line = absl::StrCat("coordinator at ", flags_.coordinator, " cannot be reached: ", line);
    } else if (absl::IsNotFound(status) && !flags_.job.empty()) {
      absl::StrAppend(&line, KnownJobs());
    }
    std::cerr << "sbctl: " << line << "\n";
    return kFailed;
  }

  // Names the jobs there are, for a caller who named another.
  std::string KnownJobs() {
    v1::ListJobsResponse answer;
    if (!Call(&v1::Coordinator::Stub::ListJobs, v1::ListJobsRequest(), &answer).ok()) return "";
    const v1::JobKey wanted = ParseJob(flags_.job);
    std::vector<std::string> names;
    for (const v1::JobSummary& job : answer.jobs()) {
      if (job.job().namespace_() == wanted.namespace_() && job.job().name() == wanted.name()) {
        return "";
      }
      names.push_back(absl::StrCat(job.job().namespace_(), "/", job.job().name()));
    }
    return names.empty() ? " (it knows no jobs)"
                         : absl::StrCat(" (it knows ", absl::StrJoin(names, ", "), ")");
  }

  const Flags flags_;
  std::unique_ptr<v1::Coordinator::Stub> stub_;
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
  options.json = flags.format == "json";
  options.explain = flags.explain;
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
  app.set_version_flag("--version", std::string("sbctl ") + SPARSEBALANCE_VERSION);
  app.require_subcommand(1);
  app.add_option("--coordinator", flags.coordinator, "HOST:PORT")
      ->capture_default_str()
      ->envname("SPARSEBALANCE_COORDINATOR");
  app.add_option("--timeout", flags.timeout_seconds, "Seconds to wait for an answer")
      ->capture_default_str()
      ->check(CLI::PositiveNumber);
  app.add_option("--format", flags.format, "table or json")
      ->capture_default_str()
      ->check(CLI::IsMember({"table", "json"}));
  // So that flags may also follow the verb.
  app.fallthrough();
  CLI::App* jobs = app.add_subcommand("jobs", "All jobs");
  jobs->add_option("--namespace", flags.ns, "Only jobs of this namespace");
  CLI::App* job = app.add_subcommand("job", "One job: its ranks and latest steps");
  job->add_option("job", flags.job, "[NAMESPACE/]NAME")->required();
  CLI::App* plan =
      app.add_subcommand("plan", "The plan of a recent step, or plans for batches in a file");
  CLI::Option* plan_job = plan->add_option("job", flags.job, "[NAMESPACE/]NAME");
  CLI::Option* plan_step = plan->add_option("step", flags.step, "STEP");
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
  plan->add_flag("--explain", flags.explain, "Say why it is so");
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
  if (plan->parsed() && flags.job.empty()) {
    std::cerr << "sbctl: plan needs a job and a step, or --requests FILE (see sbctl plan --help)\n";
    return kUsage;
  }
  const bool json = flags.format == "json";
  if (simulate->parsed()) {
    simulate_flags.json = json;
    return Finish(RunSimulate(simulate_flags, std::cout));
  }
  if (replay->parsed()) return Finish(RunReplay(trace, json, std::cout));
  Session session(flags);
  if (jobs->parsed()) return session.Jobs();
  if (job->parsed()) return session.Job();
  return session.Plan();
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) {
  // gRPC's own lines would stand beside ours.
  gpr_set_log_function([](gpr_log_func_args*) {});
  return sparsebalance::Main(argc, argv);
}
