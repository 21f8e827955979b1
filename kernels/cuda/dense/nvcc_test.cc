// None of the kernels needs more registers than there are, on either architecture: what ptxas
// spills goes through memory.

#include <regex>
#include <string>

#include "gtest/gtest.h"
#include "kernels/cuda/device/objects_test_util.h"

namespace sparsebalance::kernels::cuda {
namespace {

using DenseNvccTest = CudaObjectTest;

INSTANTIATE_TEST_SUITE_P(Sources, DenseNvccTest,
                         testing::Values("dense/adamw", "dense/cross_entropy", "dense/elementwise",
                                         "dense/embedding", "dense/norm", "dense/reduce",
                                         "dense/rope", "dense/swiglu"),
                         [](const auto& test) { return test.param.substr(6); });

TEST_P(DenseNvccTest, CompilesForBothArchitecturesWithoutSpills) {
  const std::string report = AssemblerReport();
  const std::regex spills("([0-9]+) bytes spill stores, ([0-9]+) bytes spill loads");
  int kernels = 0;
  for (std::sregex_iterator it(report.begin(), report.end(), spills), end; it != end; ++it) {
    ++kernels;
    EXPECT_TRUE((*it)[1] == "0" && (*it)[2] == "0") << it->str() << " in:\n" << report;
  }
  EXPECT_GE(kernels, 4) << "ptxas has not said what it spills:\n" << report;
  for (const char* architecture : {"sm_80", "sm_90"}) {
    EXPECT_NE(report.find("for '" + std::string(architecture) + "'"), std::string::npos) << report;
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
