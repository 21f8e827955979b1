// The default store: one SQLite file in WAL mode, used by one process at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "coordinator/store/sqlite_db.h"
#include "coordinator/store/store.h"

namespace sparsebalance {

class SqliteStore : public Store {
 public:
  struct Opened {
    std::unique_ptr<SqliteStore> store;
    // Set where the file was damaged: it lies there now, with its WAL, and a new one was begun.
    std::string set_aside_path;
    std::string set_aside_reason;
  };

  // Opens or creates the file, checks it whole and brings its schema up to date. A damaged file is
  // set aside as `<path>.corrupt-<now, UTC>`, never deleted. UNAVAILABLE: in use by another
  // process. FAILED_PRECONDITION: another program's or a newer version's. NOT_FOUND or
  // PERMISSION_DENIED: the file system refuses.
  static absl::StatusOr<Opened> Open(const std::string& path, absl::Time now);

  ~SqliteStore() override;

  absl::StatusOr<uint64_t> RaiseLeaderEpoch(uint64_t above) override;
  absl::StatusOr<std::vector<StoredJob>> LoadJobs() override;
  absl::StatusOr<std::vector<v1::LatencyProfile>> LoadProfiles() override;
  absl::StatusOr<std::vector<CoverageChunk>> LoadCoverage(const JobId& id) override;
  absl::StatusOr<std::string> LoadLatencyState(const JobId& id) override;
  absl::StatusOr<std::vector<v1::ConsumedBatch>> LoadConsumed(const JobId& id) override;
  absl::Status Apply(absl::Span<const StoreWrite> writes) override;
  std::string Description() const override;

 private:
  struct Statements;
  struct Applier;

  SqliteStore(std::string path, std::unique_ptr<SqliteDb> db,
              std::unique_ptr<Statements> statements);

  static absl::StatusOr<std::unique_ptr<SqliteStore>> OpenOnce(const std::string& path);

  const std::string path_;
  absl::Mutex mutex_;
  const std::unique_ptr<SqliteDb> db_ ABSL_PT_GUARDED_BY(mutex_);
  const std::unique_ptr<Statements> statements_ ABSL_PT_GUARDED_BY(mutex_);
};

}  // namespace sparsebalance
