// nvcc takes the kernels for both architectures, and none of them needs more registers than there
// are: what ptxas spills goes through memory.

#include <regex>
#include <string>

#include "gtest/gtest.h"
#include "kernels/emulation/nvcc_test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

class DenseNvccTest : public NvccTest {};

INSTANTIATE_TEST_SUITE_P(Sources, DenseNvccTest,
                         testing::Values("adamw", "cross_entropy", "elementwise", "embedding",
                                         "norm", "reduce", "rope", "swiglu"),
                         [](const auto& test) { return test.param; });

TEST_P(DenseNvccTest, CompilesForBothArchitecturesWithoutSpills) {
  // One call for both, so that the host's part is compiled once.
  const Result result = Compile(
      "kernels/cuda/dense/" + GetParam() + ".cu",
      {"-c", "-gencode", "arch=compute_80,code=sm_80", "-gencode", "arch=compute_90,code=sm_90",
       "-Xptxas", "-v", "-o", testing::TempDir() + "/dense_" + GetParam() + ".o"});
  ASSERT_TRUE(result.ok);
  const std::regex spills("([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads");
  int kernels = 0;
  for (std::sregex_iterator it(result.output.begin(), result.output.end(), spills), end; it != end;
       ++it) {
    ++kernels;
    EXPECT_TRUE((*it)[1] == "0" && (*it)[2] == "0") << it->str() << " in:\n" << result.output;
  }
  EXPECT_GE(kernels, 4) << "ptxas has not said what it spills:\n" << result.output;
  for (const char* architecture : {"sm_80", "sm_90"}) {
    EXPECT_NE(result.output.find("for '" + std::string(architecture) + "'"), std::string::npos)
        << result.output;
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
