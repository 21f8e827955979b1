#include "coordinator/security/openssl_types.h"

#include <openssl/err.h>

#include <ctime>

namespace sparsebalance::security {
namespace {

std::string Text(const ASN1_STRING* string) {
  return {reinterpret_cast<const char*>(ASN1_STRING_get0_data(string)),
          static_cast<size_t>(ASN1_STRING_length(string))};
}

}  // namespace

BioPtr ReadOnly(const std::string& pem) {
  return BioPtr(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
}

std::string TakeOpenSslError() {
  // The newest error is what the caller's call ended with; those before it are how it came about.
  const unsigned long code = ERR_peek_last_error();
  ERR_clear_error();
  const char* reason = code == 0 ? nullptr : ERR_reason_error_string(code);
  return reason == nullptr ? "unknown reason" : reason;
}

absl::Time AsTime(const ASN1_TIME* time) {
  std::tm broken_down = {};
  if (time == nullptr || ASN1_TIME_to_tm(time, &broken_down) != 1) return absl::InfinitePast();
  return absl::FromTM(broken_down, absl::UTCTimeZone());
}

std::string SubjectOf(const X509* certificate) {
  const BioPtr bio(BIO_new(BIO_s_mem()));
  X509_NAME_print_ex(bio.get(), X509_get_subject_name(certificate), 0, XN_FLAG_RFC2253);
  char* data = nullptr;
  const long size = BIO_get_mem_data(bio.get(), &data);
  return size <= 0 ? std::string() : std::string(data, static_cast<size_t>(size));
}

AlternativeNames AlternativeNamesOf(const X509* certificate) {
  AlternativeNames found;
  const GeneralNamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(certificate, NID_subject_alt_name, nullptr, nullptr)));
  if (names == nullptr) return found;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type == GEN_URI) {
      found.uris.push_back(Text(name->d.uniformResourceIdentifier));
    } else if (name->type == GEN_DNS) {
      found.dns.push_back(Text(name->d.dNSName));
    }
  }
  return found;
}

}  // namespace sparsebalance::security
