// Certificate, key and CA as the files hold them now: one watcher serves gRPC, HTTPS and clients.
//
// The files are read at an interval and taken up together once they are whole and belong together,
// so it does not matter whether they are replaced one by one or all at once behind a symbolic link.
// What cannot be used is refused with one line in the log, and what was there before stays in use.
// Connections that exist are not touched: they keep what they were opened with.
//
//   absl::StatusOr<std::unique_ptr<CertificateWatcher>> watcher =
//       CertificateWatcher::Start({.certificate = "tls.crt", .key = "tls.key", .ca = "ca.crt"},
//       {});
#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/security/periodic_task.h"
#include "coordinator/security/tls_files.h"

namespace sparsebalance::security {

class CertificateWatcher {
 public:
  struct Options {
    // Long enough to cost nothing, short enough for certificates that live for an hour.
    absl::Duration interval = absl::Seconds(10);
    std::function<absl::Time()> now = absl::Now;
  };

  // Someone who wants to hear of each change once.
  class Reader {
   public:
    Reader(const Reader&) = delete;
    Reader& operator=(const Reader&) = delete;

    // What is in use now if it is not what the last call gave; nullptr if it is.
    std::shared_ptr<const TlsMaterial> TakeNew() ABSL_LOCKS_EXCLUDED(mutex_);

   private:
    friend class CertificateWatcher;
    explicit Reader(const CertificateWatcher* watcher) : watcher_(watcher) {}

    const CertificateWatcher* const watcher_;
    absl::Mutex mutex_;
    std::shared_ptr<const TlsMaterial> taken_ ABSL_GUARDED_BY(mutex_);
  };

  // Loads the files and begins to watch them. The errors of LoadTls. Logs what was loaded, without
  // anything secret, and warnings.
  static absl::StatusOr<std::unique_ptr<CertificateWatcher>> Start(TlsFiles files, Options options);
  ~CertificateWatcher();
  CertificateWatcher(const CertificateWatcher&) = delete;
  CertificateWatcher& operator=(const CertificateWatcher&) = delete;

  // What is in use. Thread-safe, as all that follows.
  std::shared_ptr<const TlsMaterial> current() const ABSL_LOCKS_EXCLUDED(mutex_);
  const TlsFiles& files() const { return files_; }

  // It lives as long as the watcher.
  Reader* NewReader() ABSL_LOCKS_EXCLUDED(mutex_);

  // Looks at the files now instead of at the end of the interval.
  void CheckNow() ABSL_LOCKS_EXCLUDED(check_mutex_, mutex_);

  // For metrics.
  absl::Time not_after() const { return current()->facts().not_after; }
  uint64_t reloads() const { return reloads_.load(); }
  uint64_t failures() const { return failures_.load(); }  // bad replacements, each counted once

 private:
  CertificateWatcher(TlsFiles files, Options options, std::shared_ptr<const TlsMaterial> material);

  const TlsFiles files_;
  const Options options_;
  std::atomic<uint64_t> reloads_{0};
  std::atomic<uint64_t> failures_{0};

  absl::Mutex check_mutex_;  // one look at the files at a time
  std::string seen_problem_ ABSL_GUARDED_BY(check_mutex_);
  std::string told_problem_ ABSL_GUARDED_BY(check_mutex_);

  mutable absl::Mutex mutex_ ABSL_ACQUIRED_AFTER(check_mutex_);
  std::shared_ptr<const TlsMaterial> current_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Reader>> readers_ ABSL_GUARDED_BY(mutex_);

  std::unique_ptr<PeriodicTask> task_;  // last: it uses the rest
};

}  // namespace sparsebalance::security
