// sparsebalance-worker: trains a model as a member of a job. See worker_flags.h for what it takes
// and exit_codes.h for what its exit code means.
#include <pthread.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <iostream>
#include <string>
#include <thread>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "coordinator/config/arguments.h"
#include "coordinator/config/version.h"
#include "kernels/all_backends.h"
#include "nlohmann/json.hpp"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/train/exit_codes.h"
#include "worker/train/worker_flags.h"
#include "worker/train/worker_node.h"
#include "worker/verbs/verbs.h"

namespace sparsebalance {
namespace {

void SetUpLogging(const WorkerFlags& flags) {
  auto logger =
      std::make_shared<spdlog::logger>("worker", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_level(spdlog::level::from_str(flags.log_level));
  logger->set_pattern(flags.log_format == "json"
                          ? R"({"time":"%Y-%m-%dT%H:%M:%S.%e%z","level":"%l","message":%v})"
                          : "%Y-%m-%d %H:%M:%S.%e %L worker: %v");
  spdlog::set_default_logger(std::move(logger));
}

// Waits for SIGTERM or SIGINT on a thread of its own, where locks may be taken. A second signal
// ends the process at once.
class SignalThread {
 public:
  explicit SignalThread(StopSignal* stop) {
    sigemptyset(&signals_);
    for (const int signal : {SIGTERM, SIGINT, SIGUSR2}) sigaddset(&signals_, signal);
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this, stop] { Loop(stop); });
  }
  ~SignalThread() {
    pthread_kill(thread_.native_handle(), SIGUSR2);
    thread_.join();
  }

 private:
  void Loop(StopSignal* stop) {
    int asked = 0;
    while (true) {
      int signal = 0;
      if (sigwait(&signals_, &signal) != 0 || signal == SIGUSR2) return;
      if (++asked > 1) _exit(128 + signal);
      stop->Request();
    }
  }

  sigset_t signals_;
  std::thread thread_;
};

// Progress on standard output: one line that is rewritten on a terminal, else a line a step.
class Progress {
 public:
  Progress() : terminal_(isatty(STDOUT_FILENO) == 1) {}

  void Show(const std::string& line) {
    if (terminal_) {
      std::printf("\r\x1b[K%s", line.c_str());
    } else {
      std::printf("%s\n", line.c_str());
    }
    std::fflush(stdout);
    open_ = terminal_;
  }
  void Close() {
    if (open_) std::printf("\r\x1b[K");
    std::fflush(stdout);
    open_ = false;
  }

 private:
  const bool terminal_;
  bool open_ = false;
};

int Main(int argc, char** argv) {
  kernels::RegisterAllBackends();
  if (const Verb* verb = argc > 1 ? FindVerb(argv[1]) : nullptr; verb != nullptr) {
    return verb->run(argc - 1, argv + 1);
  }
  CLI::App app("Trains a model with block-sparse attention as a member of a SparseBalance job.",
               "sparsebalance-worker");
  WorkerFlags flags;
  AddWorkerFlags(app, flags);
  app.footer(VerbsHelp());
  app.set_version_flag("--version", VersionText("sparsebalance-worker"));
  try {
    app.parse(ReversedArguments(app, argc, argv));
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : kExitUsage;
  }
  const auto fail = [](const absl::Status& status) {
    std::cerr << "sparsebalance-worker: " << std::string(status.message()) << std::endl;
    return ExitCodeOf(status);
  };
  if (absl::Status status = FinishWorkerFlags(flags); !status.ok()) return fail(status);
  if (flags.check_config) {
    if (absl::Status status = CheckWorkerNode(flags.node); !status.ok()) return fail(status);
    std::cout << "the configuration is good\n";
    return kExitFinished;
  }
  SetUpLogging(flags);

  StopSignal stop;
  SignalThread signals(&stop);
  Progress progress;
  const bool shows = !flags.quiet && !flags.node.ranks.empty() && flags.node.ranks.front() == 0;
  flags.node.version = kVersion;
  flags.node.session.client_version = VersionText("sparsebalance-worker");
  flags.node.log = [json = flags.log_format == "json"](const std::string& line) {
    spdlog::info(json ? nlohmann::json(line).dump() : line);
  };
  if (shows) {
    flags.node.on_step = [&](const std::string& policy, const StepRecord& record) {
      progress.Show(FormatProgress(policy, record, flags.node.train.steps));
    };
  }
  const absl::StatusOr<WorkerNodeResult> result = RunWorkerNode(flags.node, stop);
  progress.Close();
  if (!result.ok()) return fail(result.status());
  if (shows) std::cout << FormatTable(result->summaries) << std::flush;
  if (result->end == WorkerNodeResult::End::kStopped) {
    flags.node.log("stopped as asked before the last step; --resume goes on from the checkpoint");
    return kExitStopped;
  }
  return kExitFinished;
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) { return sparsebalance::Main(argc, argv); }
