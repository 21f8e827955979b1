// Owning pointers for OpenSSL's C types, and the few things that are read from certificates.
#pragma once

#include <openssl/asn1.h>
#include <openssl/bio.h>
#include <openssl/evp.h>
#include <openssl/ssl.h>
#include <openssl/x509.h>
#include <openssl/x509v3.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace sparsebalance::security {

struct OpenSslFree {
  void operator()(BIO* bio) const { BIO_free(bio); }
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(GENERAL_NAMES* names) const { GENERAL_NAMES_free(names); }
  void operator()(SSL* connection) const { SSL_free(connection); }
  void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
  void operator()(X509* certificate) const { X509_free(certificate); }
  void operator()(X509_STORE* store) const { X509_STORE_free(store); }
};

using BioPtr = std::unique_ptr<BIO, OpenSslFree>;
using KeyPtr = std::unique_ptr<EVP_PKEY, OpenSslFree>;
using GeneralNamesPtr = std::unique_ptr<GENERAL_NAMES, OpenSslFree>;
using SslPtr = std::unique_ptr<SSL, OpenSslFree>;
using SslContextPtr = std::unique_ptr<SSL_CTX, OpenSslFree>;
using X509Ptr = std::unique_ptr<X509, OpenSslFree>;
using X509StorePtr = std::unique_ptr<X509_STORE, OpenSslFree>;

// Reads from `pem` without copying it; `pem` outlives the result.
BioPtr ReadOnly(const std::string& pem);

// Why OpenSSL failed last in this thread, in its words; its queue of errors is emptied.
std::string TakeOpenSslError();

// InfinitePast where it cannot be read.
absl::Time AsTime(const ASN1_TIME* time);

// As in RFC 2253, for logs.
std::string SubjectOf(const X509* certificate);

// Subject alternative names as they stand in the certificate, unchecked.
struct AlternativeNames {
  std::vector<std::string> uris;
  std::vector<std::string> dns;
};
AlternativeNames AlternativeNamesOf(const X509* certificate);

}  // namespace sparsebalance::security
