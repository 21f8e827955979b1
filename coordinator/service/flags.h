// The command line of sparsebalance-coordinator. Every flag can also be set by an environment
// variable (SPARSEBALANCE_COORDINATOR_ and its name in capitals) or in the file given by --config:
// a flag wins over the environment, the environment over the file.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "coordinator/service/server_config.h"

namespace CLI {
class App;
}

namespace sparsebalance {

struct CoordinatorFlags {
  ServerConfig server;
  std::string port_file;  // empty: none
  std::string log_format = "text";
  std::string log_level = "info";
  bool check_config = false;
  // By flag, every value that was given, as text: to tell what a reload would change.
  std::map<std::string, std::string> given;
};

// Nothing where the program has to end at once; `exit_code` then says how: 0 after --help or
// --version, 2 after a mistake, which has been explained in one line on stderr.
std::optional<CoordinatorFlags> ParseCoordinatorFlags(int argc, const char* const* argv,
                                                      int* exit_code);

// Flags whose values may change while the program runs, without the dashes.
const std::vector<std::string>& ReloadableFlags();

// Time-outs and limits (service_flags.cc). `config` outlives `app`.
void AddServiceFlags(CLI::App& app, ServerConfig& config);

}  // namespace sparsebalance
