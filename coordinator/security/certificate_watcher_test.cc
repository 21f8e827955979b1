// Replacing certificates while they are in use.

#include "coordinator/security/certificate_watcher.h"

#include <unistd.h>

#include <filesystem>

#include "coordinator/security/log_capture.h"
#include "coordinator/security/test_pki.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::security {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;
using testing::Not;

// The tests look at the files themselves; the thread never comes to it.
constexpr absl::Duration kNever = absl::Hours(1);

class CertificateWatcherTest : public testing::Test {
 protected:
  std::unique_ptr<CertificateWatcher> Start(const TlsFiles& files,
                                            absl::Duration interval = kNever) {
    CertificateWatcher::Options options;
    options.interval = interval;
    auto watcher = CertificateWatcher::Start(files, options);
    EXPECT_TRUE(watcher.ok()) << watcher.status();
    return *std::move(watcher);
  }

  LogCapture log_;
  const TestCa ca_{"test CA"};
  const TestTlsFolder folder_;
  const TestIdentity first_ = ca_.IssueServer("first");
  const TestIdentity second_ = ca_.IssueServer("second");
  const TlsFiles files_ = folder_.Write(first_, ca_.certificate());
};

TEST_F(CertificateWatcherTest, TakesUpANewPair) {
  const auto watcher = Start(files_);
  EXPECT_EQ(watcher->current()->facts().subject, "CN=first");
  folder_.Write(second_, ca_.certificate());
  watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=second");
  EXPECT_EQ(watcher->reloads(), 1u);
  EXPECT_EQ(watcher->failures(), 0u);
  watcher->CheckNow();
  EXPECT_EQ(watcher->reloads(), 1u);
  EXPECT_EQ(log_.Count("TLS rotated"), 1u);
}

TEST_F(CertificateWatcherTest, LooksByItselfAtItsInterval) {
  const auto watcher = Start(files_, absl::Milliseconds(5));
  folder_.Write(second_, ca_.certificate());
  const absl::Time deadline = absl::Now() + absl::Seconds(60);
  while (watcher->reloads() == 0 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(1));
  EXPECT_EQ(watcher->current()->facts().subject, "CN=second");
}

TEST_F(CertificateWatcherTest, FilesReplacedOneByOneAreTakenUpTogether) {
  const auto watcher = Start(files_);
  folder_.Write("tls.crt", second_.certificate);
  watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=first");
  folder_.Write("tls.key", second_.key);
  watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=second");
  // Being caught in the middle is no failure.
  EXPECT_EQ(watcher->failures(), 0u);
  EXPECT_EQ(log_.Count("error"), 0u);
}

// How Kubernetes mounts secrets: the files are links into a folder behind a link that is replaced.
TEST_F(CertificateWatcherTest, AFolderExchangedBehindALinkIsTakenUp) {
  const auto version = [&](const std::string& name, const TestIdentity& identity) {
    fs::create_directory(folder_ / name);
    folder_.Write(name + "/tls.crt", identity.certificate);
    folder_.Write(name + "/tls.key", identity.key);
    folder_.Write(name + "/ca.crt", ca_.certificate());
  };
  const TestTlsFolder mounted;
  version("v1", first_);
  version("v2", second_);
  fs::create_directory_symlink(folder_ / "v1", mounted / "..data");
  for (const char* name : {"tls.crt", "tls.key", "ca.crt"}) {
    fs::create_symlink(std::string("..data/") + name, mounted / name);
  }
  const auto watcher = Start(mounted.files());
  fs::create_directory_symlink(folder_ / "v2", mounted / "..data_tmp");
  fs::rename(mounted / "..data_tmp", mounted / "..data");
  watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=second");
  EXPECT_EQ(watcher->failures(), 0u);
}

TEST_F(CertificateWatcherTest, ABadPairIsRefusedOnceAndTheOldOneStays) {
  const auto watcher = Start(files_);
  folder_.Write("tls.key", second_.key);
  for (int i = 0; i < 5; ++i) watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=first");
  EXPECT_EQ(watcher->reloads(), 0u);
  EXPECT_EQ(watcher->failures(), 1u);
  EXPECT_EQ(log_.Count("what was loaded before stays in use: TLS key"), 1u);

  folder_.Write("tls.crt", "-----BEGIN CERTIFICATE-----\nnothing\n-----END CERTIFICATE-----\n");
  for (int i = 0; i < 5; ++i) watcher->CheckNow();
  EXPECT_EQ(watcher->failures(), 2u);

  folder_.Write(second_, ca_.certificate());
  watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=second");
  // The same mistake after a good pair is news again.
  folder_.Write("tls.key", first_.key);
  for (int i = 0; i < 5; ++i) watcher->CheckNow();
  EXPECT_EQ(watcher->failures(), 3u);
}

TEST_F(CertificateWatcherTest, FilesThatVanishChangeNothing) {
  const auto watcher = Start(files_);
  ASSERT_EQ(unlink(files_.certificate.c_str()), 0);
  for (int i = 0; i < 3; ++i) watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=first");
  EXPECT_EQ(watcher->failures(), 1u);
}

TEST_F(CertificateWatcherTest, AnExpiredReplacementIsRefused) {
  const auto watcher = Start(files_);
  TestLeaf expired;
  expired.not_before = absl::Now() - absl::Hours(2);
  expired.not_after = absl::Now() - absl::Hours(1);
  folder_.Write(ca_.Issue(expired), ca_.certificate());
  for (int i = 0; i < 3; ++i) watcher->CheckNow();
  EXPECT_EQ(watcher->current()->facts().subject, "CN=first");
  EXPECT_GT(watcher->not_after(), absl::Now());
  EXPECT_EQ(log_.Count("expired at"), 1u);
}

TEST_F(CertificateWatcherTest, EachReaderHearsOfEachChangeOnce) {
  const auto watcher = Start(files_);
  CertificateWatcher::Reader* const a = watcher->NewReader();
  CertificateWatcher::Reader* const b = watcher->NewReader();
  ASSERT_NE(a->TakeNew(), nullptr);
  EXPECT_EQ(a->TakeNew(), nullptr);
  folder_.Write(second_, ca_.certificate());
  watcher->CheckNow();
  EXPECT_EQ(a->TakeNew()->facts().subject, "CN=second");
  EXPECT_EQ(a->TakeNew(), nullptr);
  EXPECT_EQ(b->TakeNew()->facts().subject, "CN=second");
}

TEST_F(CertificateWatcherTest, NothingSecretIsLogged) {
  const auto watcher = Start(files_);
  folder_.Write(second_, ca_.certificate());
  watcher->CheckNow();
  folder_.Write("tls.key", first_.key);
  for (int i = 0; i < 3; ++i) watcher->CheckNow();
  EXPECT_THAT(log_.Text(), HasSubstr("CN=second"));
  for (const TestIdentity& identity : {first_, second_}) {
    // Any line of the key's text would give it away.
    for (size_t from = 0; from + 20 < identity.key.size(); from += 20) {
      EXPECT_THAT(log_.Text(), Not(HasSubstr(identity.key.substr(from, 20))));
    }
  }
}

}  // namespace
}  // namespace sparsebalance::security
