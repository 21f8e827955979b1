#include "coordinator/store/sqlite_store.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/store/sqlite_schema.h"

namespace sparsebalance {
namespace {

namespace fs = std::filesystem;

absl::Status WithPath(const absl::Status& status, const std::string& path) {
  return absl::Status(status.code(), absl::StrCat("store ", path, ": ", status.message()));
}

// Moves the file and its WAL out of the way; returns where it lies now.
absl::StatusOr<std::string> SetAside(const std::string& path, absl::Time now) {
  const std::string stem =
      absl::StrCat(path, ".corrupt-", absl::FormatTime("%Y%m%dT%H%M%SZ", now, absl::UTCTimeZone()));
  std::string target = stem;
  std::error_code error;
  for (int attempt = 2; fs::exists(target, error); ++attempt) {
    target = absl::StrCat(stem, "-", attempt);
  }
  fs::rename(path, target, error);
  if (error) {
    return absl::PermissionDeniedError(absl::StrCat(
        "store ", path, " is damaged and cannot be set aside as ", target, ": ", error.message()));
  }
  for (const char* suffix : {"-wal", "-shm"}) {
    if (fs::exists(path + suffix, error)) fs::rename(path + suffix, target + suffix, error);
  }
  return target;
}

}  // namespace

struct SqliteStore::Statements {
  SqliteStatement get_epoch, set_epoch, jobs, put_job, profiles, put_profile, coverage,
      put_coverage, delete_coverage, latency, put_latency, delete_latency, consumed,
      append_consumed, cut_consumed, prune_consumed, delete_job, delete_consumed;

  static absl::StatusOr<std::unique_ptr<Statements>> Prepare(SqliteDb& db) {
    absl::Status failure;
    const auto prepare = [&](std::string_view sql) -> std::optional<SqliteStatement> {
      absl::StatusOr<SqliteStatement> statement = db.Prepare(sql);
      if (!statement.ok()) {
        failure = statement.status();
        return std::nullopt;
      }
      return *std::move(statement);
    };
    // NOLINTBEGIN(bugprone-suspicious-missing-comma): long statements are two literals
    constexpr std::string_view kSql[] = {
        "SELECT epoch FROM leader",
        "UPDATE leader SET epoch = ?1",
        "SELECT namespace, name, spec, generation, finished FROM jobs ORDER BY namespace, name",
        "INSERT OR REPLACE INTO jobs(namespace, name, spec, generation, finished) "
        "VALUES (?1, ?2, ?3, ?4, ?5)",
        "SELECT profile FROM profiles ORDER BY namespace, device_class, model_class",
        "INSERT OR REPLACE INTO profiles(namespace, device_class, model_class, profile) "
        "VALUES (?1, ?2, ?3, ?4)",
        "SELECT chunk, bytes FROM coverage WHERE namespace = ?1 AND name = ?2 ORDER BY chunk",
        "INSERT OR REPLACE INTO coverage(namespace, name, chunk, bytes) VALUES (?1, ?2, ?3, ?4)",
        "DELETE FROM coverage WHERE namespace = ?1 AND name = ?2",
        "SELECT bytes FROM latency WHERE namespace = ?1 AND name = ?2",
        "INSERT OR REPLACE INTO latency(namespace, name, bytes) VALUES (?1, ?2, ?3)",
        "DELETE FROM latency WHERE namespace = ?1 AND name = ?2",
        "SELECT batch FROM consumed WHERE namespace = ?1 AND name = ?2 ORDER BY step",
        "INSERT OR REPLACE INTO consumed(namespace, name, step, epoch, batch) "
        "VALUES (?1, ?2, ?3, ?4, ?5)",
        "DELETE FROM consumed WHERE namespace = ?1 AND name = ?2 AND step >= ?3",
        "DELETE FROM consumed WHERE namespace = ?1 AND name = ?2 AND epoch < ?3",
        "DELETE FROM jobs WHERE namespace = ?1 AND name = ?2",
        "DELETE FROM consumed WHERE namespace = ?1 AND name = ?2",
    };
    // NOLINTEND(bugprone-suspicious-missing-comma)
    std::vector<SqliteStatement> made;
    made.reserve(std::size(kSql));
    for (const std::string_view sql : kSql) {
      std::optional<SqliteStatement> statement = prepare(sql);
      if (!statement) return failure;
      made.push_back(*std::move(statement));
    }
    size_t i = 0;
    const auto next = [&]() -> SqliteStatement&& { return std::move(made[i++]); };
    // Braced initializers are evaluated from left to right, so the order is that of kSql.
    return std::unique_ptr<Statements>(
        new Statements{next(), next(), next(), next(), next(), next(), next(), next(), next(),
                       next(), next(), next(), next(), next(), next(), next(), next(), next()});
  }
};

struct SqliteStore::Applier {
  Statements& s;

  static void BindJob(SqliteStatement& statement, const JobId& id) {
    statement.BindText(1, id.ns);
    statement.BindText(2, id.name);
  }
  static absl::Status RunFor(SqliteStatement& statement, const JobId& id) {
    BindJob(statement, id);
    return statement.Run();
  }

  absl::Status operator()(const StoreJob& write) {
    BindJob(s.put_job, write.job.id);
    s.put_job.BindBlob(3, write.job.spec.SerializeAsString());
    s.put_job.BindInt(4, write.job.generation);
    s.put_job.BindInt(5, write.job.finished ? 1 : 0);
    return s.put_job.Run();
  }
  absl::Status operator()(const RemoveJob& write) {
    for (SqliteStatement* statement :
         {&s.delete_job, &s.delete_coverage, &s.delete_latency, &s.delete_consumed}) {
      if (absl::Status status = RunFor(*statement, write.id); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const StoreProfile& write) {
    const v1::ProfileKey& key = write.profile.key();
    s.put_profile.BindText(1, key.namespace_());
    s.put_profile.BindText(2, key.device_class());
    s.put_profile.BindText(3, key.model_class());
    s.put_profile.BindBlob(4, write.profile.SerializeAsString());
    return s.put_profile.Run();
  }
  absl::Status operator()(const StoreCoverage& write) {
    for (const CoverageChunk& chunk : write.chunks) {
      BindJob(s.put_coverage, write.id);
      s.put_coverage.BindInt(3, chunk.index);
      s.put_coverage.BindBlob(4, chunk.bytes);
      if (absl::Status status = s.put_coverage.Run(); !status.ok()) return status;
    }
    return absl::OkStatus();
  }
  absl::Status operator()(const RemoveCoverage& write) {
    return RunFor(s.delete_coverage, write.id);
  }
  absl::Status operator()(const StoreLatencyState& write) {
    if (write.bytes.empty()) return RunFor(s.delete_latency, write.id);
    BindJob(s.put_latency, write.id);
    s.put_latency.BindBlob(3, write.bytes);
    return s.put_latency.Run();
  }
  absl::Status operator()(const StoreConsumed& write) {
    BindJob(s.append_consumed, write.id);
    s.append_consumed.BindInt(3, write.batch.step());
    s.append_consumed.BindInt(4, write.batch.epoch());
    s.append_consumed.BindBlob(5, write.batch.SerializeAsString());
    return s.append_consumed.Run();
  }
  absl::Status operator()(const CutConsumed& write) {
    BindJob(s.cut_consumed, write.id);
    s.cut_consumed.BindInt(3, write.first_step);
    return s.cut_consumed.Run();
  }
  absl::Status operator()(const PruneConsumed& write) {
    BindJob(s.prune_consumed, write.id);
    s.prune_consumed.BindInt(3, write.first_kept_epoch);
    return s.prune_consumed.Run();
  }
};

SqliteStore::SqliteStore(std::string path, std::unique_ptr<SqliteDb> db,
                         std::unique_ptr<Statements> statements)
    : path_(std::move(path)), db_(std::move(db)), statements_(std::move(statements)) {}

SqliteStore::~SqliteStore() = default;

absl::StatusOr<std::unique_ptr<SqliteStore>> SqliteStore::OpenOnce(const std::string& path) {
  auto db = SqliteDb::Open(path);
  if (!db.ok()) return db.status();
  if (absl::Status status = (*db)->CheckIntegrity(); !status.ok()) return status;
  if (absl::Status status = MigrateSchema(**db, SchemaMigrations()); !status.ok()) return status;
  auto statements = Statements::Prepare(**db);
  if (!statements.ok()) return statements.status();
  return std::unique_ptr<SqliteStore>(
      new SqliteStore(path, *std::move(db), *std::move(statements)));
}

absl::StatusOr<SqliteStore::Opened> SqliteStore::Open(const std::string& path, absl::Time now) {
  std::error_code error;
  if (fs::is_directory(path, error)) {
    return absl::FailedPreconditionError(
        absl::StrCat("store ", path, ": is a directory; name a file in it"));
  }
  Opened opened;
  auto store = OpenOnce(path);
  if (!store.ok() && absl::IsDataLoss(store.status())) {
    opened.set_aside_reason = std::string(store.status().message());
    auto aside = SetAside(path, now);
    if (!aside.ok()) return aside.status();
    opened.set_aside_path = *std::move(aside);
    store = OpenOnce(path);
  }
  if (!store.ok()) return WithPath(store.status(), path);
  opened.store = *std::move(store);
  return opened;
}

absl::StatusOr<uint64_t> SqliteStore::RaiseLeaderEpoch(uint64_t above) {
  absl::MutexLock lock(&mutex_);
  uint64_t epoch = 0;
  const absl::Status status = db_->InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (absl::Status read = statements_->get_epoch.ForEachRow([&](const SqliteStatement::Row& row) {
          epoch = row.Int(0);
          return absl::OkStatus();
        });
        !read.ok()) {
      return read;
    }
    epoch = std::max(epoch, above) + 1;
    statements_->set_epoch.BindInt(1, epoch);
    return statements_->set_epoch.Run();
  });
  if (!status.ok()) return WithPath(status, path_);
  return epoch;
}

absl::StatusOr<std::vector<StoredJob>> SqliteStore::LoadJobs() {
  absl::MutexLock lock(&mutex_);
  std::vector<StoredJob> jobs;
  const absl::Status status = statements_->jobs.ForEachRow([&](const SqliteStatement::Row& row) {
    StoredJob job;
    job.id = {row.Bytes(0), row.Bytes(1)};
    job.generation = row.Int(3);
    job.finished = row.Int(4) != 0;
    if (!job.spec.ParseFromString(row.Bytes(2))) {
      return absl::DataLossError(
          absl::StrCat("the spec of job ", job.id.ToString(), " cannot be read"));
    }
    jobs.push_back(std::move(job));
    return absl::OkStatus();
  });
  if (!status.ok()) return WithPath(status, path_);
  return jobs;
}

absl::StatusOr<std::vector<v1::LatencyProfile>> SqliteStore::LoadProfiles() {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::LatencyProfile> profiles;
  const absl::Status status =
      statements_->profiles.ForEachRow([&](const SqliteStatement::Row& row) {
        if (!profiles.emplace_back().ParseFromString(row.Bytes(0))) {
          return absl::DataLossError("a latency profile cannot be read");
        }
        return absl::OkStatus();
      });
  if (!status.ok()) return WithPath(status, path_);
  return profiles;
}

absl::StatusOr<std::vector<CoverageChunk>> SqliteStore::LoadCoverage(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  std::vector<CoverageChunk> chunks;
  Applier::BindJob(statements_->coverage, id);
  const absl::Status status =
      statements_->coverage.ForEachRow([&](const SqliteStatement::Row& row) {
        chunks.push_back({row.Int(0), row.Bytes(1)});
        return absl::OkStatus();
      });
  if (!status.ok()) return WithPath(status, path_);
  return chunks;
}

absl::StatusOr<std::string> SqliteStore::LoadLatencyState(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  std::string bytes;
  Applier::BindJob(statements_->latency, id);
  const absl::Status status = statements_->latency.ForEachRow([&](const SqliteStatement::Row& row) {
    bytes = row.Bytes(0);
    return absl::OkStatus();
  });
  if (!status.ok()) return WithPath(status, path_);
  return bytes;
}

absl::StatusOr<std::vector<v1::ConsumedBatch>> SqliteStore::LoadConsumed(const JobId& id) {
  absl::MutexLock lock(&mutex_);
  std::vector<v1::ConsumedBatch> batches;
  Applier::BindJob(statements_->consumed, id);
  const absl::Status status =
      statements_->consumed.ForEachRow([&](const SqliteStatement::Row& row) {
        if (!batches.emplace_back().ParseFromString(row.Bytes(0))) {
          return absl::DataLossError(
              absl::StrCat("a consumed batch of job ", id.ToString(), " cannot be read"));
        }
        return absl::OkStatus();
      });
  if (!status.ok()) return WithPath(status, path_);
  return batches;
}

absl::Status SqliteStore::Apply(absl::Span<const StoreWrite> writes) {
  absl::MutexLock lock(&mutex_);
  const absl::Status status = db_->InTransaction([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const StoreWrite& write : writes) {
      if (absl::Status applied = std::visit(Applier{*statements_}, write); !applied.ok()) {
        return applied;
      }
    }
    return absl::OkStatus();
  });
  return status.ok() ? status : WithPath(status, path_);
}

std::string SqliteStore::Description() const { return absl::StrCat("sqlite ", path_); }

}  // namespace sparsebalance
