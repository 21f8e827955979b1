// What is fed with arbitrary bytes. A target returns for every input; whatever it finds ends the
// process: a crash, a sanitizer's report, a failed SB_FUZZ_CHECK.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#define SB_FUZZ_CHECK(condition, what)                                                    \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, std::string(what).c_str()); \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

namespace sparsebalance::fuzz {

// A row of requests to the service's logic, each a byte for the method, two for the length, and the
// message. A job that none of them names must not notice.
void Requests(std::string_view input);
// Configuration: the first byte says which parser gets the rest.
void Configuration(std::string_view input);
// What comes from a store or a backup: profiles, learned latency, coverage, journals.
void State(std::string_view input);

struct Target {
  const char* name;
  void (*run)(std::string_view input);
  std::vector<std::string> (*seeds)();  // inputs that go deep
};
const std::vector<Target>& Targets();

std::vector<std::string> RequestSeeds();
std::vector<std::string> ConfigurationSeeds();
std::vector<std::string> StateSeeds();

}  // namespace sparsebalance::fuzz
