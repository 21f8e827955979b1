// HOST:PORT, as people write it.
#pragma once

#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace sparsebalance {

struct ListenAddress {
  std::string host;  // name or address; IPv6 without brackets
  int port = 0;      // 0: any free one

  // HOST:PORT with an IPv6 address in brackets. INVALID_ARGUMENT says what is wrong.
  static absl::StatusOr<ListenAddress> Parse(std::string_view text);

  // localhost, 127.0.0.0/8 or ::1: unreachable from other machines.
  bool IsLoopback() const;
  std::string ToString() const;
};

}  // namespace sparsebalance
