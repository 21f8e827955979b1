// One program a target, built with clang: see run.sh.
#include <cstring>

#include "spdlog/spdlog.h"
#include "tests/fuzz/targets.h"

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  spdlog::set_level(spdlog::level::off);
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto* const target = [] {
    for (const auto& candidate : sparsebalance::fuzz::Targets()) {
      if (std::strcmp(candidate.name, SPARSEBALANCE_FUZZ_TARGET) == 0) return &candidate;
    }
    std::abort();
  }();
  target->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
