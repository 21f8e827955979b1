#include "coordinator/service/store_location.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "coordinator/service/listen_address.h"

namespace sparsebalance {
namespace {

constexpr char kDefaultPrefix[] = "/sparsebalance/";

}  // namespace

absl::StatusOr<StoreLocation> StoreLocation::Parse(std::string_view text) {
  StoreLocation location;
  absl::string_view rest(text.data(), text.size());
  if (rest.empty()) {
    return absl::InvalidArgumentError("is empty; say memory, a file, or etcd://HOST:PORT,...");
  }
  if (rest == "memory") return location;
  if (!absl::ConsumePrefix(&rest, "etcd://")) {
    if (absl::StrContains(rest, "://")) {
      return absl::InvalidArgumentError(absl::StrCat(
          "'", rest, "' is of no known kind; say memory, a file, or etcd://HOST:PORT,..."));
    }
    location.kind = Kind::kSqlite;
    location.path = std::string(rest);
    return location;
  }
  location.kind = Kind::kEtcd;
  const size_t slash = rest.find('/');
  location.prefix = slash == absl::string_view::npos || slash + 1 == rest.size()
                        ? kDefaultPrefix
                        : std::string(rest.substr(slash));
  if (location.prefix.back() != '/') location.prefix += '/';
  for (const absl::string_view endpoint : absl::StrSplit(rest.substr(0, slash), ',')) {
    const std::string address(endpoint);
    const auto parsed = ListenAddress::Parse(address);
    if (!parsed.ok() || parsed->host.empty() || parsed->port == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("'", absl::string_view(text.data(), text.size()), "': '", address,
                       "' is not HOST:PORT of a member of etcd; write "
                       "etcd://HOST:PORT,HOST:PORT/PREFIX"));
    }
    location.endpoints.push_back(address);
  }
  return location;
}

}  // namespace sparsebalance
