// The trainer on the CUDA backend, whose device is emulated; and how a worker chooses its device.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "kernels/create_backend.h"
#include "kernels/cuda/backend/emulated_platform.h"
#include "worker/train/device_choice.h"
#include "worker/train/train_test_util.h"

namespace sparsebalance {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class CudaTrainerTest : public ::testing::Test {
 protected:
  CudaTrainerTest() {
    folder_ = ::testing::TempDir() + "/cuda_trainer_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(folder_);
    std::filesystem::create_directories(folder_);
    train_testing::WriteDataset(folder_ + "/data", train_testing::kLengths, 1, /*masked=*/true);
    HaveGpus(2);
  }
  ~CudaTrainerTest() override {
    kernels::RegisterCuda({});
    std::filesystem::remove_all(folder_);
  }

  // As if this machine had so many GPUs.
  static void HaveGpus(absl::StatusOr<int> count) {
    kernels::RegisterCuda({.count_devices = [count] { return count; },
                           .create =
                               [](const kernels::BackendOptions& options) {
                                 return kernels::cuda::CreateEmulatedBackend(options);
                               }});
  }

  TrainOptions Options(const std::string& backend, uint32_t ranks) {
    TrainOptions options = train_testing::TinyOptions(folder_ + "/data", ranks);
    // The smallest heads that its attention has.
    options.model.hidden_size = 32;
    options.model.head_dim = 32;
    options.backend = backend;
    options.precision = "fp32";
    options.global_batch_size = 4;
    options.steps = 3;
    return options;
  }

  std::vector<train_testing::RankResult> Train(const TrainOptions& options, bool resume = false) {
    train_testing::RunSetup setup;
    setup.options.assign(options.parallelism.data(), options);
    setup.resume = resume;
    std::vector<train_testing::RankResult> results = train_testing::RunRanks(setup);
    for (const train_testing::RankResult& rank : results)
      EXPECT_TRUE(rank.status.ok()) << rank.status;
    return results;
  }

  static void ExpectSameSteps(const train_testing::RankResult& actual,
                              const train_testing::RankResult& expected) {
    ASSERT_EQ(actual.records.size(), expected.records.size());
    for (size_t i = 0; i < expected.records.size(); ++i) {
      EXPECT_EQ(actual.records[i].step, expected.records[i].step);
      EXPECT_NEAR(actual.records[i].loss() / expected.records[i].loss(), 1.0, 1e-5);
      EXPECT_NEAR(actual.records[i].gradient_norm / expected.records[i].gradient_norm, 1.0, 1e-3);
      EXPECT_EQ(actual.records[i].tokens(), expected.records[i].tokens());
    }
  }

  std::string folder_;
};

TEST_F(CudaTrainerTest, TwoGpusTrainAsTwoCpusDo) {
  const auto cpu = Train(Options("cpu", 2));
  const auto gpu = Train(Options("cuda", 2));
  ExpectSameSteps(gpu[0], cpu[0]);
  // One sum for both.
  EXPECT_EQ(gpu[0].parameters, gpu[1].parameters);
  for (const StepRecord& record : gpu[0].records) {
    double least = 1e9;
    for (const RankStepStats& rank : record.ranks) {
      EXPECT_GE(rank.idle_ms, 0);
      EXPECT_GT(rank.compute_ms, 0);
      EXPECT_GT(rank.peak_memory_bytes, 0);
      least = std::min(least, rank.idle_ms);
    }
    EXPECT_EQ(least, 0) << "the slowest rank waits for nobody";
  }
}

TEST_F(CudaTrainerTest, ARunGoesOnOnAnotherKindOfDevice) {
  TrainOptions all = Options("cpu", 1);
  all.steps = 4;
  const auto expected = Train(all);
  TrainOptions first = all;
  first.steps = 2;
  first.checkpoint_dir = folder_ + "/checkpoints";
  Train(first);
  TrainOptions second = Options("cuda", 1);
  second.steps = 4;
  second.checkpoint_dir = first.checkpoint_dir;
  auto rest = Train(second, /*resume=*/true);
  ASSERT_EQ(rest[0].records.size(), 2U);
  EXPECT_NEAR(rest[0].records[0].loss() / expected[0].records[2].loss(), 1.0, 1e-5);
  EXPECT_NEAR(rest[0].records[1].loss() / expected[0].records[3].loss(), 1.0, 1e-5);
}

TEST_F(CudaTrainerTest, AutoTakesGpusInBf16AndSaysWhy) {
  TrainOptions options = Options("auto", 2);
  options.precision = "auto";
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  ASSERT_TRUE(ChooseDevice(options, 2, log).ok());
  EXPECT_EQ(options.backend, "cuda");
  EXPECT_EQ(options.precision, "bf16");
  EXPECT_THAT(lines, ElementsAre("backend cuda on emulated GPU, bf16 (auto: 2 GPUs can be used)"));
  EXPECT_EQ(DeviceClass(options), "emulated GPU, bf16");
}

TEST_F(CudaTrainerTest, AutoTakesTheCpuWhereThereIsNoGpuAndSaysWhy) {
  HaveGpus(absl::FailedPreconditionError("no GPU can be used here: no device"));
  TrainOptions options = Options("auto", 2);
  options.precision = "auto";
  std::vector<std::string> lines;
  const auto log = [&](const std::string& line) { lines.push_back(line); };
  ASSERT_TRUE(ChooseDevice(options, 2, log).ok());
  EXPECT_EQ(options.backend, "cpu");
  EXPECT_EQ(options.precision, "fp32");
  EXPECT_THAT(lines, ElementsAre("backend cpu, fp32 (auto: no GPU can be used here: no device)"));
}

TEST_F(CudaTrainerTest, WhatCannotBeHadIsRefused) {
  const auto choose = [&](const std::string& backend, const std::string& precision, size_t ranks) {
    TrainOptions options = Options(backend, 1);
    options.precision = precision;
    return ChooseDevice(options, ranks, [](const std::string& /*line*/) {});
  };
  EXPECT_THAT(std::string(choose("cuda", "auto", 3).message()), HasSubstr("3 ranks and 2 GPUs"));
  EXPECT_THAT(std::string(choose("cpu", "bf16", 1).message()),
              HasSubstr("--precision bf16 needs a GPU"));
  EXPECT_THAT(std::string(choose("cuda", "fp8", 1).message()), HasSubstr("--precision fp8"));
  TrainOptions nccl = Options("cpu", 1);
  nccl.communicator = "nccl";
  EXPECT_THAT(std::string(ChooseDevice(nccl, 1, [](const std::string& /*line*/) {}).message()),
              HasSubstr("--communicator nccl works between GPUs"));
  EXPECT_THAT(std::string(choose("tpu", "auto", 1).message()), HasSubstr("\"tpu\" is unknown"));
  HaveGpus(absl::FailedPreconditionError("no GPU can be used here: no device"));
  const absl::Status none = choose("cuda", "auto", 1);
  EXPECT_EQ(none.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(none.message()), HasSubstr("nvidia-smi"));
  kernels::RegisterCuda({});
  EXPECT_THAT(std::string(choose("cuda", "auto", 1).message()),
              HasSubstr("this build has no CUDA kernels"));
}

}  // namespace
}  // namespace sparsebalance
