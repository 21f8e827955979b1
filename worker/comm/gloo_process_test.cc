// Ranks as processes: one is killed, and the others must say so instead of waiting for ever.
// The program starts itself again for each rank; blobs and results travel through pipes.
#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/comm/gloo_communicator.h"

extern char** environ;

namespace sparsebalance {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

bool WriteAll(int fd, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  std::string message(reinterpret_cast<const char*>(&size), sizeof(size));
  message += text;
  for (size_t done = 0; done < message.size();) {
    const ssize_t n = write(fd, message.data() + done, message.size() - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ReadBytes(int fd, void* data, size_t bytes) {
  for (size_t done = 0; done < bytes;) {
    const ssize_t n = read(fd, static_cast<char*>(data) + done, bytes - done);
    if (n <= 0) return false;
    done += static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, std::string& text) {
  uint32_t size = 0;
  if (!ReadBytes(fd, &size, sizeof(size))) return false;
  text.resize(size);
  return ReadBytes(fd, text.data(), size);
}

// The life of a rank: connect, one all-reduce, report, then all-reduce until a peer is lost.
int RankMain(int rank, int size) {
  GlooOptions options;
  options.timeout = absl::Seconds(60);
  auto comm = GlooCommunicator::Connect(
      rank, size, options, [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
        if (!WriteAll(STDOUT_FILENO, own)) return absl::UnavailableError("parent is gone");
        std::vector<std::string> blobs(size);
        for (std::string& blob : blobs) {
          if (!ReadAll(STDIN_FILENO, blob)) return absl::UnavailableError("parent is gone");
        }
        return blobs;
      });
  if (!comm.ok()) {
    WriteAll(STDOUT_FILENO, comm.status().ToString());
    return 1;
  }
  std::vector<float> values(3000000);
  for (bool first = true;; first = false) {
    std::fill(values.begin(), values.end(), static_cast<float>(rank + 1));
    const absl::Status status = (*comm)->AllReduceSum(std::span<float>(values));
    if (!status.ok()) {
      WriteAll(STDOUT_FILENO, status.ToString());
      return 0;
    }
    if (first && !WriteAll(STDOUT_FILENO, absl::StrCat(values.front(), " ", values.back()))) {
      return 1;
    }
  }
}

struct Process {
  pid_t pid = -1;
  int to = -1;
  int from = -1;
};

Process Spawn(int rank, int size) {
  int in[2];
  int out[2];
  EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = "/proc/self/exe";
  std::string flag = "--as-rank";
  std::string rank_text = absl::StrCat(rank);
  std::string size_text = absl::StrCat(size);
  char* argv[] = {program.data(), flag.data(), rank_text.data(), size_text.data(), nullptr};
  Process process;
  EXPECT_EQ(posix_spawn(&process.pid, "/proc/self/exe", &actions, nullptr, argv, environ), 0);
  posix_spawn_file_actions_destroy(&actions);
  close(in[0]);
  close(out[1]);
  process.to = in[1];
  process.from = out[0];
  return process;
}

TEST(GlooProcessTest, SurvivorsNameTheKilledRank) {
  constexpr int kSize = 4;
  constexpr int kVictim = 2;
  std::vector<Process> ranks;
  for (int r = 0; r < kSize; ++r) ranks.push_back(Spawn(r, kSize));

  std::vector<std::string> blobs(kSize);
  for (int r = 0; r < kSize; ++r) ASSERT_TRUE(ReadAll(ranks[r].from, blobs[r]));
  for (const Process& process : ranks) {
    for (const std::string& blob : blobs) ASSERT_TRUE(WriteAll(process.to, blob));
  }
  for (const Process& process : ranks) {
    std::string sums;
    ASSERT_TRUE(ReadAll(process.from, sums));
    EXPECT_EQ(sums, "10 10");
  }

  ASSERT_EQ(kill(ranks[kVictim].pid, SIGKILL), 0);
  for (int r = 0; r < kSize; ++r) {
    int wait_status = 0;
    if (r != kVictim) {
      std::string error;
      ASSERT_TRUE(ReadAll(ranks[r].from, error)) << "rank " << r << " ended without a report";
      EXPECT_THAT(error, HasSubstr("UNAVAILABLE"));
      EXPECT_THAT(error, HasSubstr("lost rank 2")) << "rank " << r;
    }
    ASSERT_EQ(waitpid(ranks[r].pid, &wait_status, 0), ranks[r].pid);
    if (r == kVictim) {
      EXPECT_TRUE(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);
    } else {
      EXPECT_TRUE(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) << wait_status;
    }
    close(ranks[r].to);
    close(ranks[r].from);
  }
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) {
  if (argc == 4 && std::string(argv[1]) == "--as-rank") {
    int rank = 0;
    int size = 0;
    if (!absl::SimpleAtoi(argv[2], &rank) || !absl::SimpleAtoi(argv[3], &size)) return 2;
    return sparsebalance::RankMain(rank, size);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
