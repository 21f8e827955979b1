// nvcc takes the attention kernels, without a warning, and the assembler finds registers for them
// without spilling to memory. Nothing is run: this needs the compiler, not a GPU.

#include <cstdlib>
#include <string>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/child_process.h"

#ifndef SPARSEBALANCE_NVCC
#define SPARSEBALANCE_NVCC ""
#endif

namespace sparsebalance::kernels::cuda {
namespace {

class NvccTest : public testing::TestWithParam<std::tuple<std::string, std::string>> {};

INSTANTIATE_TEST_SUITE_P(Kernels, NvccTest,
                         testing::Combine(testing::Values("block_lists", "coverage", "router"),
                                          testing::Values("sm_80", "sm_90")),
                         [](const auto& test) {
                           return std::get<0>(test.param) + "_" + std::get<1>(test.param);
                         });

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + 1)) ++count;
  return count;
}

TEST_P(NvccTest, KernelsCompileWithoutSpills) {
  if (std::string(SPARSEBALANCE_NVCC).empty()) GTEST_SKIP() << "this build has found no nvcc";
  // Nothing of this program changes the environment.
  const char* source = std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  if (source == nullptr) GTEST_SKIP() << "SPARSEBALANCE_SOURCE_DIR is not set";
  const auto& [file, architecture] = GetParam();
  testing_support::ChildProcess nvcc(
      {SPARSEBALANCE_NVCC, "-std=c++20", "-Werror", "all-warnings", "-Xptxas", "-v",
       std::string("-I") + source, "-c", "-arch=" + architecture, "-o",
       testing::TempDir() + "/attention_" + file + "_" + architecture + ".o",
       std::string(source) + "/kernels/cuda/attention/" + file + ".cu"});
  const int code = nvcc.Wait(absl::Minutes(10));
  const std::string output = nvcc.Output();
  ASSERT_EQ(code, 0) << output;
  const int kernels = Count(output, "Compiling entry function");
  EXPECT_GT(kernels, 0) << output;
  EXPECT_EQ(Count(output, " 0 bytes spill stores, 0 bytes spill loads"), kernels) << output;
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
