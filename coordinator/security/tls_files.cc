#include "coordinator/security/tls_files.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

// A bundle of every public CA is a quarter of this; more is a mistake.
constexpr size_t kMaxFileBytes = 1 << 20;

absl::Status Problem(const char* what, const std::string& path, absl::string_view problem) {
  return absl::FailedPreconditionError(absl::StrCat(what, " ", path, ": ", problem));
}

std::string Reason(int error) { return std::generic_category().message(error); }

struct FileText {
  std::string text;
  mode_t mode = 0;
};

absl::StatusOr<FileText> Read(const char* what, const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) {
    const int error = errno;
    return Problem(what, path,
                   absl::StrCat("cannot be opened: ", Reason(error),
                                error == EACCES ? absl::StrCat("; let user ", geteuid(), " read it")
                                                : std::string()));
  }
  const absl::Cleanup close_file = [fd] { close(fd); };
  FileText file;
  struct stat status = {};
  if (fstat(fd, &status) != 0) return Problem(what, path, Reason(errno));
  if (!S_ISREG(status.st_mode)) return Problem(what, path, "is not a regular file");
  file.mode = status.st_mode;
  // Keys are wiped where they end up, so they must not be moved about while the text grows.
  file.text.reserve(std::min<size_t>(static_cast<size_t>(status.st_size), kMaxFileBytes) + 1);
  char buffer[16 * 1024];
  const absl::Cleanup wipe = [&buffer] { OPENSSL_cleanse(buffer, sizeof(buffer)); };
  for (;;) {
    const ssize_t got = read(fd, buffer, sizeof(buffer));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Problem(what, path, absl::StrCat("cannot be read: ", Reason(errno)));
    if (got == 0) break;
    file.text.append(buffer, static_cast<size_t>(got));
    if (file.text.size() > kMaxFileBytes) {
      return Problem(what, path, absl::StrCat("has more than ", kMaxFileBytes, " bytes"));
    }
  }
  if (file.text.empty()) return Problem(what, path, "is empty");
  // gRPC takes C strings: what comes after a zero byte would be checked here and not be used there.
  if (file.text.find('\0') != std::string::npos) {
    return Problem(what, path, "is binary; PEM is needed (openssl x509 -inform DER converts)");
  }
  return file;
}

absl::StatusOr<std::vector<X509Ptr>> Certificates(const char* what, const std::string& path,
                                                  const std::string& pem) {
  ERR_clear_error();
  const BioPtr bio = ReadOnly(pem);
  std::vector<X509Ptr> certificates;
  while (X509* const certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    certificates.emplace_back(certificate);
  }
  // Reading ends with an error in any case; at the end of the file it is this one.
  const bool at_end = ERR_GET_REASON(ERR_peek_last_error()) == PEM_R_NO_START_LINE;
  const std::string reason = TakeOpenSslError();
  if (!at_end) {
    return Problem(what, path,
                   absl::StrCat("certificate ", certificates.size() + 1,
                                " in it does not parse: ", reason, "; is the file whole?"));
  }
  if (certificates.empty()) {
    return Problem(what, path, "holds no certificate (no BEGIN CERTIFICATE line)");
  }
  return certificates;
}

int NoPassword(char*, int, int, void*) { return -1; }

absl::StatusOr<KeyPtr> PrivateKey(const std::string& path, const std::string& pem) {
  if (absl::StrContains(pem, "ENCRYPTED")) {
    return Problem("TLS key", path,
                   "is encrypted; a service cannot ask for its password: decrypt it with "
                   "`openssl pkey -in FILE -out FILE` and keep it readable by this user only");
  }
  ERR_clear_error();
  const BioPtr bio = ReadOnly(pem);
  KeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, &NoPassword, nullptr));
  if (key == nullptr) {
    const std::string reason = TakeOpenSslError();
    return Problem("TLS key", path, absl::StrCat("holds no private key that parses: ", reason));
  }
  return key;
}

std::string At(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S UTC", time, absl::UTCTimeZone());
}

absl::Status CheckValidity(const std::string& path, const std::vector<X509Ptr>& chain,
                           absl::Time now, TlsFacts& facts) {
  for (const X509Ptr& certificate : chain) {
    const absl::Time not_before = AsTime(X509_get0_notBefore(certificate.get()));
    const absl::Time not_after = AsTime(X509_get0_notAfter(certificate.get()));
    const std::string which = absl::StrCat("the certificate of ", SubjectOf(certificate.get()));
    if (now >= not_after) {
      return Problem("TLS certificate", path,
                     absl::StrCat(which, " expired at ", At(not_after), "; replace it"));
    }
    if (now < not_before) {
      return Problem("TLS certificate", path,
                     absl::StrCat(which, " is not valid before ", At(not_before),
                                  "; is this machine's clock right?"));
    }
    facts.not_before = std::max(facts.not_before, not_before);
    facts.not_after = std::min(facts.not_after, not_after);
  }
  return absl::OkStatus();
}

void Describe(const X509* certificate, TlsFacts& facts) {
  facts.subject = SubjectOf(certificate);
  const AlternativeNames names = AlternativeNamesOf(certificate);
  for (const std::string& uri : names.uris) facts.names.push_back(absl::StrCat("uri:", uri));
  for (const std::string& dns : names.dns) facts.names.push_back(absl::StrCat("dns:", dns));
}

absl::Status CheckCa(const std::string& path, const std::string& pem, absl::Time now,
                     TlsFacts& facts) {
  const auto certificates = Certificates("TLS CA bundle", path, pem);
  if (!certificates.ok()) return certificates.status();
  size_t expired = 0;
  for (const X509Ptr& certificate : *certificates) {
    const absl::Time not_after = AsTime(X509_get0_notAfter(certificate.get()));
    if (now < not_after) continue;
    ++expired;
    facts.warnings.push_back(absl::StrCat(
        "TLS CA bundle ", path, ": ", SubjectOf(certificate.get()), " expired at ", At(not_after)));
  }
  if (expired == certificates->size()) {
    return Problem("TLS CA bundle", path, "every certificate in it has expired; replace it");
  }
  return absl::OkStatus();
}

absl::Status CheckTogether(const TlsFiles& files) {
  if (files.certificate.empty() != files.key.empty()) {
    return absl::InvalidArgumentError(
        files.key.empty()
            ? absl::StrCat("TLS certificate ", files.certificate, " is given without its key")
            : absl::StrCat("TLS key ", files.key, " is given without its certificate"));
  }
  if (files.certificate.empty() && files.ca.empty()) {
    return absl::InvalidArgumentError("TLS needs a certificate with its key, a CA bundle, or both");
  }
  return absl::OkStatus();
}

}  // namespace

TlsMaterial::TlsMaterial(std::string certificate_pem, std::string key_pem, std::string ca_pem,
                         TlsFacts facts)
    : certificate_pem_(std::move(certificate_pem)),
      key_pem_(std::move(key_pem)),
      ca_pem_(std::move(ca_pem)),
      facts_(std::move(facts)) {}

TlsMaterial::~TlsMaterial() { OPENSSL_cleanse(key_pem_.data(), key_pem_.size()); }

bool TlsMaterial::SameAs(const TlsMaterial& other) const {
  return certificate_pem_ == other.certificate_pem_ && key_pem_ == other.key_pem_ &&
         ca_pem_ == other.ca_pem_;
}

absl::StatusOr<std::shared_ptr<const TlsMaterial>> LoadTls(const TlsFiles& files, absl::Time now) {
  if (absl::Status status = CheckTogether(files); !status.ok()) return status;
  TlsFacts facts;
  FileText certificate;
  FileText key;
  FileText ca;
  // Wherever this ends, the key's text does not stay behind in memory.
  const absl::Cleanup wipe = [&key] { OPENSSL_cleanse(key.text.data(), key.text.size()); };
  if (!files.certificate.empty()) {
    auto certificate_read = Read("TLS certificate", files.certificate);
    if (!certificate_read.ok()) return certificate_read.status();
    certificate = *std::move(certificate_read);
    auto key_read = Read("TLS key", files.key);
    if (!key_read.ok()) return key_read.status();
    key = *std::move(key_read);
    const auto chain = Certificates("TLS certificate", files.certificate, certificate.text);
    if (!chain.ok()) return chain.status();
    const auto parsed_key = PrivateKey(files.key, key.text);
    if (!parsed_key.ok()) return parsed_key.status();
    ERR_clear_error();
    if (X509_check_private_key(chain->front().get(), parsed_key->get()) != 1) {
      ERR_clear_error();
      return Problem(
          "TLS key", files.key,
          absl::StrCat("does not belong to the certificate in ", files.certificate, " (of ",
                       SubjectOf(chain->front().get()),
                       "); the certificate comes first in its file, then intermediates"));
    }
    if (absl::Status status = CheckValidity(files.certificate, *chain, now, facts); !status.ok()) {
      return status;
    }
    Describe(chain->front().get(), facts);
    if ((key.mode & (S_IRGRP | S_IROTH)) != 0) {
      facts.warnings.push_back(
          absl::StrCat("TLS key ", files.key, " can be read by other users; chmod 600 it"));
    }
  }
  if (!files.ca.empty()) {
    auto ca_read = Read("TLS CA bundle", files.ca);
    if (!ca_read.ok()) return ca_read.status();
    ca = *std::move(ca_read);
    if (absl::Status status = CheckCa(files.ca, ca.text, now, facts); !status.ok()) return status;
  }
  auto material = std::make_shared<const TlsMaterial>(std::move(certificate.text), key.text,
                                                      std::move(ca.text), std::move(facts));
  if (material->has_certificate()) {
    // gRPC would find out only when the first connection comes.
    if (const auto context = MakeServerContext(*material); !context.ok()) {
      return Problem("TLS certificate", files.certificate, context.status().message());
    }
  }
  return material;
}

absl::StatusOr<SslContextPtr> MakeServerContext(const TlsMaterial& material) {
  ERR_clear_error();
  const auto refused = [](const char* what) {
    const std::string reason = TakeOpenSslError();
    return absl::FailedPreconditionError(absl::StrCat("OpenSSL refuses ", what, ": ", reason));
  };
  SslContextPtr context(SSL_CTX_new(TLS_server_method()));
  if (context == nullptr) return refused("a new context");
  SSL_CTX* const raw = context.get();
  SSL_CTX_set_min_proto_version(raw, TLS1_2_VERSION);
  SSL_CTX_set_options(raw, SSL_OP_NO_TICKET | SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                               SSL_OP_CIPHER_SERVER_PREFERENCE);
  SSL_CTX_set_session_cache_mode(raw, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_num_tickets(raw, 0);
  SSL_CTX_set_mode(raw, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);

  const auto chain = Certificates("TLS certificate", "", material.certificate_pem());
  if (!chain.ok()) return chain.status();
  const auto key = PrivateKey("", material.key_pem());
  if (!key.ok()) return key.status();
  ERR_clear_error();
  if (SSL_CTX_use_certificate(raw, chain->front().get()) != 1) return refused("the certificate");
  for (size_t i = 1; i < chain->size(); ++i) {
    if (SSL_CTX_add1_chain_cert(raw, (*chain)[i].get()) != 1) return refused("an intermediate");
  }
  if (SSL_CTX_use_PrivateKey(raw, key->get()) != 1) return refused("the key");
  if (!material.has_ca()) return context;

  const auto cas = Certificates("TLS CA bundle", "", material.ca_pem());
  if (!cas.ok()) return cas.status();
  X509_STORE* const store = SSL_CTX_get_cert_store(raw);
  for (const X509Ptr& ca : *cas) {
    if (X509_STORE_add_cert(store, ca.get()) != 1) return refused("a CA");
    // Clients with several certificates choose by these names.
    if (SSL_CTX_add_client_CA(raw, ca.get()) != 1) return refused("a CA's name");
  }
  SSL_CTX_set_verify(raw, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  return context;
}

}  // namespace sparsebalance::security
