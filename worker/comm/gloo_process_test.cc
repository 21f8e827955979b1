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
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/process_sockets.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/gloo_mesh.h"

extern char** environ;

namespace sparsebalance {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

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

constexpr char kRank[] = "--as-rank";
constexpr char kReceiver[] = "--as-receiver";
constexpr char kLeaver[] = "--as-leaver";
constexpr size_t kLongMessage = size_t{256} << 20;  // more than sockets hold, and long on its way
constexpr uint64_t kSlot = 7;

bool AMessageIsUnderWay(pid_t pid) {
  for (const auto& socket : testing_support::ProcessSockets(pid)) {
    if (socket.unsent_bytes > 0) return true;
  }
  return false;
}

// The life of a peer that stops in the middle of a message.
int StoppingPeerMain(int rank, int size) {
  auto mesh = comm_internal::GlooMesh::Connect(
      rank, size, GlooOptions(), [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
        if (!WriteAll(STDOUT_FILENO, own)) return absl::UnavailableError("parent is gone");
        std::vector<std::string> blobs(size);
        for (std::string& blob : blobs) {
          if (!ReadAll(STDIN_FILENO, blob)) return absl::UnavailableError("parent is gone");
        }
        return blobs;
      });
  if (!mesh.ok()) return 1;
  std::vector<char> data(kLongMessage);
  const auto transfer = (*mesh)->Receive(0, kSlot, data.data(), data.size());
  if (!transfer.ok()) return 1;
  raise(SIGSTOP);
  return 1;  // it is not meant to go on
}

// The life of a peer that sends what it owes when it is told to, and leaves at once.
int LeavingPeerMain(int rank, int size) {
  auto mesh = comm_internal::GlooMesh::Connect(
      rank, size, GlooOptions(), [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
        if (!WriteAll(STDOUT_FILENO, own)) return absl::UnavailableError("parent is gone");
        std::vector<std::string> blobs(size);
        for (std::string& blob : blobs) {
          if (!ReadAll(STDIN_FILENO, blob)) return absl::UnavailableError("parent is gone");
        }
        return blobs;
      });
  std::string go;
  if (!mesh.ok() || !ReadAll(STDIN_FILENO, go)) return 1;
  const std::vector<char> data(size_t{1} << 20);
  const auto transfer = (*mesh)->Send(0, kSlot, data.data(), data.size());
  return transfer.ok() && (*mesh)->Wait(**transfer).ok() ? 0 : 1;
}

struct Process {
  pid_t pid = -1;
  int to = -1;
  int from = -1;
};

Process Spawn(const std::string& kind, int rank, int size) {
  int in[2];
  int out[2];
  EXPECT_EQ(pipe2(in, O_CLOEXEC), 0);
  EXPECT_EQ(pipe2(out, O_CLOEXEC), 0);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, in[0], STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
  std::string program = "/proc/self/exe";
  std::string flag = kind;
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

constexpr int kSize = 4;
constexpr int kVictim = 2;

// Four ranks that go from one all-reduce to the next.
class GlooProcessTest : public testing::Test {
 protected:
  void SetUp() override {
    for (int r = 0; r < kSize; ++r) ranks_.push_back(Spawn(kRank, r, kSize));
    std::vector<std::string> blobs(kSize);
    for (int r = 0; r < kSize; ++r) ASSERT_TRUE(ReadAll(ranks_[r].from, blobs[r]));
    for (const Process& process : ranks_) {
      for (const std::string& blob : blobs) ASSERT_TRUE(WriteAll(process.to, blob));
    }
    for (const Process& process : ranks_) {
      std::string sums;
      ASSERT_TRUE(ReadAll(process.from, sums));
      EXPECT_EQ(sums, "10 10");
    }
  }

  void ExpectThatSurvivorsNameTheVictim() {
    for (int r = 0; r < kSize; ++r) {
      int wait_status = 0;
      if (r != kVictim) {
        std::string error;
        ASSERT_TRUE(ReadAll(ranks_[r].from, error)) << "rank " << r << " ended without a report";
        EXPECT_THAT(error, HasSubstr("UNAVAILABLE"));
        EXPECT_THAT(error, HasSubstr("lost rank 2")) << "rank " << r;
        EXPECT_THAT(error, Not(HasSubstr("no progress"))) << "rank " << r << " waited to the end";
      }
      ASSERT_EQ(waitpid(ranks_[r].pid, &wait_status, 0), ranks_[r].pid);
      if (r == kVictim) {
        EXPECT_TRUE(WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL);
      } else {
        EXPECT_TRUE(WIFEXITED(wait_status) && WEXITSTATUS(wait_status) == 0) << wait_status;
      }
      close(ranks_[r].to);
      close(ranks_[r].from);
    }
  }

  std::vector<Process> ranks_;
};

TEST_F(GlooProcessTest, SurvivorsNameTheKilledRank) {
  ASSERT_EQ(kill(ranks_[kVictim].pid, SIGKILL), 0);
  ExpectThatSurvivorsNameTheVictim();
}

// A peer that dies when a part of a message is through: it stands still before it does, so that the
// message is stuck for certain.
TEST(GlooPartialMessageTest, APeerThatDiesWithPartOfAMessageIsLost) {
  const Process peer = Spawn(kReceiver, 1, 2);
  GlooOptions options;
  options.timeout = absl::Seconds(60);
  auto mesh = comm_internal::GlooMesh::Connect(
      0, 2, options, [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
        std::vector<std::string> blobs = {own, ""};
        if (!ReadAll(peer.from, blobs[1])) return absl::UnavailableError("the peer is gone");
        for (const std::string& blob : blobs) {
          if (!WriteAll(peer.to, blob)) return absl::UnavailableError("the peer is gone");
        }
        return blobs;
      });
  ASSERT_TRUE(mesh.ok()) << mesh.status();
  std::vector<char> data(kLongMessage);
  auto transfer = (*mesh)->Send(1, kSlot, data.data(), data.size());
  ASSERT_TRUE(transfer.ok()) << transfer.status();
  absl::Status outcome;
  std::thread wait([&] { outcome = (*mesh)->Wait(**transfer); });
  int status = 0;
  EXPECT_EQ(waitpid(peer.pid, &status, WUNTRACED), peer.pid);
  EXPECT_TRUE(WIFSTOPPED(status)) << status;
  while (!AMessageIsUnderWay(getpid())) std::this_thread::yield();
  EXPECT_EQ(kill(peer.pid, SIGKILL), 0);
  wait.join();
  EXPECT_EQ(outcome.code(), absl::StatusCode::kUnavailable) << outcome;
  EXPECT_THAT(std::string(outcome.message()),
              AllOf(HasSubstr("lost rank 1"), Not(HasSubstr("no progress"))));
  EXPECT_EQ(waitpid(peer.pid, &status, 0), peer.pid);
  close(peer.to);
  close(peer.from);
}

TEST(GlooLeavingPeerTest, WhatAPeerSentBeforeItLeftArrives) {
  for (int round = 0; round < 5; ++round) {
    const Process peer = Spawn(kLeaver, 1, 2);
    auto mesh = comm_internal::GlooMesh::Connect(
        0, 2, GlooOptions(), [&](std::string own) -> absl::StatusOr<std::vector<std::string>> {
          std::vector<std::string> blobs = {own, ""};
          if (!ReadAll(peer.from, blobs[1])) return absl::UnavailableError("the peer is gone");
          for (const std::string& blob : blobs) {
            if (!WriteAll(peer.to, blob)) return absl::UnavailableError("the peer is gone");
          }
          return blobs;
        });
    ASSERT_TRUE(mesh.ok()) << mesh.status();
    std::vector<char> data(size_t{1} << 20);
    const auto transfer = (*mesh)->Receive(1, kSlot, data.data(), data.size());
    ASSERT_TRUE(transfer.ok()) << transfer.status();
    // It is late: this end has waited for so long that it listens for the peer's end.
    std::thread later([&] {
      absl::SleepFor(absl::Milliseconds(200));
      EXPECT_TRUE(WriteAll(peer.to, "go"));
    });
    const absl::Status arrived = (*mesh)->Wait(**transfer);
    later.join();
    EXPECT_TRUE(arrived.ok()) << arrived;
    int status = 0;
    EXPECT_EQ(waitpid(peer.pid, &status, 0), peer.pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    close(peer.to);
    close(peer.from);
  }
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) {
  if (argc == 4) {
    using namespace sparsebalance;  // NOLINT: of this test alone
    int rank = 0;
    int size = 0;
    if (!absl::SimpleAtoi(argv[2], &rank) || !absl::SimpleAtoi(argv[3], &size)) return 2;
    const std::string kind = argv[1];
    if (kind == kLeaver) return LeavingPeerMain(rank, size);
    return kind == kRank ? RankMain(rank, size) : StoppingPeerMain(rank, size);
  }
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
