// Every target over its seeds, over what was found before, and over seeds that were damaged in ways
// that are the same in each run. The search itself is run.sh's.

#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>

#include "gtest/gtest.h"
#include "spdlog/spdlog.h"
#include "tests/fuzz/targets.h"

namespace sparsebalance::fuzz {
namespace {

// A few of the changes that a fuzzer makes.
std::string Damaged(std::string input, std::mt19937_64& random, const std::string& other) {
  const auto draw = [&](size_t below) {
    return std::uniform_int_distribution<size_t>(0, below - 1)(random);
  };
  for (size_t changes = draw(4) + 1; changes > 0 && !input.empty(); --changes) {
    const size_t at = draw(input.size());
    switch (draw(6)) {
      case 0:
        input[at] = static_cast<char>(draw(256));
        break;
      case 1:
        input[at] = static_cast<char>(input[at] ^ (1 << draw(8)));
        break;
      case 2:
        input.erase(at, draw(16) + 1);
        break;
      case 3:
        input.insert(at, draw(16) + 1, static_cast<char>(draw(256)));
        break;
      case 4:
        input.insert(at, other.substr(draw(other.size()), draw(64) + 1));
        break;
      default:
        input.resize(at);
    }
  }
  return input;
}

class Corpus : public testing::TestWithParam<Target> {
 protected:
  void SetUp() override { spdlog::default_logger()->set_level(spdlog::level::off); }
  void TearDown() override { spdlog::default_logger()->set_level(spdlog::level::info); }
};

TEST_P(Corpus, SeedsAreTaken) {
  for (const std::string& seed : GetParam().seeds()) GetParam().run(seed);
}

TEST_P(Corpus, WhatWasFoundStaysMended) {
  const char* source = std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  ASSERT_NE(source, nullptr);
  const std::filesystem::path folder =
      std::filesystem::path(source) / "tests/fuzz/regressions" / GetParam().name;
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "nothing has been found yet";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::ifstream in(entry.path(), std::ios::binary);
    GetParam().run(std::string(std::istreambuf_iterator<char>(in), {}));
  }
}

TEST_P(Corpus, DamagedSeedsDoNoHarm) {
  constexpr int kInputs = 1500;
  const std::vector<std::string> seeds = GetParam().seeds();
  std::mt19937_64 random(20240607);
  for (int i = 0; i < kInputs; ++i) {
    const size_t seed = random() % seeds.size();
    GetParam().run(Damaged(seeds[seed], random, seeds[random() % seeds.size()]));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Corpus, testing::ValuesIn(Targets()),
                         [](const testing::TestParamInfo<Target>& info) {
                           return info.param.name;
                         });

}  // namespace
}  // namespace sparsebalance::fuzz
