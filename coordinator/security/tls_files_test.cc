// Certificates and keys as operators hand them over, right and wrong.

#include "coordinator/security/tls_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "coordinator/security/test_pki.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::security {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

class TlsFilesTest : public testing::Test {
 protected:
  absl::StatusOr<std::shared_ptr<const TlsMaterial>> Load(const TlsFiles& files) {
    return LoadTls(files, absl::Now());
  }
  // The one line that a user would see.
  std::string Problem(const TlsFiles& files) {
    const auto loaded = Load(files);
    EXPECT_FALSE(loaded.ok());
    const std::string message(loaded.status().message());
    EXPECT_THAT(message, Not(HasSubstr("\n")));
    EXPECT_THAT(message, Not(HasSubstr("PRIVATE KEY")));
    return message;
  }

  const TestCa ca_{"test CA"};
  const TestTlsFolder folder_;
  const TestIdentity server_ = ca_.IssueServer();
  const TlsFiles files_ = folder_.Write(server_, ca_.certificate());
};

TEST_F(TlsFilesTest, SaysWhatWasLoaded) {
  TestLeaf leaf;
  leaf.common_name = "node 7";
  leaf.uris = {"spiffe://cluster/ns/ml/sa/trainer"};
  leaf.dns = {"node-7.example.org"};
  leaf.not_after = absl::FromUnixSeconds(4'000'000'000);
  const auto loaded = Load(folder_.Write(ca_.Issue(leaf), ca_.certificate()));
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  const TlsFacts& facts = (*loaded)->facts();
  EXPECT_EQ(facts.subject, "CN=node 7");
  EXPECT_THAT(facts.names,
              ElementsAre("uri:spiffe://cluster/ns/ml/sa/trainer", "dns:node-7.example.org"));
  EXPECT_EQ(facts.not_after, leaf.not_after);
  EXPECT_THAT(facts.warnings, IsEmpty());
}

TEST_F(TlsFilesTest, NamesAMissingFile) {
  ASSERT_EQ(unlink(files_.key.c_str()), 0);
  EXPECT_THAT(Problem(files_),
              AllOf(HasSubstr("TLS key " + files_.key), HasSubstr("No such file or directory")));
}

TEST_F(TlsFilesTest, NamesAFileThatItMayNotRead) {
  ASSERT_EQ(chmod((folder_ / "").c_str(), 0711), 0);
  ASSERT_EQ(chmod(files_.certificate.c_str(), 0644), 0);
  ASSERT_EQ(chmod(files_.key.c_str(), 0), 0);
  // Root may read everything, so it becomes somebody else for a moment.
  const bool root = geteuid() == 0;
  constexpr uid_t kNobody = 65534;
  if (root) ASSERT_EQ(seteuid(kNobody), 0);
  const std::string problem = Problem(files_);
  const std::string who = absl::StrCat("let user ", geteuid(), " read it");
  if (root) ASSERT_EQ(seteuid(0), 0);
  EXPECT_THAT(problem, AllOf(HasSubstr("TLS key " + files_.key), HasSubstr("Permission denied"),
                             HasSubstr(who)));
}

TEST_F(TlsFilesTest, RefusesAFolderAndAnEmptyFile) {
  TlsFiles files = files_;
  files.ca = folder_ / "";
  EXPECT_THAT(Problem(files), HasSubstr("is not a regular file"));
  folder_.Write("ca.crt", "");
  EXPECT_THAT(Problem(files_), HasSubstr("TLS CA bundle " + files_.ca + ": is empty"));
}

TEST_F(TlsFilesTest, RefusesAKeyOfAnotherCertificate) {
  folder_.Write("tls.key", ca_.IssueServer("another").key);
  EXPECT_THAT(Problem(files_), AllOf(HasSubstr("TLS key " + files_.key),
                                     HasSubstr("does not belong to"), HasSubstr("CN=server")));
}

TEST_F(TlsFilesTest, RefusesWhatHasExpiredOrIsNotValidYet) {
  TestLeaf leaf;
  leaf.common_name = "old";
  leaf.not_before = absl::FromUnixSeconds(1'000'000'000);
  leaf.not_after = absl::FromUnixSeconds(1'500'000'000);
  folder_.Write(ca_.Issue(leaf), ca_.certificate());
  EXPECT_THAT(Problem(files_), HasSubstr("CN=old expired at 2017-07-14 02:40:00 UTC; replace it"));
  leaf.not_before = absl::FromUnixSeconds(4'000'000'000);
  leaf.not_after = absl::FromUnixSeconds(4'100'000'000);
  folder_.Write(ca_.Issue(leaf), ca_.certificate());
  EXPECT_THAT(Problem(files_), HasSubstr("is not valid before 2096-10-02 07:06:40 UTC"));
}

TEST_F(TlsFilesTest, RefusesHalfAFile) {
  folder_.Write("tls.crt", server_.certificate.substr(0, server_.certificate.size() / 2));
  EXPECT_THAT(Problem(files_), HasSubstr("certificate 1 in it does not parse"));
  folder_.Write("tls.crt", server_.certificate);
  folder_.Write("tls.key", server_.key.substr(0, server_.key.size() / 2));
  EXPECT_THAT(Problem(files_), HasSubstr("holds no private key that parses"));
  folder_.Write("tls.key", server_.key);
  const std::string twice = ca_.certificate() + ca_.certificate();
  folder_.Write("ca.crt", twice.substr(0, twice.size() - 100));
  EXPECT_THAT(Problem(files_), HasSubstr("certificate 2 in it does not parse"));
}

TEST_F(TlsFilesTest, RefusesAnEncryptedKeyInsteadOfAskingForAPassword) {
  folder_.Write(
      "tls.key",
      "-----BEGIN ENCRYPTED PRIVATE KEY-----\nAAAA\n-----END ENCRYPTED PRIVATE KEY-----\n");
  EXPECT_THAT(Problem(files_), AllOf(HasSubstr("is encrypted"), HasSubstr("openssl pkey")));
}

TEST_F(TlsFilesTest, RefusesBinaryFiles) {
  folder_.Write("tls.crt", std::string("\x30\x82\x00\x01", 4));
  EXPECT_THAT(Problem(files_), HasSubstr("is binary; PEM is needed"));
}

TEST_F(TlsFilesTest, RefusesAKeyThatIsTooShortForTls) {
  TestLeaf leaf;
  leaf.rsa_bits = 1024;
  folder_.Write(ca_.Issue(leaf), ca_.certificate());
  EXPECT_THAT(Problem(files_), HasSubstr("OpenSSL refuses the certificate: ee key too small"));
}

TEST_F(TlsFilesTest, WarnsOfAKeyThatOthersMayRead) {
  ASSERT_EQ(chmod(files_.key.c_str(), 0644), 0);
  const auto loaded = Load(files_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->facts().warnings,
              ElementsAre(AllOf(HasSubstr(files_.key), HasSubstr("chmod 600"))));
}

TEST_F(TlsFilesTest, AnExpiredCaAmongOthersIsAWarningAndAloneAnError) {
  const TestCa old("old CA", absl::Now() - absl::Hours(1));
  folder_.Write("ca.crt", old.certificate() + ca_.certificate());
  const auto loaded = Load(files_);
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_THAT((*loaded)->facts().warnings, ElementsAre(HasSubstr("CN=old CA expired at")));
  folder_.Write("ca.crt", old.certificate());
  EXPECT_THAT(Problem(files_), HasSubstr("every certificate in it has expired"));
}

TEST_F(TlsFilesTest, CertificateAndKeyGoTogether) {
  TlsFiles files = files_;
  files.key.clear();
  EXPECT_EQ(Load(files).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Load({}).status().code(), absl::StatusCode::kInvalidArgument);
  files.certificate.clear();
  const auto ca_alone = Load(files);
  ASSERT_TRUE(ca_alone.ok()) << ca_alone.status();
  EXPECT_FALSE((*ca_alone)->has_certificate());
  EXPECT_TRUE((*ca_alone)->has_ca());
}

}  // namespace
}  // namespace sparsebalance::security
