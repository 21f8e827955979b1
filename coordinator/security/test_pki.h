// Certificates for tests, made in memory within milliseconds: no openssl program, no files of keys
// in the repository.
#pragma once

#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/security/openssl_types.h"
#include "coordinator/security/tls_files.h"

namespace sparsebalance::security {

struct TestIdentity {
  std::string certificate;  // PEM
  std::string key;          // PEM
};

struct TestLeaf {
  std::string common_name = "leaf";
  std::vector<std::string> uris;
  std::vector<std::string> dns;
  std::vector<std::string> ips;
  absl::Time not_before = absl::Now() - absl::Hours(1);
  absl::Time not_after = absl::Now() + absl::Hours(1);
  int rsa_bits = 0;  // 0: an elliptic curve
};

class TestCa {
 public:
  explicit TestCa(const std::string& name, absl::Time not_after = absl::Now() + absl::Hours(24));

  const std::string& certificate() const { return certificate_; }  // PEM
  TestIdentity Issue(const TestLeaf& leaf) const;
  // For a server that tests reach as 127.0.0.1 and localhost.
  TestIdentity IssueServer(const std::string& common_name = "server") const;

 private:
  KeyPtr key_;
  X509Ptr x509_;
  std::string certificate_;
};

// A folder of PEM files, removed with this object.
class TestTlsFolder {
 public:
  TestTlsFolder();
  ~TestTlsFolder();
  TestTlsFolder(const TestTlsFolder&) = delete;
  TestTlsFolder& operator=(const TestTlsFolder&) = delete;

  std::string operator/(const std::string& name) const;
  // Replaces the file in one step, readable by this user only.
  void Write(const std::string& name, const std::string& text) const;
  // As tls.crt, tls.key and ca.crt.
  TlsFiles Write(const TestIdentity& identity, const std::string& ca) const;
  TlsFiles files() const;

 private:
  std::string path_;
};

}  // namespace sparsebalance::security
