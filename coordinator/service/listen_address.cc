#include "coordinator/service/listen_address.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance {

absl::StatusOr<ListenAddress> ListenAddress::Parse(std::string_view text) {
  const auto error = [&](const char* problem) {
    return absl::InvalidArgumentError(
        absl::StrCat("address '", std::string(text), "': ", problem,
                     "; write HOST:PORT, for example 127.0.0.1:7070 or [::1]:7070"));
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return error("the port is missing");
  ListenAddress address;
  std::string_view host = text.substr(0, colon);
  if (host.size() >= 2 && host.front() == '[' && host.back() == ']') {
    host = host.substr(1, host.size() - 2);
  } else if (host.find(':') != std::string_view::npos) {
    return error("an IPv6 address needs brackets");
  }
  if (host.empty()) return error("the host is missing");
  if (host.find_first_of("[]") != std::string_view::npos) {
    return error("brackets go around an IPv6 address, once");
  }
  address.host = std::string(host);
  const std::string_view port = text.substr(colon + 1);
  if (!absl::SimpleAtoi(absl::string_view(port.data(), port.size()), &address.port) ||
      address.port < 0 || address.port > 65535) {
    return error("the port must be a number from 0 to 65535");
  }
  return address;
}

bool ListenAddress::IsLoopback() const {
  // 127.example.org is a name like any other.
  return host == "localhost" || host == "::1" ||
         (host.rfind("127.", 0) == 0 && host.find_first_not_of("0123456789.") == std::string::npos);
}

std::string ListenAddress::ToString() const {
  return host.find(':') == std::string::npos ? absl::StrCat(host, ":", port)
                                             : absl::StrCat("[", host, "]:", port);
}

}  // namespace sparsebalance
