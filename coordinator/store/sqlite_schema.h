// The tables of the SQLite store and how older files become current ones.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/store/sqlite_db.h"

namespace sparsebalance {

// Marks the file as ours (PRAGMA application_id), so that another program's database is refused
// rather than written to.
inline constexpr uint64_t kSqliteApplicationId = 0x53424331;  // "SBC1"

// One script for each schema version, oldest first: script i leads from version i to i + 1. The
// list only ever grows; a script that has been released is never changed.
const std::vector<std::string>& SchemaMigrations();

// Brings the file to version migrations.size(), each script in a transaction of its own. An empty
// file is at version 0. FAILED_PRECONDITION: the file belongs to another program, or was written
// by a newer version of this one.
absl::Status MigrateSchema(SqliteDb& db, const std::vector<std::string>& migrations);

}  // namespace sparsebalance
