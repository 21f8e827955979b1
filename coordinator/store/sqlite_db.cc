#include "coordinator/store/sqlite_db.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

absl::Status StatusOf(int code, const std::string& message) {
  switch (code & 0xff) {
    case SQLITE_OK:
    case SQLITE_ROW:
    case SQLITE_DONE:
      return absl::OkStatus();
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return absl::DataLossError(message);
    case SQLITE_BUSY:
    case SQLITE_LOCKED:
      return absl::UnavailableError(absl::StrCat(message, " (is another coordinator using it?)"));
    case SQLITE_CANTOPEN:
      return absl::NotFoundError(message);
    case SQLITE_PERM:
    case SQLITE_AUTH:
    case SQLITE_READONLY:
      return absl::PermissionDeniedError(message);
    case SQLITE_FULL:
      return absl::ResourceExhaustedError(message);
    default:
      return absl::InternalError(message);
  }
}

absl::Status ErrorOf(sqlite3* db, int code) {
  return StatusOf(code, absl::StrCat("sqlite: ", sqlite3_errmsg(db)));
}

}  // namespace

uint64_t SqliteStatement::Row::Int(int column) const {
  return static_cast<uint64_t>(sqlite3_column_int64(statement_, column));
}

std::string SqliteStatement::Row::Bytes(int column) const {
  // The blob call comes first: it may convert the value and with it change the size.
  const void* data = sqlite3_column_blob(statement_, column);
  const int size = sqlite3_column_bytes(statement_, column);
  return data == nullptr ? std::string()
                         : std::string(static_cast<const char*>(data), static_cast<size_t>(size));
}

void SqliteStatement::Finalizer::operator()(sqlite3_stmt* statement) const {
  sqlite3_finalize(statement);
}

SqliteStatement::SqliteStatement(sqlite3_stmt* statement) : statement_(statement) {}

void SqliteStatement::BindInt(int index, uint64_t value) {
  const int code = sqlite3_bind_int64(statement_.get(), index, static_cast<sqlite3_int64>(value));
  if (code != SQLITE_OK) bind_error_ = code;
}

void SqliteStatement::BindText(int index, std::string_view value) {
  // A null pointer would bind NULL instead of an empty text.
  const char* data = value.data() == nullptr ? "" : value.data();
  const int code = sqlite3_bind_text64(statement_.get(), index, data, value.size(),
                                       SQLITE_TRANSIENT, SQLITE_UTF8);
  if (code != SQLITE_OK) bind_error_ = code;
}

void SqliteStatement::BindBlob(int index, std::string_view value) {
  const char* data = value.data() == nullptr ? "" : value.data();
  const int code =
      sqlite3_bind_blob64(statement_.get(), index, data, value.size(), SQLITE_TRANSIENT);
  if (code != SQLITE_OK) bind_error_ = code;
}

absl::Status SqliteStatement::Run() {
  return ForEachRow([](const Row&) { return absl::OkStatus(); });
}

absl::Status SqliteStatement::ForEachRow(const std::function<absl::Status(const Row&)>& visit) {
  absl::Status status;
  if (bind_error_ != SQLITE_OK) {
    status = StatusOf(std::exchange(bind_error_, SQLITE_OK), "sqlite: a value cannot be bound");
  } else {
    int code = SQLITE_ROW;
    while (status.ok() && (code = sqlite3_step(statement_.get())) == SQLITE_ROW) {
      status = visit(Row(statement_.get()));
    }
    if (status.ok()) status = ErrorOf(sqlite3_db_handle(statement_.get()), code);
  }
  sqlite3_reset(statement_.get());
  sqlite3_clear_bindings(statement_.get());
  return status;
}

void SqliteDb::Closer::operator()(sqlite3* db) const { sqlite3_close_v2(db); }

absl::StatusOr<std::unique_ptr<SqliteDb>> SqliteDb::Open(const std::string& path) {
  sqlite3* raw = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &raw,
                      SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE | SQLITE_OPEN_NOMUTEX, nullptr);
  std::unique_ptr<sqlite3, Closer> handle(raw);
  if (code != SQLITE_OK) {
    return raw == nullptr ? absl::ResourceExhaustedError("sqlite: out of memory")
                          : ErrorOf(raw, code);
  }
  sqlite3_extended_result_codes(raw, 1);
  std::unique_ptr<SqliteDb> db(new SqliteDb(std::move(handle)));
  // Exclusive: also spares the shared-memory file. FULL: a commit survives a power cut, which the
  // leader epoch needs; commits are few because writes are batched.
  if (absl::Status status = db->Execute("PRAGMA locking_mode=EXCLUSIVE;"
                                        "PRAGMA journal_mode=WAL;"
                                        "PRAGMA synchronous=FULL;"
                                        "BEGIN IMMEDIATE; COMMIT;");
      !status.ok()) {
    return status;
  }
  return db;
}

absl::Status SqliteDb::Execute(const std::string& sql) {
  const int code = sqlite3_exec(db_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  return code == SQLITE_OK ? absl::OkStatus() : ErrorOf(db_.get(), code);
}

absl::StatusOr<SqliteStatement> SqliteDb::Prepare(std::string_view sql) {
  sqlite3_stmt* statement = nullptr;
  const int code = sqlite3_prepare_v3(db_.get(), sql.data(), static_cast<int>(sql.size()),
                                      SQLITE_PREPARE_PERSISTENT, &statement, nullptr);
  if (code != SQLITE_OK) return ErrorOf(db_.get(), code);
  return SqliteStatement(statement);
}

absl::StatusOr<uint64_t> SqliteDb::QueryInt(std::string_view sql) {
  absl::StatusOr<SqliteStatement> statement = Prepare(sql);
  if (!statement.ok()) return statement.status();
  uint64_t value = 0;
  if (absl::Status status = statement->ForEachRow([&](const SqliteStatement::Row& row) {
        value = row.Int(0);
        return absl::OkStatus();
      });
      !status.ok()) {
    return status;
  }
  return value;
}

absl::Status SqliteDb::CheckIntegrity() {
  absl::StatusOr<SqliteStatement> statement = Prepare("PRAGMA integrity_check(5)");
  if (!statement.ok()) return statement.status();
  std::string findings;
  if (absl::Status status = statement->ForEachRow([&](const SqliteStatement::Row& row) {
        const std::string line = row.Bytes(0);
        if (line != "ok") absl::StrAppend(&findings, findings.empty() ? "" : "; ", line);
        return absl::OkStatus();
      });
      !status.ok()) {
    return status;
  }
  if (!findings.empty()) return absl::DataLossError(absl::StrCat("sqlite: ", findings));
  return absl::OkStatus();
}

absl::Status SqliteDb::InTransaction(const std::function<absl::Status()>& body) {
  if (absl::Status status = Execute("BEGIN IMMEDIATE"); !status.ok()) return status;
  absl::Status status = body();
  if (status.ok()) status = Execute("COMMIT");
  // The first error is the one that matters; SQLite may have rolled back by itself already.
  if (!status.ok()) Execute("ROLLBACK").IgnoreError();
  return status;
}

}  // namespace sparsebalance
