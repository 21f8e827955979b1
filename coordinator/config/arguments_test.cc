#include "coordinator/config/arguments.h"

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;

// A program with a value, a switch and a list, each in flag, environment and file.
class Precedence : public testing::Test {
 protected:
  Precedence() : file_(testing::TempDir() + "arguments_" + std::to_string(getpid()) + ".toml") {
    app_.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
    app_.set_config("--config", "", "file");
    CLI::App* group = app_.add_option_group("Group");
    group->add_option("--size", size_)->envname("ARGUMENTS_TEST_SIZE");
    app_.add_flag("--loud", loud_)->envname("ARGUMENTS_TEST_LOUD");
    app_.add_option("--name", names_)
        ->envname("ARGUMENTS_TEST_NAME")
        ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  }
  ~Precedence() override {
    for (const char* name : {"ARGUMENTS_TEST_SIZE", "ARGUMENTS_TEST_LOUD", "ARGUMENTS_TEST_NAME"}) {
      unsetenv(name);  // NOLINT(concurrency-mt-unsafe): one thread
    }
    std::filesystem::remove(file_);
  }

  static void Environment(const char* name, const char* value) {
    setenv(name, value, 1);  // NOLINT(concurrency-mt-unsafe): one thread
  }

  void Parse(std::vector<std::string> flags, const std::string& file = "") {
    if (!file.empty()) {
      std::ofstream(file_) << file;
      flags.insert(flags.begin(), {"--config", file_});
    }
    std::vector<const char*> argv = {"program"};
    for (const std::string& flag : flags) argv.push_back(flag.c_str());
    app_.parse(ReversedArguments(app_, static_cast<int>(argv.size()), argv.data()));
  }

  const std::string file_;
  CLI::App app_;
  int size_ = 0;
  bool loud_ = false;
  std::vector<std::string> names_;
};

TEST_F(Precedence, AFlagWinsOverTheEnvironmentAndTheFile) {
  Environment("ARGUMENTS_TEST_SIZE", "2");
  Environment("ARGUMENTS_TEST_NAME", "b;c");
  Parse({"--size", "3", "--name=d"}, "size = 1\nname = [\"a\"]\n");
  EXPECT_EQ(size_, 3);
  EXPECT_THAT(names_, ElementsAre("d"));
}

TEST_F(Precedence, TheEnvironmentWinsOverTheFile) {
  Environment("ARGUMENTS_TEST_SIZE", "2");
  Environment("ARGUMENTS_TEST_LOUD", "true");
  Environment("ARGUMENTS_TEST_NAME", "b:x=1,y=2; c");
  Parse({}, "size = 1\nloud = false\nname = [\"a\"]\n");
  EXPECT_EQ(size_, 2);
  EXPECT_TRUE(loud_);
  EXPECT_THAT(names_, ElementsAre("b:x=1,y=2", "c"));
}

TEST_F(Precedence, TheFileHoldsWhereNothingElseIsSaid) {
  Parse({}, "size = 1\nloud = true\nname = [\"a\", \"b\"]\n");
  EXPECT_EQ(size_, 1);
  EXPECT_TRUE(loud_);
  EXPECT_THAT(names_, ElementsAre("a", "b"));
}

TEST_F(Precedence, AnEmptyVariableSaysNothing) {
  Environment("ARGUMENTS_TEST_SIZE", "");
  Parse({}, "size = 1\n");
  EXPECT_EQ(size_, 1);
}

}  // namespace
}  // namespace sparsebalance
