// What CudaBackend does besides running ops.

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/test_util.h"
#include "kernels/cuda/backend/device_under_test.h"
#include "kernels/cuda/device/bf16.h"

namespace sparsebalance::kernels::cuda {
namespace {

using ::testing::HasSubstr;

std::unique_ptr<Backend> Make(const BackendOptions& options = {}) {
  auto backend = MakeBackendUnderTest(options);
  EXPECT_TRUE(backend.ok()) << backend.status();
  return *std::move(backend);
}

TEST(CudaBackendTest, FloatsComeBackFromBf16RoundedToNearest) {
  auto backend = Make({.activation_type = ElementType::kBfloat16});
  EXPECT_EQ(backend->activation_type(), ElementType::kBfloat16);
  const std::vector<float> x = {0.0F, 1.0F, 1.00390625F, 1.01171875F, -3.14159F, 1e30F};
  const DeviceTensor device = *backend->AllocateActivations(6);
  SB_ASSERT_OK(backend->CopyToDevice(x, device.span()));
  std::vector<float> back(6);
  SB_ASSERT_OK(backend->CopyToHost(device.span(), back.data()));
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(back[i], static_cast<float>(Bf16(x[i])));
  // Halfway between two neighbours: to the even one.
  EXPECT_EQ(back[2], 1.0F);
  EXPECT_EQ(back[3], 1.015625F);
}

TEST(CudaBackendTest, CopiesBetweenTypesConvert) {
  auto backend = Make();
  const std::vector<float> x = {1.0F, 2.7182818F, -0.3F};
  const DeviceArray<float> floats = ToDevice(backend.get(), x);
  const DeviceTensor rounded = *backend->AllocateTensor(3, ElementType::kBfloat16);
  const DeviceArray<float> back = *backend->Allocate<float>(3);
  SB_ASSERT_OK(backend->CopyDeviceToDevice(floats.span(), rounded.span()));
  SB_ASSERT_OK(backend->CopyDeviceToDevice(rounded.span(), back.span()));
  const std::vector<float> host = ToHost(backend.get(), back);
  for (size_t i = 0; i < x.size(); ++i) EXPECT_EQ(host[i], static_cast<float>(Bf16(x[i])));
}

TEST(CudaBackendTest, AViewOfAnotherTypeThanTheOpTakesIsNamed) {
  auto backend = Make();
  const DeviceArray<float> x = ToDevice(backend.get(), std::vector<float>{1, 2});
  const DeviceTensor rounded = *backend->AllocateTensor(2, ElementType::kBfloat16);
  const absl::Status status = backend->Add(x.span(), rounded.span(), x.span());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("Add: b is bf16, must be fp32"));
}

TEST(CudaBackendTest, MemoryIsCountedAndTheLimitIsKept) {
  auto backend = Make({.memory_limit_bytes = 1 << 20});
  const int64_t own = backend->memory().live_bytes;
  {
    const DeviceArray<float> x = *backend->Allocate<float>(1000);
    EXPECT_EQ(backend->memory().live_bytes, own + backend->AllocatedBytes(4000));
    const absl::Status status = backend->Allocate<float>(1 << 18).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_THAT(std::string(status.message()), HasSubstr("lower the tokens per micro-batch"));
  }
  EXPECT_EQ(backend->memory().live_bytes, own);
  EXPECT_EQ(backend->memory().peak_bytes, own + backend->AllocatedBytes(4000));
  backend->ResetPeakMemory();
  EXPECT_EQ(backend->memory().peak_bytes, own);
  SB_EXPECT_OK(backend->Allocate<float>((1 << 18) - 1000).status());
}

TEST(CudaBackendTest, PoisonedMemoryIsNotANumber) {
  auto backend = Make({.poison_allocations = true});
  const DeviceArray<float> x = *backend->Allocate<float>(5);
  for (const float value : ToHost(backend.get(), x)) EXPECT_NE(value, value);
}

TEST(CudaBackendTest, TheHostCannotMapDeviceMemory) {
  auto backend = Make();
  const DeviceArray<float> x = *backend->Allocate<float>(5);
  EXPECT_EQ(backend->MapHost(x.span()).status().code(), absl::StatusCode::kUnimplemented);
}

TEST(CudaBackendTest, EventsOfStreamsAreOrderedInTime) {
  auto backend = Make();
  const auto stream = *backend->CreateStream();
  const DeviceArray<float> x = ToDevice(backend.get(), std::vector<float>(1000, 1.0F));
  const auto before = *backend->RecordEvent();
  SB_ASSERT_OK(backend->Scale(2.0F, x.span()));
  const auto scaled = *backend->RecordEvent();
  SB_ASSERT_OK(backend->SetStream(stream.get()));
  SB_ASSERT_OK(backend->WaitEvent(*scaled));
  SB_ASSERT_OK(backend->Scale(3.0F, x.span()));
  const auto after = *backend->RecordEvent();
  SB_ASSERT_OK(backend->SetStream(nullptr));
  SB_ASSERT_OK(backend->WaitEvent(*after));
  EXPECT_GT(backend->Elapsed(*before, *after)->seconds, 0.0);
  EXPECT_EQ(ToHost(backend.get(), x), std::vector<float>(1000, 6.0F));
}

}  // namespace
}  // namespace sparsebalance::kernels::cuda
