#pragma once

// Compiling a kernel's source with nvcc in a test. Nothing is run: this needs the compiler, not a
// GPU. The test is skipped where there is none.

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "gtest/gtest.h"
#include "tests/support/child_process.h"

#ifndef SPARSEBALANCE_NVCC
#define SPARSEBALANCE_NVCC ""
#endif

namespace sparsebalance::kernels::emulation {

// The parameter is an architecture, or a source.
class NvccTest : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (std::string(SPARSEBALANCE_NVCC).empty()) GTEST_SKIP() << "this build has found no nvcc";
    if (SourceDir() == nullptr) GTEST_SKIP() << "SPARSEBALANCE_SOURCE_DIR is not set";
  }

  struct Result {
    bool ok = false;     // there was not even a warning
    std::string output;  // of the compiler
  };
  // Compiles `source`, a path from the repository's root, with these arguments besides. A failure
  // fails the test.
  static Result Compile(const std::string& source, const std::vector<std::string>& arguments) {
    const std::string root = SourceDir();
    std::vector<std::string> argv = {SPARSEBALANCE_NVCC, "-std=c++20", "-Werror", "all-warnings",
                                     "-I" + root};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    argv.push_back(root + "/" + source);
    testing_support::ChildProcess nvcc(argv);
    const int code = nvcc.Wait(absl::Minutes(10));
    Result result{code == 0, nvcc.Output()};
    if (!result.ok) {
      ADD_FAILURE() << "nvcc exits with " << code << " for " << source << ":\n" << result.output;
    }
    return result;
  }

 private:
  static const char* SourceDir() {
    // Nothing of this program changes the environment.
    return std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  }
};

}  // namespace sparsebalance::kernels::emulation
