// SQLite with owned handles and absl statuses: nothing here knows what is stored.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

struct sqlite3;
struct sqlite3_stmt;

namespace sparsebalance {

// A prepared statement, used again and again:
//   statement.BindText(1, ns); statement.BindInt(2, step);
//   RETURN_IF_ERROR(statement.ForEachRow([&](const Row& row) { return absl::OkStatus(); }));
// Bindings are cleared after each execution.
class SqliteStatement {
 public:
  class Row {
   public:
    explicit Row(sqlite3_stmt* statement) : statement_(statement) {}
    uint64_t Int(int column) const;  // two's complement of the stored 64 bits
    std::string Bytes(int column) const;

   private:
    sqlite3_stmt* statement_;
  };

  void BindInt(int index, uint64_t value);
  // Text and blobs are copied.
  void BindText(int index, std::string_view value);
  void BindBlob(int index, std::string_view value);

  absl::Status Run();
  // Stops at the first row for which `visit` fails and returns its status.
  absl::Status ForEachRow(const std::function<absl::Status(const Row&)>& visit);

 private:
  friend class SqliteDb;
  explicit SqliteStatement(sqlite3_stmt* statement);

  struct Finalizer {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalizer> statement_;
  int bind_error_ = 0;
};

// One connection. Not thread-safe: the owner serializes its calls.
class SqliteDb {
 public:
  // Opens or creates. The file is locked for this process alone, so that two coordinators cannot
  // share it; one that is in use by another process is UNAVAILABLE. DATA_LOSS: the file is no
  // database or is damaged. PERMISSION_DENIED and NOT_FOUND for what the file system refuses.
  static absl::StatusOr<std::unique_ptr<SqliteDb>> Open(const std::string& path);

  // One or several statements without results.
  absl::Status Execute(const std::string& sql);
  absl::StatusOr<SqliteStatement> Prepare(std::string_view sql);
  absl::StatusOr<uint64_t> QueryInt(std::string_view sql);

  // Reads the whole file. DATA_LOSS says what SQLite found.
  absl::Status CheckIntegrity();

  // Runs `body` in a transaction that is rolled back if it fails.
  absl::Status InTransaction(const std::function<absl::Status()>& body);

 private:
  struct Closer {
    void operator()(sqlite3* db) const;
  };
  explicit SqliteDb(std::unique_ptr<sqlite3, Closer> db) : db_(std::move(db)) {}

  std::unique_ptr<sqlite3, Closer> db_;
};

}  // namespace sparsebalance
