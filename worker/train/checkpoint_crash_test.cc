// A process that dies while it writes a checkpoint, or a disk that fills up, never costs the last
// good one.
#include <signal.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/local_communicator.h"
#include "worker/train/checkpoint.h"
#include "worker/train/train_test_util.h"

namespace sparsebalance {
namespace {

using ::testing::HasSubstr;

constexpr size_t kFloats = 40'000;

void Ignore(const std::string&) {}

// A checkpoint whose every value is its step: what is loaded tells whether files are of one write.
absl::Status SaveStep(const std::string& folder, uint64_t step) {
  auto group = CreateLocalGroup(1);
  if (!group.ok()) return group.status();
  const std::vector<float> values(kFloats, static_cast<float>(step));
  const std::vector<TensorView> model = {{"w", {static_cast<int64_t>(kFloats)}, values}};
  const std::vector<TensorView> optimizer = {{"w.m", {static_cast<int64_t>(kFloats)}, values},
                                             {"w.v", {static_cast<int64_t>(kFloats)}, values}};
  TrainPosition position;
  position.next_step = step;
  position.optimizer_steps = step;
  return CheckpointStore(folder, /*kept=*/2, Ignore)
      .Save(*(*group)[0], position, model, optimizer, CoverageNotes());
}

// In a child process: checkpoints from `first` on, a byte into `pipe` after each.
[[noreturn]] void WriteForever(const std::string& folder, uint64_t first, int pipe) {
  for (uint64_t step = first;; ++step) {
    if (!SaveStep(folder, step).ok()) _exit(1);
    const char byte = 'x';
    if (write(pipe, &byte, 1) != 1) _exit(1);
  }
}

// Newest step, 0 where there is none; fails the test where it is not whole.
uint64_t NewestWholeStep(const std::string& folder) {
  const auto loaded = CheckpointStore(folder, 2, Ignore).LoadNewest();
  EXPECT_TRUE(loaded.ok()) << loaded.status();
  if (!loaded.ok() || !loaded->has_value()) return 0;
  const Checkpoint& checkpoint = **loaded;
  const auto step = static_cast<float>(checkpoint.position.next_step);
  const std::vector<int64_t> shape = {static_cast<int64_t>(kFloats)};
  for (const auto& [file, name] : {std::pair(&checkpoint.model, "w"),
                                   {&checkpoint.optimizer, "w.m"},
                                   {&checkpoint.optimizer, "w.v"}}) {
    const auto data = file->Get(name, shape);
    EXPECT_TRUE(data.ok()) << data.status();
    if (data.ok()) {
      EXPECT_THAT(*data, ::testing::Each(step)) << name;
    }
  }
  return checkpoint.position.next_step;
}

TEST(CheckpointCrashTest, AKillAtAnyPointLeavesTheLastGoodCheckpoint) {
  data_testing::TempFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  std::mt19937 random(20);
  uint64_t known = 0;  // the child has said that it was written
  for (int round = 0; round < 50; ++round) {
    std::array<int, 2> pipe_ends{};
    ASSERT_EQ(pipe(pipe_ends.data()), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      close(pipe_ends[0]);
      WriteForever(checkpoints, known + 1, pipe_ends[1]);
    }
    close(pipe_ends[1]);
    // After some checkpoints, anywhere within the next one: whatever the machine's speed.
    uint64_t said = known;
    for (uint64_t wait = random() % 3; wait > 0; --wait, ++said) {
      char byte = 0;
      ASSERT_EQ(read(pipe_ends[0], &byte, 1), 1) << "the child could not write, round " << round;
    }
    const auto until =
        std::chrono::steady_clock::now() + std::chrono::microseconds(random() % 20'000);
    while (std::chrono::steady_clock::now() < until) std::this_thread::yield();
    kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child could not write, round " << round;
    std::array<char, 64> bytes{};
    for (ssize_t n = 0; (n = read(pipe_ends[0], bytes.data(), bytes.size())) > 0;) {
      said += static_cast<uint64_t>(n);
    }
    close(pipe_ends[0]);

    const uint64_t newest = NewestWholeStep(checkpoints);
    EXPECT_GE(newest, said) << "round " << round;
    EXPECT_LE(newest, said + 1) << "round " << round;
    known = newest;
  }
  EXPECT_GT(known, 20u);
}

TEST(CheckpointCrashTest, AFullDiskIsAnErrorWithItsReasonAndLeavesTheLastGoodCheckpoint) {
  data_testing::TempFolder folder;
  const std::string checkpoints = folder / "checkpoints";
  ASSERT_TRUE(SaveStep(checkpoints, 1).ok());
  // A limit on the size of files stands for a full disk: write() fails part way through.
  for (const rlim_t room : {0, 100, 4096, 100'000, 300'000}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{room, room};
      if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(2);
      const absl::Status status = SaveStep(checkpoints, 2);
      const bool named = status.message().find("safetensors") != absl::string_view::npos &&
                         status.message().find("File too large") != absl::string_view::npos;
      _exit(!status.ok() && named ? 0 : 3);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "room for " << room << " bytes";
    EXPECT_EQ(NewestWholeStep(checkpoints), 1u);
  }
  // With room again, all goes on.
  EXPECT_TRUE(SaveStep(checkpoints, 2).ok());
  EXPECT_EQ(NewestWholeStep(checkpoints), 2u);
}

}  // namespace
}  // namespace sparsebalance
