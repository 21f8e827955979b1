// Certificate, key and CA from files, checked as a whole before anything uses them.
//
//   absl::StatusOr<std::shared_ptr<const TlsMaterial>> loaded = LoadTls(files, absl::Now());
//   if (!loaded.ok()) ...  // one line: which file, what is wrong, what to do
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/security/openssl_types.h"

namespace sparsebalance::security {

// Paths of PEM files.
struct TlsFiles {
  std::string certificate;  // the certificate, then the intermediates that lead to its CA
  std::string key;          // not encrypted
  // CAs that peers' certificates must lead to. Servers: empty, clients are not asked for one.
  std::string ca;
};

// What may be said about them in logs and metrics.
struct TlsFacts {
  std::string subject;             // empty where there is a CA alone
  std::vector<std::string> names;  // uri:... and dns:...
  absl::Time not_before = absl::InfinitePast();
  // When the certificate or one of its intermediates ends, whichever is first.
  absl::Time not_after = absl::InfiniteFuture();
  std::vector<std::string> warnings;  // sentences
};

// Immutable. The key is wiped from memory at the end.
class TlsMaterial {
 public:
  TlsMaterial(std::string certificate_pem, std::string key_pem, std::string ca_pem, TlsFacts facts);
  ~TlsMaterial();
  TlsMaterial(const TlsMaterial&) = delete;
  TlsMaterial& operator=(const TlsMaterial&) = delete;

  const std::string& certificate_pem() const { return certificate_pem_; }
  const std::string& key_pem() const { return key_pem_; }
  const std::string& ca_pem() const { return ca_pem_; }
  const TlsFacts& facts() const { return facts_; }
  bool has_certificate() const { return !certificate_pem_.empty(); }
  bool has_ca() const { return !ca_pem_.empty(); }
  bool SameAs(const TlsMaterial& other) const;

 private:
  const std::string certificate_pem_;
  std::string key_pem_;
  const std::string ca_pem_;
  const TlsFacts facts_;
};

// `certificate` and `key` are given together or not at all; without them there is a `ca`.
// INVALID_ARGUMENT for a combination of files that makes no sense; FAILED_PRECONDITION, naming the
// file, where one cannot be read or parsed, where key and certificate do not belong together, and
// where a certificate has expired or is not valid yet.
absl::StatusOr<std::shared_ptr<const TlsMaterial>> LoadTls(const TlsFiles& files, absl::Time now);

// For servers that do TLS themselves: TLS 1.2 and 1.3. Where there is a CA, clients must show a
// certificate of it. Sessions are not resumed, so that each connection is checked anew.
// FAILED_PRECONDITION where OpenSSL does not accept the material, too weak a key for example.
absl::StatusOr<SslContextPtr> MakeServerContext(const TlsMaterial& material);

}  // namespace sparsebalance::security
