#pragma once

// What nvcc has made of the kernels when it built sb_cuda, for tests. Skipped where the build has
// no CUDA.

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

#ifndef SPARSEBALANCE_CUDA_OBJECTS
#define SPARSEBALANCE_CUDA_OBJECTS ""
#define SPARSEBALANCE_CUOBJDUMP ""
#endif

namespace sparsebalance::kernels::cuda {

// The parameter is a source below kernels/cuda, without its ending: "attention/router".
class CudaObjectTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::string(SPARSEBALANCE_CUDA_OBJECTS).empty()) GTEST_SKIP() << "built without CUDA, or for other GPUs";
  }

  static std::string ObjectPath() {
    return std::string(SPARSEBALANCE_CUDA_OBJECTS) + "/" + GetParam() + ".cu.o";
  }
  // What ptxas -v has said.
  static std::string AssemblerReport() {
    std::ostringstream text;
    text << std::ifstream(ObjectPath() + ".ptxas").rdbuf();
    return text.str();
  }
  // Of cuobjdump.
  static std::string Dump(const std::vector<std::string>& arguments) {
    std::vector<std::string> argv = {SPARSEBALANCE_CUOBJDUMP};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    argv.push_back(ObjectPath());
    testing_support::ChildProcess cuobjdump(argv);
    EXPECT_EQ(cuobjdump.Wait(absl::Minutes(5)), 0) << cuobjdump.Output();
    return cuobjdump.Output();
  }
};

}  // namespace sparsebalance::kernels::cuda
