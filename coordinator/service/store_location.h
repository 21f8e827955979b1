// Where a coordinator keeps its state, as people write it.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace sparsebalance {

struct StoreLocation {
  enum class Kind { kMemory, kSqlite, kEtcd };
  Kind kind = Kind::kMemory;
  std::string path;                    // of the SQLite file
  std::vector<std::string> endpoints;  // HOST:PORT of etcd's members
  std::string prefix;                  // of all keys in etcd, with a slash at the end

  // "memory"; "etcd://HOST:PORT,HOST:PORT/PREFIX" (the prefix may be left out: /sparsebalance/);
  // else the path of a file. INVALID_ARGUMENT says what is wrong.
  static absl::StatusOr<StoreLocation> Parse(std::string_view text);
};

}  // namespace sparsebalance
