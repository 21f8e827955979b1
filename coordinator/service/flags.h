// The command line of sparsebalance-coordinator. Every flag can also be set by an environment
// variable (SPARSEBALANCE_COORDINATOR_ and its name in capitals) or in the file given by --config.
#pragma once

#include <optional>
#include <string>

#include "coordinator/service/coordinator_server.h"

namespace sparsebalance {

struct CoordinatorFlags {
  ServerConfig server;
  std::string port_file;  // empty: none
  std::string log_format = "text";
  std::string log_level = "info";
};

// Nothing where the program has to end at once; `exit_code` then says how: 0 after --help or
// --version, 2 after a mistake, which has been explained in one line on stderr.
std::optional<CoordinatorFlags> ParseCoordinatorFlags(int argc, char** argv, int* exit_code);

}  // namespace sparsebalance
