#include "coordinator/config/arguments.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdlib>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace sparsebalance {
namespace {

bool Given(const std::vector<std::string>& arguments, const CLI::Option& option) {
  return std::any_of(arguments.begin(), arguments.end(), [&](const std::string& argument) {
    return std::any_of(option.get_lnames().begin(), option.get_lnames().end(),
                       [&](const std::string& name) {
                         return argument == "--" + name ||
                                absl::StartsWith(argument, absl::StrCat("--", name, "="));
                       });
  });
}

void AddFromEnvironment(const CLI::App& app, const std::vector<std::string>& given,
                        std::vector<std::string>& out) {
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_envname().empty() || option->get_lnames().empty()) continue;
    const char* value =
        std::getenv(option->get_envname().c_str());  // NOLINT(concurrency-mt-unsafe)
    if (value == nullptr || *value == '\0' || Given(given, *option)) continue;
    const std::string flag = absl::StrCat("--", option->get_lnames().front(), "=");
    if (option->get_expected_max() <= 1) {
      out.push_back(flag + value);
      continue;
    }
    for (absl::string_view part : absl::StrSplit(value, ';', absl::SkipWhitespace())) {
      part = absl::StripAsciiWhitespace(part);
      out.push_back(absl::StrCat(flag, part));
    }
  }
  // Groups of options are subcommands without a name.
  for (const CLI::App* group : app.get_subcommands([](const CLI::App*) { return true; })) {
    if (group->get_name().empty()) AddFromEnvironment(*group, given, out);
  }
}

}  // namespace

std::vector<std::string> ReversedArguments(const CLI::App& app, int argc, const char* const* argv) {
  const std::vector<std::string> given(argv + std::min(argc, 1), argv + argc);
  std::vector<std::string> all;
  AddFromEnvironment(app, given, all);
  all.insert(all.end(), given.begin(), given.end());
  std::reverse(all.begin(), all.end());
  return all;
}

}  // namespace sparsebalance
