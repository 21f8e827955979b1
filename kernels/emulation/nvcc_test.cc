// nvcc takes the same kernels as the emulation and makes the instructions of them that are meant.
// Nothing is run: this needs the compiler, not a GPU.

#include <fstream>
#include <sstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/emulation/nvcc_test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

using testing::HasSubstr;

constexpr char kSource[] = "kernels/emulation/sample_kernels.cu";

INSTANTIATE_TEST_SUITE_P(Architectures, NvccTest, testing::Values("sm_80", "sm_90"),
                         [](const auto& test) { return test.param; });

TEST_P(NvccTest, EveryWrapperBecomesItsInstruction) {
  const std::string path = testing::TempDir() + "/sample_kernels_" + GetParam() + ".ptx";
  ASSERT_TRUE(Compile(kSource, {"--ptx", "-arch=" + GetParam(), "-o", path}).ok);
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
  Compile(kSource, {"-c", "-arch=" + GetParam(), "-o",
                    testing::TempDir() + "/sample_kernels_" + GetParam() + ".o"});
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
