#include "tests/fuzz/targets.h"

namespace sparsebalance::fuzz {

const std::vector<Target>& Targets() {
  static const auto* const targets =
      new std::vector<Target>{{"requests", &Requests, &RequestSeeds},
                              {"configuration", &Configuration, &ConfigurationSeeds},
                              {"state", &State, &StateSeeds}};
  return *targets;
}

}  // namespace sparsebalance::fuzz
