#include "kernels/backend.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/test_util.h"
#include "kernels/create_backend.h"

namespace sparsebalance::kernels {
namespace {

using ::testing::HasSubstr;

TEST(BackendTest, AutoAndCpuGiveTheCpuBackend) {
  EXPECT_EQ((*CreateBackend("cpu"))->name(), "cpu");
  EXPECT_EQ((*CreateBackend("auto"))->name(), "cpu");
}

TEST(BackendTest, OtherNamesAndZeroThreadsAreErrorsThatSayWhatToUse) {
  const absl::Status cuda = CreateBackend("cuda").status();
  EXPECT_EQ(cuda.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(cuda.message()), HasSubstr("use \"cpu\""));
  const absl::Status unknown = CreateBackend("tpu").status();
  EXPECT_EQ(unknown.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(unknown.message()), HasSubstr("\"tpu\""));
  EXPECT_EQ(CreateBackend("cpu", {.threads = 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(BackendTest, DataSurvivesTheWayThroughTheDevice) {
  auto backend = TestBackend();
  const DeviceArray<float> a = ToDevice(backend.get(), std::vector<float>{1, 2, 3, 4});
  const DeviceArray<float> b = *backend->Allocate<float>(4);
  SB_ASSERT_OK(backend->CopyDeviceToDevice(a.span(), b.span()));
  EXPECT_EQ(ToHost(backend.get(), b), (std::vector<float>{1, 2, 3, 4}));
  (*backend->MapHost(b.span()))[2] = 9;
  EXPECT_EQ(ToHost(backend.get(), b), (std::vector<float>{1, 2, 9, 4}));
}

TEST(BackendTest, CopiesOfUnequalSizeAreRefused) {
  auto backend = TestBackend();
  const DeviceArray<float> a = *backend->Allocate<float>(4);
  const DeviceArray<float> b = *backend->Allocate<float>(3);
  EXPECT_EQ(backend->CopyDeviceToDevice(a.span(), b.span()).code(),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backend->CopyToDevice(std::vector<float>(2), b.span()).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(BackendTest, PeakMemoryIsTheMostThatWasAllocatedAtOnce) {
  auto backend = *CreateBackend("cpu");
  EXPECT_EQ(backend->memory().live_bytes, 0);
  {
    const DeviceArray<float> a = *backend->Allocate<float>(1 << 20);
    { const DeviceArray<float> b = *backend->Allocate<float>(1 << 20); }
    const DeviceArray<float> c = *backend->Allocate<float>(1 << 10);
    EXPECT_EQ(backend->memory().live_bytes, (4 << 20) + (4 << 10));
    EXPECT_EQ(backend->memory().peak_bytes, 8 << 20);
    backend->ResetPeakMemory();
    EXPECT_EQ(backend->memory().peak_bytes, (4 << 20) + (4 << 10));
  }
  EXPECT_EQ(backend->memory().live_bytes, 0);
}

TEST(BackendTest, AnArrayCanBeMovedAndIsReleasedOnce) {
  auto backend = *CreateBackend("cpu");
  DeviceArray<float> a = *backend->Allocate<float>(16);
  DeviceArray<float> b = std::move(a);
  EXPECT_EQ(b.size(), 16);
  b = *backend->Allocate<float>(32);
  EXPECT_EQ(backend->memory().live_bytes, 128);
  b = {};
  EXPECT_EQ(backend->memory().live_bytes, 0);
}

TEST(BackendTest, AnAllocationThatCannotBeMetIsResourceExhausted) {
  auto backend = *CreateBackend("cpu");
  EXPECT_EQ(backend->Allocate<float>(int64_t{1} << 50).status().code(),
            absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(backend->Allocate<float>(-1).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(BackendTest, EventsAreOrderedInTime) {
  auto backend = TestBackend();
  const auto stream = *backend->CreateStream();
  SB_ASSERT_OK(backend->SetStream(stream.get()));
  const auto begin = *backend->RecordEvent();
  const DeviceArray<float> x = *backend->Allocate<float>(1 << 16);
  SB_ASSERT_OK(backend->Fill(x.span(), 1.0F));
  SB_ASSERT_OK(backend->WaitEvent(*begin));
  const auto end = *backend->RecordEvent();
  SB_ASSERT_OK(backend->Synchronize());
  const EventInterval interval = *backend->Elapsed(*begin, *end);
  EXPECT_GT(interval.seconds, 0);
  EXPECT_GE(interval.cpu_seconds, 0);
}

// Every dense op on one input, for any number of threads.
std::vector<std::vector<float>> RunDenseOps(int threads) {
  auto backend = TestBackend(threads);
  Backend* b = backend.get();
  std::vector<std::vector<float>> out;
  const int64_t rows = 2500;
  const int64_t columns = 48;
  const DeviceArray<float> x = ToDevice(b, RandomTensor(rows * columns, 1));
  const DeviceArray<float> y = ToDevice(b, RandomTensor(rows * columns, 2));
  const DeviceArray<float> w = ToDevice(b, RandomTensor(columns * columns, 3));
  std::vector<int32_t> id_values(rows);
  for (int64_t i = 0; i < rows; ++i) id_values[i] = static_cast<int32_t>(i * i % columns);
  const DeviceArray<int32_t> ids = ToDevice(b, id_values);
  const DeviceArray<float> weights = ToDevice(b, std::vector<float>(rows, 1.0F));

  const DeviceArray<float> forward = *b->Allocate<float>(rows * columns);
  SB_EXPECT_OK(b->Matmul({rows, columns, columns}, x.span(), w.span(), {}, forward.span()));
  out.push_back(ToHost(b, forward));
  const DeviceArray<float> gradient = *b->Allocate<float>(columns * columns);
  SB_EXPECT_OK(b->Matmul({.m = columns, .n = columns, .k = rows, .transpose_a = true}, x.span(),
                         y.span(), {}, gradient.span()));
  out.push_back(ToHost(b, gradient));
  const DeviceArray<float> sums = ToDevice(b, std::vector<float>(columns, 0.0F));
  SB_EXPECT_OK(b->AddColumnSums(rows, columns, x.span(), sums.span()));
  out.push_back(ToHost(b, sums));
  const DeviceArray<float> r = *b->Allocate<float>(rows);
  SB_EXPECT_OK(b->RmsNormForward({rows, columns}, x.span(), sums.span(), forward.span(), r.span()));
  out.push_back(ToHost(b, forward));
  SB_EXPECT_OK(b->RmsNormBackward({rows, columns}, x.span(), sums.span(), r.span(), y.span(),
                                  forward.span(), gradient.span().Slice(0, columns)));
  out.push_back(ToHost(b, forward));
  out.push_back(ToHost(b, gradient));
  SB_EXPECT_OK(b->EmbeddingBackward(columns, ids.span(), x.span(), w.span()));
  out.push_back(ToHost(b, w));
  const DeviceArray<double> scalar = DoublesToDevice(b, std::vector<double>{0, 0});
  SB_EXPECT_OK(b->CrossEntropy({rows, columns, 1.0}, x.span(), ids.span(), weights.span(),
                               forward.span(), scalar.span()));
  out.push_back(ToHost(b, forward));
  SB_EXPECT_OK(b->AddSquaredNorm(x.span(), scalar.span().Slice(1, 1)));
  for (const double s : ToHost(b, scalar)) {
    out.push_back({static_cast<float>(s), static_cast<float>(s - static_cast<float>(s))});
  }
  return out;
}

TEST(BackendTest, DenseOpsGiveTheSameBitsForAnyNumberOfThreads) {
  const std::vector<std::vector<float>> expected = RunDenseOps(1);
  for (const int threads : {1, 2, 5}) {
    const std::vector<std::vector<float>> actual = RunDenseOps(threads);
    for (size_t i = 0; i < expected.size(); ++i) {
      EXPECT_TRUE(actual[i] == expected[i]) << "output " << i << ", " << threads << " threads";
    }
  }
}

}  // namespace
}  // namespace sparsebalance::kernels
