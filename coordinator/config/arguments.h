// One precedence for all programs: a flag wins over the environment, the environment over the file.
//
//   CLI::App app; ... app.set_config("--config"); option->envname("SPARSEBALANCE_...") ...
//   app.parse(ReversedArguments(app, argc, argv));
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace sparsebalance {

// The command line with the environment's values put before it as flags, in the order that
// CLI::App::parse(std::vector) wants: last first. (The library itself lets the file win over the
// environment.) Of an option that may be given several times, values in the environment are parted
// by ';', and a flag replaces all of them.
std::vector<std::string> ReversedArguments(const CLI::App& app, int argc, const char* const* argv);

}  // namespace sparsebalance
