#include "coordinator/security/test_pki.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>

namespace sparsebalance::security {
namespace {

// A test that cannot make its certificates has nothing to say.
void Require(bool done, const char* what) {
  if (done) return;
  ERR_print_errors_fp(stderr);
  std::fprintf(stderr, "test certificates: %s failed\n", what);
  abort();
}

template <typename Write>
std::string Pem(Write write) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  Require(write(bio.get()) == 1, "writing PEM");
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return {data, static_cast<size_t>(size)};
}

KeyPtr NewKey(int rsa_bits) {
  KeyPtr key(rsa_bits == 0 ? EVP_EC_gen("P-256") : EVP_RSA_gen(static_cast<size_t>(rsa_bits)));
  Require(key != nullptr, "making a key");
  return key;
}

X509Ptr NewCertificate(const std::string& common_name, EVP_PKEY* key, absl::Time not_before,
                       absl::Time not_after) {
  X509Ptr certificate(X509_new());
  X509* const raw = certificate.get();
  Require(X509_set_version(raw, X509_VERSION_3) == 1, "the version");
  uint64_t serial = 0;
  Require(RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial)) == 1, "a serial");
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(raw), serial >> 1);
  ASN1_TIME_set(X509_getm_notBefore(raw), absl::ToTimeT(not_before));
  ASN1_TIME_set(X509_getm_notAfter(raw), absl::ToTimeT(not_after));
  Require(X509_set_pubkey(raw, key) == 1, "the public key");
  Require(X509_NAME_add_entry_by_txt(X509_get_subject_name(raw), "CN", MBSTRING_UTF8,
                                     reinterpret_cast<const unsigned char*>(common_name.data()),
                                     static_cast<int>(common_name.size()), -1, 0) == 1,
          "the subject");
  return certificate;
}

void AddExtension(X509* certificate, X509* issuer, int kind, const char* value) {
  X509V3_CTX context;
  X509V3_set_ctx(&context, issuer, certificate, nullptr, nullptr, 0);
  X509_EXTENSION* const extension = X509V3_EXT_conf_nid(nullptr, &context, kind, value);
  Require(extension != nullptr && X509_add_ext(certificate, extension, -1) == 1, value);
  X509_EXTENSION_free(extension);
}

void AddName(GENERAL_NAMES* names, int kind, const std::string& bytes) {
  ASN1_STRING* const text =
      ASN1_STRING_type_new(kind == GEN_IPADD ? V_ASN1_OCTET_STRING : V_ASN1_IA5STRING);
  ASN1_STRING_set(text, bytes.data(), static_cast<int>(bytes.size()));
  GENERAL_NAME* const name = GENERAL_NAME_new();
  GENERAL_NAME_set0_value(name, kind, text);
  sk_GENERAL_NAME_push(names, name);
}

void AddNames(X509* certificate, const TestLeaf& leaf) {
  const GeneralNamesPtr names(GENERAL_NAMES_new());
  for (const std::string& uri : leaf.uris) AddName(names.get(), GEN_URI, uri);
  for (const std::string& dns : leaf.dns) AddName(names.get(), GEN_DNS, dns);
  for (const std::string& ip : leaf.ips) {
    in_addr address = {};
    Require(inet_pton(AF_INET, ip.c_str(), &address) == 1, "reading an address");
    AddName(names.get(), GEN_IPADD,
            std::string(reinterpret_cast<const char*>(&address), sizeof(address)));
  }
  if (sk_GENERAL_NAME_num(names.get()) == 0) return;
  Require(X509_add1_ext_i2d(certificate, NID_subject_alt_name, names.get(), 0, 0) == 1,
          "the alternative names");
}

std::string CertificatePem(X509* certificate) {
  return Pem([certificate](BIO* bio) { return PEM_write_bio_X509(bio, certificate); });
}

}  // namespace

TestCa::TestCa(const std::string& name, absl::Time not_after)
    : key_(NewKey(0)),
      x509_(NewCertificate(name, key_.get(), absl::Now() - absl::Hours(24 * 365), not_after)) {
  X509* const raw = x509_.get();
  X509_set_issuer_name(raw, X509_get_subject_name(raw));
  AddExtension(raw, raw, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(raw, raw, NID_key_usage, "critical,keyCertSign,cRLSign");
  AddExtension(raw, raw, NID_subject_key_identifier, "hash");
  Require(X509_sign(raw, key_.get(), EVP_sha256()) > 0, "signing");
  certificate_ = CertificatePem(raw);
}

TestIdentity TestCa::Issue(const TestLeaf& leaf) const {
  const KeyPtr key = NewKey(leaf.rsa_bits);
  const X509Ptr certificate =
      NewCertificate(leaf.common_name, key.get(), leaf.not_before, leaf.not_after);
  X509* const raw = certificate.get();
  X509_set_issuer_name(raw, X509_get_subject_name(x509_.get()));
  AddExtension(raw, x509_.get(), NID_basic_constraints, "critical,CA:FALSE");
  AddExtension(raw, x509_.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  AddExtension(raw, x509_.get(), NID_authority_key_identifier, "keyid");
  AddNames(raw, leaf);
  Require(X509_sign(raw, key_.get(), EVP_sha256()) > 0, "signing");
  return {CertificatePem(raw), Pem([&key](BIO* bio) {
            return PEM_write_bio_PrivateKey(bio, key.get(), nullptr, nullptr, 0, nullptr, nullptr);
          })};
}

TestIdentity TestCa::IssueServer(const std::string& common_name) const {
  TestLeaf leaf;
  leaf.common_name = common_name;
  leaf.dns = {"localhost"};
  leaf.ips = {"127.0.0.1"};
  return Issue(leaf);
}

TestTlsFolder::TestTlsFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "sb-tls-XXXXXX").string();
  Require(mkdtemp(pattern.data()) != nullptr, "making a folder");
  path_ = pattern;
}

TestTlsFolder::~TestTlsFolder() { std::filesystem::remove_all(path_); }

std::string TestTlsFolder::operator/(const std::string& name) const { return path_ + "/" + name; }

void TestTlsFolder::Write(const std::string& name, const std::string& text) const {
  const std::string made = *this / (name + ".new");
  const int fd = open(made.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  Require(fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()),
          "writing a file");
  close(fd);
  std::filesystem::rename(made, *this / name);
}

TlsFiles TestTlsFolder::Write(const TestIdentity& identity, const std::string& ca) const {
  Write("tls.crt", identity.certificate);
  Write("tls.key", identity.key);
  Write("ca.crt", ca);
  return files();
}

TlsFiles TestTlsFolder::files() const {
  return {*this / "tls.crt", *this / "tls.key", *this / "ca.crt"};
}

}  // namespace sparsebalance::security
