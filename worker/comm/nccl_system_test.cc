// The real libraries: they link and load everywhere; where there is a GPU, one rank works with it.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/nccl_communicator.h"

namespace sparsebalance {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

bool HasGpu(NcclApi& api) {
  int count = 0;
  return api.DeviceCount(&count).ok() && count > 0;
}

absl::StatusOr<std::vector<std::string>> NoExchange(const std::string&) {
  ADD_FAILURE() << "one rank has nobody to exchange blobs with";
  return absl::InternalError("called");
}

class NcclSystemTest : public ::testing::Test {
 protected:
  void SetUp() override {
    absl::StatusOr<std::shared_ptr<NcclApi>> api = SystemNcclApi();
    if (absl::IsUnimplemented(api.status())) GTEST_SKIP() << api.status();
    ASSERT_TRUE(api.ok()) << api.status();
    api_ = *std::move(api);
  }

  std::shared_ptr<NcclApi> api_;
};

TEST_F(NcclSystemTest, LibraryTellsItsVersion) {
  int version = 0;
  ASSERT_TRUE(api_->Version(&version).ok());
  RecordProperty("nccl_version", version);
  // The first with all that the configuration of a communicator has here.
  EXPECT_GE(version, 21400);
}

TEST_F(NcclSystemTest, WithoutAGpuConnectingFailsAtOnceAndSaysWhatToDo) {
  if (HasGpu(*api_)) GTEST_SKIP() << "this machine has a GPU";
  const absl::Status status = NcclCommunicator::Connect(api_, 0, 1, {}, NoExchange).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("rank 0: NCCL needs a GPU"), HasSubstr("CUDA error"),
                    HasSubstr("nvidia-smi"), HasSubstr("Gloo")));
}

TEST_F(NcclSystemTest, WithAGpuOneRankReducesInDeviceAndInHostMemory) {
  if (!HasGpu(*api_)) GTEST_SKIP() << "this machine has no GPU";
  auto comm = NcclCommunicator::Connect(api_, 0, 1, {}, NoExchange);
  ASSERT_TRUE(comm.ok()) << comm.status();

  constexpr size_t kCount = 10'000'019;
  void* stream = nullptr;
  void* data = nullptr;
  ASSERT_TRUE(api_->CreateStream(&stream).ok());
  ASSERT_TRUE(api_->AllocateDevice(&data, kCount * sizeof(float)).ok());
  std::vector<float> values(kCount, 3.5F);
  ASSERT_TRUE(api_->CopyAsync(data, values.data(), kCount * sizeof(float), stream).ok());
  EXPECT_EQ((*comm)->AllReduceSum(FloatBuffer::Device(static_cast<float*>(data), kCount, stream)),
            absl::OkStatus());
  std::vector<float> back(kCount);
  ASSERT_TRUE(api_->CopyAsync(back.data(), data, kCount * sizeof(float), stream).ok());
  EXPECT_EQ((*comm)->Wait(), absl::OkStatus());
  // Waits for the copy too, which Wait() knows nothing of.
  void* done = nullptr;
  ASSERT_TRUE(api_->CreateEvent(&done).ok());
  ASSERT_TRUE(api_->RecordEvent(done, stream).ok());
  for (bool over = false; !over;) ASSERT_TRUE(api_->QueryEvent(done, &over).ok());
  EXPECT_THAT(back, Each(3.5F));

  EXPECT_EQ((*comm)->AllReduceSum(std::span<float>(values)), absl::OkStatus());
  EXPECT_THAT(values, Each(3.5F));
  std::vector<int64_t> counts = {7, -7};
  EXPECT_EQ((*comm)->AllReduceMaxInt64(counts), absl::OkStatus());
  EXPECT_THAT(counts, testing::ElementsAre(7, -7));
  EXPECT_EQ((*comm)->Barrier(), absl::OkStatus());
  (void)api_->DestroyEvent(done);
  (void)api_->FreeDevice(data);
  (void)api_->DestroyStream(stream);
}

}  // namespace
}  // namespace sparsebalance
