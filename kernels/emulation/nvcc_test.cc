// nvcc takes the same kernels as the emulation and makes the instructions of them that are meant.
// Nothing is run: this needs the compiler, not a GPU.

#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

#ifndef SPARSEBALANCE_NVCC
#define SPARSEBALANCE_NVCC ""
#endif

namespace sparsebalance::kernels::emulation {
namespace {

using testing::HasSubstr;

const char* SourceDir() {
  // Nothing of this program changes the environment.
  return std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
}

class NvccTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::string(SPARSEBALANCE_NVCC).empty()) GTEST_SKIP() << "this build has found no nvcc";
    if (SourceDir() == nullptr) GTEST_SKIP() << "SPARSEBALANCE_SOURCE_DIR is not set";
  }
  // Compiles sample_kernels.cu with these arguments besides; true if there was not even a warning.
  static bool Compile(const std::vector<std::string>& arguments) {
    const std::string source = SourceDir();
    std::vector<std::string> argv = {SPARSEBALANCE_NVCC, "-std=c++20", "-Werror", "all-warnings",
                                     "-I" + source};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    argv.push_back(source + "/kernels/emulation/sample_kernels.cu");
    testing_support::ChildProcess nvcc(argv);
    const int code = nvcc.Wait(absl::Minutes(10));
    if (code != 0) ADD_FAILURE() << "nvcc exits with " << code << ":\n" << nvcc.Output();
    return code == 0;
  }
};

INSTANTIATE_TEST_SUITE_P(Architectures, NvccTest, testing::Values("sm_80", "sm_90"),
                         [](const auto& test) { return test.param; });

TEST_P(NvccTest, EveryWrapperBecomesItsInstruction) {
  const std::string path = testing::TempDir() + "/sample_kernels_" + GetParam() + ".ptx";
  ASSERT_TRUE(Compile({"--ptx", "-arch=" + GetParam(), "-o", path}));
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  const std::string ptx = text.str();
  ASSERT_THAT(ptx, HasSubstr(".target " + GetParam()));
  for (const char* instruction : {
           "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
           "ldmatrix.sync.aligned.m8n8.x1.shared.b16",
           "ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16",
           "ldmatrix.sync.aligned.m8n8.x2.shared.b16",
           "ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16",
           "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
           "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16",
           "cp.async.cg.shared.global",
           "cp.async.ca.shared.global",
           "cp.async.commit_group",
           "cp.async.wait_group 1",
           "cp.async.wait_all",
           "cvt.rn.bf16.f32",
           "cvt.rn.bf16x2.f32",
           "shfl.sync.idx",
           "shfl.sync.up",
           "shfl.sync.down",
           "shfl.sync.bfly",
           "vote.sync.ballot",
           "vote.sync.any",
           "vote.sync.all",
           "bar.warp.sync",
           "st.global.v2.f32",
           "ld.global.v4",
       }) {
    EXPECT_THAT(ptx, HasSubstr(instruction)) << "for " << GetParam();
  }
}

TEST_P(NvccTest, TheAssemblerAndTheHostCompilerTakeItToo) {
  Compile({"-c", "-arch=" + GetParam(), "-o",
           testing::TempDir() + "/sample_kernels_" + GetParam() + ".o"});
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
