#include "tests/support/process_sockets.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace sparsebalance::testing_support {
namespace {

// Inodes of the sockets that the process holds.
std::set<std::string> SocketInodes(pid_t pid) {
  std::set<std::string> inodes;
  std::error_code error;
  const std::string folder = absl::StrCat("/proc/", pid, "/fd");
  for (std::filesystem::directory_iterator it(folder, error), end; !error && it != end;
       it.increment(error)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(it->path(), gone).string();
    constexpr char kSocket[] = "socket:[";
    if (!gone && target.rfind(kSocket, 0) == 0) {
      inodes.insert(target.substr(sizeof(kSocket) - 1, target.size() - sizeof(kSocket)));
    }
  }
  return inodes;
}

uint64_t Hexadecimal(const std::string& text, size_t from) {
  uint64_t value = 0;
  std::from_chars(text.data() + std::min(from, text.size()), text.data() + text.size(), value, 16);
  return value;
}

}  // namespace

std::vector<ProcessSocket> ProcessSockets(pid_t pid) {
  const std::set<std::string> inodes = SocketInodes(pid);
  std::vector<ProcessSocket> sockets;
  std::ifstream table(absl::StrCat("/proc/", pid, "/net/tcp"));
  std::string line;
  std::getline(table, line);  // the heading
  while (std::getline(table, line)) {
    // Fields of proc(5): number, local address:port in hexadecimal, remote, state, queues
    // sent:received, timer, retransmissions, user, timeout, inode.
    std::istringstream in(line);
    std::vector<std::string> fields;
    for (std::string field; in >> field;) fields.push_back(field);
    constexpr size_t kLocal = 1, kState = 3, kQueues = 4, kInode = 9;
    if (fields.size() <= kInode || !inodes.contains(fields[kInode])) continue;
    ProcessSocket& socket = sockets.emplace_back();
    socket.local_port = static_cast<int>(Hexadecimal(fields[kLocal], fields[kLocal].find(':') + 1));
    socket.listening = fields[kState] == "0A";
    socket.unsent_bytes = socket.listening ? 0 : Hexadecimal(fields[kQueues], 0);
  }
  std::sort(sockets.begin(), sockets.end(), [](const ProcessSocket& a, const ProcessSocket& b) {
    return a.local_port < b.local_port;
  });
  return sockets;
}

}  // namespace sparsebalance::testing_support
