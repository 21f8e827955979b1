#include "coordinator/service/flags.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cstdlib>
#include <filesystem>
#include <iostream>

namespace sparsebalance {
namespace {

// $XDG_STATE_HOME/sparsebalance/coordinator.db where that variable is set, else in the working
// directory.
std::string DefaultStorePath() {
  const char* state = std::getenv("XDG_STATE_HOME");  // NOLINT(concurrency-mt-unsafe): one thread
  if (state == nullptr || *state == '\0') return "./sparsebalance-coordinator.db";
  return std::string(state) + "/sparsebalance/coordinator.db";
}

CLI::Option* WithEnvironment(CLI::Option* option) {
  std::string name = "SPARSEBALANCE_COORDINATOR_";
  for (const char c : option->get_single_name()) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return option->envname(name);
}

// Durations are plain numbers of seconds, as in the rest of the command line's world.
CLI::Option* AddSeconds(CLI::App& app, const std::string& name, absl::Duration* value,
                        const std::string& help) {
  CLI::Option* option =
      app.add_option_function<double>(
             name, [value](const double& seconds) { *value = absl::Seconds(seconds); }, help)
          ->check(CLI::PositiveNumber)
          ->type_name("SECONDS")
          ->default_str(absl::FormatDuration(*value));
  return WithEnvironment(option)->group("Limits");
}

template <typename T>
CLI::Option* AddLimit(CLI::App& app, const std::string& name, T* value, const std::string& help) {
  return WithEnvironment(
             app.add_option(name, *value, help)->capture_default_str()->check(CLI::PositiveNumber))
      ->group("Limits");
}

}  // namespace

std::optional<CoordinatorFlags> ParseCoordinatorFlags(int argc, char** argv, int* exit_code) {
  CoordinatorFlags flags;
  ServiceOptions& options = flags.server.options;
  std::string listen = "127.0.0.1:7070";
  std::string metrics_listen = "127.0.0.1:7071";
  std::string store = DefaultStorePath();

  CLI::App app("Plans the steps of long-context training jobs: one service for many jobs.",
               "sparsebalance-coordinator");
  // Of a flag given twice the last counts, so that scripts can append to a command line.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version",
                       std::string("sparsebalance-coordinator ") + SPARSEBALANCE_VERSION);
  app.set_config("--config", "", "File with flags, one NAME=VALUE a line");
  app.allow_config_extras(CLI::config_extras_mode::error);
  WithEnvironment(app.add_option("--listen", listen, "HOST:PORT of the gRPC service; port 0: any")
                      ->capture_default_str());
  WithEnvironment(app.add_option("--metrics-listen", metrics_listen,
                                 "HOST:PORT of /metrics, /healthz and the overview; 'off': none")
                      ->capture_default_str());
  WithEnvironment(
      app.add_option("--store", store,
                     "SQLite file for what outlives the process; 'memory': keep nothing")
          ->capture_default_str());
  WithEnvironment(
      app.add_option("--port-file", flags.port_file,
                     "Write the ports that were bound to this file: grpc=PORT, metrics=PORT"));
  WithEnvironment(
      app.add_flag("--insecure", flags.server.insecure, "Offer plaintext to other machines"));
  WithEnvironment(app.add_option("--log-format", flags.log_format, "text or json")
                      ->capture_default_str()
                      ->check(CLI::IsMember({"text", "json"})));
  WithEnvironment(app.add_option("--log-level", flags.log_level, "How much to log")
                      ->capture_default_str()
                      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"})));

  AddSeconds(app, "--lease", &options.default_lease, "Silence after which a node is dead");
  AddSeconds(app, "--startup-grace", &options.default_startup_grace,
             "Silence allowed to a node that has just joined");
  AddSeconds(app, "--max-join-wait", &options.max_join_wait, "Longest poll of JoinJob");
  AddSeconds(app, "--max-exchange-wait", &options.max_exchange_wait,
             "Longest poll of ExchangeStep");
  AddSeconds(app, "--max-watch-wait", &options.max_watch_wait, "Longest poll of WatchJob");
  AddSeconds(app, "--join-presence", &options.join_presence,
             "A joining node counts as present for so long between two polls");
  AddSeconds(app, "--overload-retry", &options.overload_retry,
             "When to call again after the planning queue was full");
  AddSeconds(app, "--shutdown-retry", &options.shutdown_retry,
             "When to call again while the coordinator shuts down");
  AddSeconds(app, "--keepalive-interval", &options.keepalive_interval,
             "Silent connections are pinged this often");
  AddSeconds(app, "--keepalive-timeout", &options.keepalive_timeout,
             "A ping without an answer ends its connection after so long");
  AddSeconds(app, "--min-client-ping", &options.min_client_ping, "Clients may ping this often");
  AddSeconds(app, "--job-retention", &options.job_retention,
             "A job without nodes is forgotten after so long");
  AddSeconds(app, "--drain-timeout", &options.drain_timeout,
             "Time for answers under way when shutting down");
  AddSeconds(app, "--sweep-interval", &options.sweep_interval, "How often leases are looked at");
  AddSeconds(app, "--knowledge-write-interval", &options.knowledge_write_interval,
             "How often learned costs and coverage are stored");
  AddLimit(app, "--max-jobs", &options.max_jobs, "Jobs known at a time");
  AddLimit(app, "--max-ranks-per-job", &options.max_ranks_per_job, "Ranks of one job");
  AddLimit(app, "--max-message-bytes", &options.max_message_bytes, "Largest message either way");
  AddLimit(app, "--planner-threads", &options.planner_threads, "Plans made at a time");
  AddLimit(app, "--planner-queue", &options.planner_queue, "Plans waiting for a thread");
  AddLimit(app, "--max-open-steps", &options.max_open_steps,
           "Steps of one job that are waited for at a time");
  AddLimit(app, "--kept-step-reports", &options.kept_step_reports,
           "Finished steps kept of each job");
  AddLimit(app, "--kept-plans", &options.kept_plans, "Plans kept of each job");

  try {
    app.parse(argc, argv);
  } catch (const CLI::CallForHelp& e) {
    *exit_code = app.exit(e);
    return std::nullopt;
  } catch (const CLI::CallForVersion& e) {
    *exit_code = app.exit(e);
    return std::nullopt;
  } catch (const CLI::Error& e) {
    std::cerr << "sparsebalance-coordinator: " << e.what() << " (see --help)\n";
    *exit_code = 2;
    return std::nullopt;
  }

  const auto parse = [&](const std::string& text, const char* flag, ListenAddress* address) {
    absl::StatusOr<ListenAddress> parsed = ListenAddress::Parse(text);
    if (parsed.ok()) {
      *address = *std::move(parsed);
      return true;
    }
    std::cerr << "sparsebalance-coordinator: " << flag << ": "
              << std::string(parsed.status().message()) << "\n";
    *exit_code = 2;
    return false;
  };
  if (!parse(listen, "--listen", &flags.server.listen)) return std::nullopt;
  if (metrics_listen != "off" &&
      !parse(metrics_listen, "--metrics-listen", &flags.server.metrics_listen.emplace())) {
    return std::nullopt;
  }
  if (store != "memory") flags.server.store_path = store;
  flags.server.version = SPARSEBALANCE_VERSION;
  return flags;
}

}  // namespace sparsebalance
