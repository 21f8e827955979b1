#include "coordinator/store/sqlite_schema.h"

#include "absl/strings/str_cat.h"

namespace sparsebalance {

const std::vector<std::string>& SchemaMigrations() {
  static const auto* const migrations = new std::vector<std::string>{
      R"sql(
CREATE TABLE leader(only_row INTEGER PRIMARY KEY CHECK (only_row = 0), epoch INTEGER NOT NULL);
INSERT INTO leader VALUES (0, 0);
CREATE TABLE jobs(namespace TEXT NOT NULL, name TEXT NOT NULL, spec BLOB NOT NULL,
  generation INTEGER NOT NULL, finished INTEGER NOT NULL,
  PRIMARY KEY (namespace, name)) WITHOUT ROWID;
CREATE TABLE profiles(namespace TEXT NOT NULL, device_class TEXT NOT NULL,
  model_class TEXT NOT NULL, profile BLOB NOT NULL,
  PRIMARY KEY (namespace, device_class, model_class));
CREATE TABLE coverage(namespace TEXT NOT NULL, name TEXT NOT NULL, chunk INTEGER NOT NULL,
  bytes BLOB NOT NULL, PRIMARY KEY (namespace, name, chunk));
CREATE TABLE latency(namespace TEXT NOT NULL, name TEXT NOT NULL, bytes BLOB NOT NULL,
  PRIMARY KEY (namespace, name));
CREATE TABLE consumed(namespace TEXT NOT NULL, name TEXT NOT NULL, step INTEGER NOT NULL,
  epoch INTEGER NOT NULL, batch BLOB NOT NULL, PRIMARY KEY (namespace, name, step));
)sql"};
  return *migrations;
}

absl::Status MigrateSchema(SqliteDb& db, const std::vector<std::string>& migrations) {
  const auto application = db.QueryInt("PRAGMA application_id");
  if (!application.ok()) return application.status();
  const auto version = db.QueryInt("PRAGMA user_version");
  if (!version.ok()) return version.status();
  const auto tables = db.QueryInt("SELECT count(*) FROM sqlite_schema");
  if (!tables.ok()) return tables.status();
  if (*application != kSqliteApplicationId && (*application != 0 || *tables != 0)) {
    return absl::FailedPreconditionError(
        absl::StrCat("the file is a database of another program (application id ", *application,
                     "); give the store a file of its own"));
  }
  if (*version > migrations.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the file has schema version ", *version, ", but this program knows only up to ",
        migrations.size(), "; use the newer program or another file"));
  }
  for (size_t from = *version; from < migrations.size(); ++from) {
    const absl::Status status = db.InTransaction([&] {
      return db.Execute(absl::StrCat("PRAGMA application_id=", kSqliteApplicationId, ";",
                                     migrations[from], ";PRAGMA user_version=", from + 1, ";"));
    });
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat("schema version ", from, " to ", from + 1,
                                                      ": ", status.message()));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
