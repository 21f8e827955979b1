#pragma once

// What nvcc has made of the kernels when it built sb_cuda, for tests. Skipped where the build has
// no CUDA.

#include <fstream>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

#ifndef SPARSEBALANCE_CUDA_OBJECTS
#define SPARSEBALANCE_CUDA_OBJECTS ""
#endif

namespace sparsebalance::kernels::cuda {

// The parameter is a source below kernels/cuda, without its ending: "attention/router".
class CudaObjectTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::string(SPARSEBALANCE_CUDA_OBJECTS).empty())
      GTEST_SKIP() << "built without CUDA, or for other GPUs";
  }

  // What ptxas -v has said.
  static std::string AssemblerReport() { return Read(".ptxas"); }
  // For "80" or "90".
  static std::string Ptx(const std::string& architecture) {
    return Read(".compute_" + architecture + ".ptx");
  }

 private:
  static std::string Read(const std::string& ending) {
    const std::string path =
        std::string(SPARSEBALANCE_CUDA_OBJECTS) + "/" + GetParam() + ".cu.o" + ending;
    const std::ifstream file(path);
    EXPECT_TRUE(file.good()) << path;
    std::ostringstream text;
    text << file.rdbuf();
    return text.str();
  }
};

}  // namespace sparsebalance::kernels::cuda
