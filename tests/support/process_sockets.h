// TCP sockets of another process, as the kernel lists them: for programs that take a free port and
// do not tell, and to see that a message is stuck on its way.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <vector>

namespace sparsebalance::testing_support {

struct ProcessSocket {
  int local_port = 0;
  bool listening = false;
  uint64_t unsent_bytes = 0;  // written by the process and not yet acknowledged by the other end
};

// Of IPv4, by local port. Empty where there is none, or no such process.
std::vector<ProcessSocket> ProcessSockets(pid_t pid);

}  // namespace sparsebalance::testing_support
