#include "coordinator/service/flags.h"

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "coordinator/config/arguments.h"
#include "coordinator/config/version.h"
#include "coordinator/service/flag_types.h"

namespace sparsebalance {
namespace {

// What flags hold as text until it has been made sense of.
struct Texts {
  std::string listen = "127.0.0.1:7070";
  std::string metrics_listen = "127.0.0.1:7071";
  std::string health_listen = "off";
  std::string store;
  std::vector<std::string> quotas;
};

// $XDG_STATE_HOME/sparsebalance/coordinator.db where that variable is set, else in the working
// directory.
std::string DefaultStorePath() {
  const char* state = std::getenv("XDG_STATE_HOME");  // NOLINT(concurrency-mt-unsafe): one thread
  if (state == nullptr || *state == '\0') return "./sparsebalance-coordinator.db";
  return std::string(state) + "/sparsebalance/coordinator.db";
}

void AddProgramFlags(CLI::App& app, CoordinatorFlags& flags, Texts& texts) {
  WithEnvironment(
      app.add_option("--listen", texts.listen, "HOST:PORT of the gRPC service; port 0: any")
          ->capture_default_str());
  WithEnvironment(app.add_option("--metrics-listen", texts.metrics_listen,
                                 "HOST:PORT of /metrics, /healthz and the status page; 'off': none")
                      ->capture_default_str());
  WithEnvironment(app.add_option("--health-listen", texts.health_listen,
                                 "HOST:PORT of grpc.health.v1 for probes, always plaintext; "
                                 "'off': none")
                      ->capture_default_str());
  WithEnvironment(
      app.add_option("--store", texts.store,
                     "Where state is kept: a SQLite file; etcd://HOST:PORT,.../PREFIX, which "
                     "replicas share; or 'memory', which keeps nothing")
          ->capture_default_str());
  WithEnvironment(
      app.add_option("--port-file", flags.port_file,
                     "Write the ports that were bound to this file: grpc=, metrics=, health="));
  WithEnvironment(app.add_option("--log-format", flags.log_format, "text or json")
                      ->capture_default_str()
                      ->check(CLI::IsMember({"text", "json"})));
  WithEnvironment(app.add_option("--log-level", flags.log_level, "How much to log")
                      ->capture_default_str()
                      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"})));
  WithEnvironment(app.add_flag("--reflection", flags.server.reflection,
                               "Tell whoever may connect which RPCs there are"));
  WithEnvironment(
      app.add_option("--quota", texts.quotas,
                     "NAMESPACE:KEY=VALUE,... with keys max-jobs, max-ranks, max-sequences (a "
                     "step) and max-bytes; '*' stands for every other namespace; may be repeated")
          ->type_name("QUOTA")
          ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll));
  app.add_flag("--check-config", flags.check_config,
               "Check flags, environment and files, say what is wrong with them, and end");
}

void AddSecurityFlags(CLI::App& app, CoordinatorFlags& flags) {
  CLI::App& group = *app.add_option_group("Security");
  WithEnvironment(group.add_option("--tls-cert", flags.server.tls.certificate,
                                   "PEM file: certificate of this server, then its chain"));
  WithEnvironment(group.add_option("--tls-key", flags.server.tls.key, "PEM file: its key"));
  WithEnvironment(group.add_option("--tls-client-ca", flags.server.tls.ca,
                                   "PEM file: CAs that clients' certificates must lead to"));
  WithEnvironment(group.add_option("--authorization", flags.server.authorization_file,
                                   "JSON file: which names may do what in which namespaces"));
  WithEnvironment(group.add_flag("--insecure", flags.server.insecure,
                                 "Offer plaintext without authentication to other machines"));
}

void AddReplicaFlags(CLI::App& app, CoordinatorFlags& flags) {
  StateConfig& state = flags.server.state;
  CLI::App& group = *app.add_option_group("Replicas on etcd");
  WithEnvironment(
      group.add_option("--advertise", state.advertise,
                       "HOST:PORT where clients reach this replica; default: --listen"));
  AddDuration(group, "--take-over", &state.take_over,
              "A replica that is gone loses its jobs to the others after so long");
  AddDuration(group, "--etcd-timeout", &state.etcd_timeout, "Bound of one call to etcd");
  AddDuration(group, "--shared-look-interval", &flags.server.options.shared_look_interval,
              "How often a replica looks for what others have stored");
  WithEnvironment(group.add_option("--etcd-ca", state.etcd_tls.ca, "PEM file: CA of etcd"));
  WithEnvironment(group.add_option("--etcd-cert", state.etcd_tls.cert,
                                   "PEM file: certificate to show to etcd"));
  WithEnvironment(group.add_option("--etcd-key", state.etcd_tls.key, "PEM file: its key"));
}

absl::Status WithFlag(const char* flag, const absl::Status& status) {
  return absl::Status(status.code(), absl::StrCat(flag, ": ", status.message()));
}

absl::Status Understand(const Texts& texts, CoordinatorFlags& flags) {
  ServerConfig& server = flags.server;
  auto listen = ListenAddress::Parse(texts.listen);
  if (!listen.ok()) return WithFlag("--listen", listen.status());
  server.listen = *std::move(listen);
  const auto optional = [](const std::string& text, const char* flag,
                           std::optional<ListenAddress>& address) {
    if (text == "off") return absl::OkStatus();
    auto parsed = ListenAddress::Parse(text);
    if (!parsed.ok()) return WithFlag(flag, parsed.status());
    address = *std::move(parsed);
    return absl::OkStatus();
  };
  if (absl::Status status =
          optional(texts.metrics_listen, "--metrics-listen", server.metrics_listen);
      !status.ok()) {
    return status;
  }
  if (absl::Status status = optional(texts.health_listen, "--health-listen", server.health_listen);
      !status.ok()) {
    return status;
  }
  auto location = StoreLocation::Parse(texts.store);
  if (!location.ok()) return WithFlag("--store", location.status());
  server.state.location = *std::move(location);
  if (server.state.advertise.empty()) server.state.advertise = server.listen.ToString();
  auto quotas = QuotaTable::Parse(texts.quotas);
  if (!quotas.ok()) return WithFlag("--quota", quotas.status());
  server.quotas = *quotas;
  server.version = kVersion;
  return CheckServerConfig(server);
}

void NoteGiven(const CLI::App& app, std::map<std::string, std::string>& given) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() == 0 || option->get_lnames().empty()) continue;
    given[option->get_lnames().front()] = absl::StrJoin(option->results(), " ");
  }
  for (const CLI::App* group : app.get_subcommands([](const CLI::App*) { return true; })) {
    NoteGiven(*group, given);
  }
}

}  // namespace

const std::vector<std::string>& ReloadableFlags() {
  static const auto* const flags = new std::vector<std::string>{"log-level", "quota"};
  return *flags;
}

std::optional<CoordinatorFlags> ParseCoordinatorFlags(int argc, const char* const* argv,
                                                      int* exit_code) {
  CoordinatorFlags flags;
  Texts texts;
  texts.store = DefaultStorePath();
  CLI::App app("Plans the steps of long-context training jobs: one service for many jobs.",
               "sparsebalance-coordinator");
  // Of a flag given twice the last counts, so that scripts can append to a command line.
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.set_version_flag("--version", VersionText("sparsebalance-coordinator"));
  WithEnvironment(app.set_config("--config", "", "File with flags, one NAME=VALUE a line"));
  app.allow_config_extras(CLI::config_extras_mode::error);
  AddProgramFlags(app, flags, texts);
  AddSecurityFlags(app, flags);
  AddReplicaFlags(app, flags);
  AddServiceFlags(app, flags.server);

  const auto mistake = [&](const std::string& line) {
    std::cerr << "sparsebalance-coordinator: " << line << "\n";
    *exit_code = 2;
    return std::nullopt;
  };
  try {
    app.parse(ReversedArguments(app, argc, argv));
  } catch (const CLI::Success& e) {  // --help, --version
    *exit_code = app.exit(e);
    return std::nullopt;
  } catch (const CLI::Error& e) {
    return mistake(absl::StrCat(e.what(), " (see --help)"));
  }
  if (const absl::Status status = Understand(texts, flags); !status.ok()) {
    return mistake(std::string(status.message()));
  }
  NoteGiven(app, flags.given);
  return flags;
}

}  // namespace sparsebalance
