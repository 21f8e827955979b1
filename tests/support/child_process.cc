#include "tests/support/child_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdlib>
#include <utility>

#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace sparsebalance::testing_support {

ChildProcess::ChildProcess(std::vector<std::string> argv) {
  std::array<int, 2> ends{};
  if (pipe2(ends.data(), O_CLOEXEC) != 0) {
    ADD_FAILURE() << "no pipe";
    return;
  }
  std::vector<char*> arguments;
  for (std::string& argument : argv) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  pid_ = fork();
  if (pid_ == 0) {
    dup2(ends[1], STDOUT_FILENO);
    dup2(ends[1], STDERR_FILENO);
    execv(arguments[0], arguments.data());
    _exit(127);
  }
  close(ends[1]);
  pipe_ = ends[0];
  reader_ = std::thread([this] { Read(); });
}

ChildProcess::~ChildProcess() {
  if (!reaped_ && pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (reader_.joinable()) reader_.join();
  if (pipe_ >= 0) close(pipe_);
}

void ChildProcess::Read() {
  std::string open;
  std::array<char, 4096> chunk;
  while (true) {
    const ssize_t count = read(pipe_, chunk.data(), chunk.size());
    if (count < 0 && errno == EINTR) continue;
    absl::MutexLock lock(&mutex_);
    if (count <= 0) {
      if (!open.empty()) lines_.push_back(open);
      ended_ = true;
      return;
    }
    for (ssize_t i = 0; i < count; ++i) {
      if (chunk[static_cast<size_t>(i)] == '\n') {
        lines_.push_back(std::exchange(open, ""));
      } else {
        open.push_back(chunk[static_cast<size_t>(i)]);
      }
    }
  }
}

std::optional<size_t> ChildProcess::WaitForLineThat(
    const std::function<bool(const std::string&)>& matches, size_t from, absl::Duration timeout) {
  size_t next = from;
  std::optional<size_t> found;
  absl::MutexLock lock(&mutex_);
  const auto done = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    for (; next < lines_.size() && !found.has_value(); ++next) {
      if (matches(lines_[next])) found = next;
    }
    return found.has_value() || ended_;
  };
  mutex_.AwaitWithTimeout(absl::Condition(&done), timeout);
  return found;
}

std::optional<size_t> ChildProcess::WaitForLine(const std::string& text, size_t from,
                                                absl::Duration timeout) {
  return WaitForLineThat(
      [&](const std::string& line) { return line.find(text) != std::string::npos; }, from, timeout);
}

void ChildProcess::Signal(int signal) {
  if (!reaped_ && pid_ > 0) kill(pid_, signal);
}

int ChildProcess::Wait(absl::Duration timeout) {
  if (reaped_) return exit_code_;
  {
    // The program holds the only other end of the pipe: its end is the stream's end.
    absl::MutexLock lock(&mutex_);
    if (!mutex_.AwaitWithTimeout(absl::Condition(&ended_), timeout)) {
      kill(pid_, SIGKILL);
    }
  }
  absl::MutexLock lock(&mutex_);
  const bool in_time = ended_;
  int status = 0;
  waitpid(pid_, &status, 0);
  reaped_ = true;
  exit_code_ = !in_time ? -1 : WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return exit_code_;
}

std::string ChildProcess::Output() {
  absl::MutexLock lock(&mutex_);
  return absl::StrJoin(lines_, "\n");
}

std::string ChildProcess::Line(size_t number) {
  absl::MutexLock lock(&mutex_);
  return number < lines_.size() ? lines_[number] : "";
}

size_t ChildProcess::lines() {
  absl::MutexLock lock(&mutex_);
  return lines_.size();
}

std::string Program(const std::string& name) {
  const char* folder = std::getenv("SPARSEBALANCE_BIN_DIR");  // NOLINT(concurrency-mt-unsafe)
  EXPECT_NE(folder, nullptr) << "run through ctest, which sets SPARSEBALANCE_BIN_DIR";
  return std::string(folder == nullptr ? "." : folder) + "/" + name;
}

}  // namespace sparsebalance::testing_support
