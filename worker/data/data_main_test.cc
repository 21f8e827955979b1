// The program as a user runs it: exit status and what is printed where.
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/data/data_test_util.h"

namespace sparsebalance::data {
namespace {

using ::sparsebalance::data_testing::ReadFile;
using ::sparsebalance::data_testing::TempFolder;
using ::sparsebalance::data_testing::WriteFile;
using ::testing::HasSubstr;

class DataMainTest : public ::testing::Test {
 protected:
  // Runs the program with `arguments`, which may use $D for the test's folder.
  int Run(const std::string& arguments) {
    const std::string command = "D='" + folder_.path() + "'; '" SPARSEBALANCE_DATA_PROGRAM "' " +
                                arguments + " >\"$D/stdout\" 2>\"$D/stderr\"";
    const int status = std::system(command.c_str());  // NOLINT(concurrency-mt-unsafe): one thread
    out_ = ReadFile(folder_ / "stdout");
    err_ = ReadFile(folder_ / "stderr");
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  }

  TempFolder folder_;
  std::string out_;
  std::string err_;
};

TEST_F(DataMainTest, PacksAndInspects) {
  WriteFile(folder_ / "a.txt", std::string(60, 'a'));
  WriteFile(folder_ / "b.jsonl", "{\"text\": \"b\"}\n");
  ASSERT_EQ(Run("pack --input $D/a.txt $D/b.jsonl --output $D/set --max-tokens 32 "
                "--on-too-long split --format auto --supervise-roles assistant,tool"),
            0)
      << err_;
  EXPECT_THAT(out_, HasSubstr("packed 2 documents from 2 files into 3 sequences of 65 tokens"));
  EXPECT_THAT(out_, HasSubstr("split 1 documents"));
  ASSERT_EQ(Run("inspect $D/set --verify"), 0) << err_;
  EXPECT_THAT(out_, HasSubstr("sequences    3 in 2 documents"));
  ASSERT_EQ(Run("inspect $D/set --format json"), 0) << err_;
  EXPECT_EQ(nlohmann::json::parse(out_)["tokens"], 65);
}

TEST_F(DataMainTest, MakesTheFolderOfItsOutput) {
  WriteFile(folder_ / "a.txt", "text");
  ASSERT_EQ(Run("pack --input $D/a.txt --output $D/new/folder/set"), 0) << err_;
  ASSERT_EQ(Run("inspect $D/new/folder/set --verify"), 0) << err_;
  // A file stands where the folder should be.
  EXPECT_EQ(Run("pack --input $D/a.txt --output $D/a.txt/set"), 1);
  EXPECT_THAT(err_, HasSubstr("a.txt/set"));
}

TEST_F(DataMainTest, InputErrorsExitWithOne) {
  WriteFile(folder_ / "a.jsonl", "{");
  EXPECT_EQ(Run("pack --input $D/a.jsonl --output $D/set"), 1);
  EXPECT_THAT(err_, HasSubstr("a.jsonl: line 1, column "));
  EXPECT_EQ(out_, "");
  EXPECT_EQ(Run("inspect $D/none"), 1);
  EXPECT_THAT(err_, HasSubstr("none.idx"));
}

TEST_F(DataMainTest, UsageErrorsExitWithTwoAndHelpWithZero) {
  EXPECT_EQ(Run(""), 2);
  EXPECT_EQ(Run("pack --output $D/set"), 2);
  EXPECT_THAT(err_, HasSubstr("--input"));
  EXPECT_EQ(Run("pack --input $D --output $D/set --format xml"), 2);
  EXPECT_EQ(Run("pack --input $D --output $D/set --on-too-long drop"), 2);
  EXPECT_EQ(Run("pack --input $D --output $D/set --max-tokens 5"), 2);
  EXPECT_EQ(Run("inspect $D/set --format yaml"), 2);
  EXPECT_EQ(Run("pack --help"), 0);
  EXPECT_THAT(out_, HasSubstr("--max-tokens"));
}

}  // namespace
}  // namespace sparsebalance::data
