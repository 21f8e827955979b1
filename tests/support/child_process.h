// A program under test: started with pipes, read line by line, signalled and waited for by its own
// process id. Waits are for conditions, with a bound, never for time to pass.
#pragma once

#include <sys/types.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace sparsebalance::testing_support {

class ChildProcess {
 public:
  // argv[0] is the program's path. Standard output and error become one stream of lines.
  explicit ChildProcess(std::vector<std::string> argv);
  // Kills the program if it still runs.
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // The first line from number `from` on that holds `text`: its number, or nothing if the program
  // ended or `timeout` passed without one.
  std::optional<size_t> WaitForLine(const std::string& text, size_t from = 0,
                                    absl::Duration timeout = absl::Seconds(120));
  // The first line from `from` on for which `matches` says so.
  std::optional<size_t> WaitForLineThat(const std::function<bool(const std::string&)>& matches,
                                        size_t from = 0,
                                        absl::Duration timeout = absl::Seconds(120));

  void Signal(int signal);
  // Exit code, or 128 + signal. After `timeout` the program is killed and -1 returned.
  int Wait(absl::Duration timeout = absl::Seconds(120));

  std::string Output();
  std::string Line(size_t number);
  size_t lines();
  pid_t pid() const { return pid_; }

 private:
  void Read();

  pid_t pid_ = -1;
  int pipe_ = -1;
  std::thread reader_;
  bool reaped_ = false;
  int exit_code_ = -1;
  absl::Mutex mutex_;
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  bool ended_ ABSL_GUARDED_BY(mutex_) = false;
};

// Path of a program of this build.
std::string Program(const std::string& name);

}  // namespace sparsebalance::testing_support
