#include "coordinator/security/certificate_watcher.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sparsebalance::security {
namespace {

std::string Until(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

void LogFacts(const char* what, const TlsMaterial& material) {
  const TlsFacts& facts = material.facts();
  if (material.has_certificate()) {
    spdlog::info("TLS {}: certificate of {} ({}), valid until {}{}", what,
                 facts.subject.empty() ? "no subject" : facts.subject,
                 facts.names.empty() ? "no alternative name" : absl::StrJoin(facts.names, ", "),
                 Until(facts.not_after),
                 material.has_ca() ? "; peers must show a certificate" : "");
  } else {
    spdlog::info("TLS {}: CA bundle, no certificate of our own", what);
  }
  for (const std::string& warning : facts.warnings) spdlog::warn("{}", warning);
}

}  // namespace

std::shared_ptr<const TlsMaterial> CertificateWatcher::Reader::TakeNew() {
  absl::MutexLock lock(&mutex_);
  std::shared_ptr<const TlsMaterial> current = watcher_->current();
  if (taken_ == current) return nullptr;
  taken_ = current;
  return current;
}

CertificateWatcher::CertificateWatcher(TlsFiles files, Options options,
                                       std::shared_ptr<const TlsMaterial> material)
    : files_(std::move(files)),
      options_(std::move(options)),
      current_(std::move(material)),
      task_(std::make_unique<PeriodicTask>(options_.interval, [this] { CheckNow(); })) {}

CertificateWatcher::~CertificateWatcher() { task_.reset(); }

absl::StatusOr<std::unique_ptr<CertificateWatcher>> CertificateWatcher::Start(TlsFiles files,
                                                                              Options options) {
  auto loaded = LoadTls(files, options.now());
  if (!loaded.ok()) return loaded.status();
  LogFacts("loaded", **loaded);
  return std::unique_ptr<CertificateWatcher>(
      new CertificateWatcher(std::move(files), std::move(options), *std::move(loaded)));
}

std::shared_ptr<const TlsMaterial> CertificateWatcher::current() const {
  absl::MutexLock lock(&mutex_);
  return current_;
}

CertificateWatcher::Reader* CertificateWatcher::NewReader() {
  absl::MutexLock lock(&mutex_);
  readers_.push_back(std::unique_ptr<Reader>(new Reader(this)));
  return readers_.back().get();
}

void CertificateWatcher::CheckNow() {
  absl::MutexLock check_lock(&check_mutex_);
  auto loaded = LoadTls(files_, options_.now());
  // The files may have been exchanged between the reading of one and of the next.
  if (!loaded.ok()) loaded = LoadTls(files_, options_.now());
  if (loaded.ok()) {
    seen_problem_.clear();
    told_problem_.clear();
    {
      absl::MutexLock lock(&mutex_);
      if ((*loaded)->SameAs(*current_)) return;
      current_ = *loaded;
    }
    ++reloads_;
    LogFacts("rotated", **loaded);
    return;
  }
  const std::string problem(loaded.status().message());
  if (problem == told_problem_) return;
  if (problem != seen_problem_) {
    // Whoever replaces the files one by one is in the middle of it; what is still so at the next
    // look is a mistake.
    seen_problem_ = problem;
    return;
  }
  told_problem_ = problem;
  ++failures_;
  spdlog::error("TLS files not taken up, what was loaded before stays in use: {}", problem);
}

}  // namespace sparsebalance::security
