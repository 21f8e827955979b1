// sparsebalance-coordinator: parses flags, starts the server, waits for a signal, drains. SIGHUP
// reads the configuration again.
//
// Exit codes: 0 after a clean shutdown, 1 where what was learned could not be stored, 2 where the
// program could not start.

#include <signal.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_join.h"
#include "coordinator/service/coordinator_server.h"
#include "coordinator/service/flags.h"
#include "coordinator/service/logging.h"

namespace sparsebalance {
namespace {

constexpr int kCannotStart = 2;

int CannotStart(const absl::Status& status) {
  std::cerr << "sparsebalance-coordinator: " << std::string(status.message()) << "\n";
  return kCannotStart;
}

// A reader sees the whole file or none.
absl::Status WritePortFile(const std::string& path, const CoordinatorServer& server) {
  const std::string temporary = path + "." + std::to_string(getpid()) + ".tmp";
  {
    std::ofstream file(temporary, std::ios::trunc);
    file << "grpc=" << server.grpc_address().port << "\n";
    if (server.metrics_address()) file << "metrics=" << server.metrics_address()->port << "\n";
    if (server.health_address()) file << "health=" << server.health_address()->port << "\n";
    file.flush();
    if (!file) return absl::PermissionDeniedError("cannot write the port file " + temporary);
  }
  std::error_code error;
  std::filesystem::rename(temporary, path, error);
  if (error) {
    std::filesystem::remove(temporary, error);
    return absl::PermissionDeniedError("cannot write the port file " + path);
  }
  return absl::OkStatus();
}

// The store's directory is made, for its owner alone, where it is missing.
void MakeDirectoryOf(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (directory.empty() || std::filesystem::exists(directory, error)) return;
  if (std::filesystem::create_directories(directory, error)) {
    std::filesystem::permissions(directory, std::filesystem::perms::owner_all, error);
  }
}

// Reads flags, environment and file again and takes up what can be changed while running.
void Reload(int argc, char** argv, CoordinatorFlags& flags, CoordinatorServer& server) {
  int exit_code = 0;
  const auto again = ParseCoordinatorFlags(argc, argv, &exit_code);
  if (!again) {
    spdlog::error("SIGHUP: the configuration cannot be used, nothing was changed");
    return;
  }
  server.Reload(again->server.quotas);
  spdlog::default_logger()->set_level(spdlog::level::from_str(again->log_level));
  std::vector<std::string> taken;
  std::vector<std::string> waiting;
  std::map<std::string, std::string> all = flags.given;
  all.insert(again->given.begin(), again->given.end());
  for (const auto& [name, unused] : all) {
    const auto before = flags.given.find(name);
    const auto after = again->given.find(name);
    if (before != flags.given.end() && after != again->given.end() &&
        before->second == after->second) {
      continue;
    }
    const auto& reloadable = ReloadableFlags();
    const bool now = std::find(reloadable.begin(), reloadable.end(), name) != reloadable.end();
    (now ? taken : waiting).push_back(name);
  }
  spdlog::info("SIGHUP: certificates and rules were read again; {}",
               taken.empty() ? "no flag has changed" : "changed: " + absl::StrJoin(taken, ", "));
  if (!waiting.empty()) {
    spdlog::warn("changed, but not before a restart: {}", absl::StrJoin(waiting, ", "));
  }
  flags = *again;
}

int Run(int argc, char** argv, CoordinatorFlags flags) {
  if (absl::Status status = SetUpLogging(flags.log_format, flags.log_level); !status.ok()) {
    return CannotStart(status);
  }
  if (flags.check_config) {
    std::cout << "the configuration is good\n";
    return 0;
  }
  // Blocked before any thread starts, so that only sigwait below sees them.
  sigset_t signals;
  sigemptyset(&signals);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&signals, signal);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  // A file that may not grow is a write that fails, not the end of the process.
  std::signal(SIGXFSZ, SIG_IGN);

  MakeDirectoryOf(flags.server.state.location.path);
  auto started =
      CoordinatorServer::Start(flags.server, [](const std::string&) { kill(getpid(), SIGTERM); });
  if (!started.ok()) return CannotStart(started.status());
  CoordinatorServer& server = **started;
  // First the file, then the line: whoever waits for the line may read the file.
  if (!flags.port_file.empty()) {
    if (absl::Status status = WritePortFile(flags.port_file, server); !status.ok()) {
      return CannotStart(status);
    }
  }
  spdlog::info("sparsebalance-coordinator {}, leader epoch {}, store: {}", flags.server.version,
               server.leader_epoch(), server.store_description());
  if (server.metrics_address()) {
    spdlog::info("metrics and overview on {}://{}/", flags.server.secure() ? "https" : "http",
                 server.metrics_address()->ToString());
  }
  if (server.health_address()) {
    spdlog::info("grpc.health.v1 on {}", server.health_address()->ToString());
  }
  spdlog::info("serving on {}{}", server.grpc_address().ToString(),
               flags.server.secure() ? ", with mutual TLS" : "");

  int signal = 0;
  while (sigwait(&signals, &signal) == 0 && signal == SIGHUP) Reload(argc, argv, flags, server);
  spdlog::info("{}: shutting down", signal == SIGTERM ? "SIGTERM" : "SIGINT");
  const absl::Status drained = server.Drain();
  if (!drained.ok()) {
    spdlog::error("not everything was stored: {}", std::string(drained.message()));
    return 1;
  }
  spdlog::info("stopped; everything is stored");
  return 0;
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) {
  int exit_code = 0;
  const auto flags = sparsebalance::ParseCoordinatorFlags(argc, argv, &exit_code);
  if (!flags) return exit_code;
  return sparsebalance::Run(argc, argv, *flags);
}
