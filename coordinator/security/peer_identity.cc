#include "coordinator/security/peer_identity.h"

#include <grpc/grpc_security_constants.h>

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

constexpr size_t kMaxNameBytes = 2048;
constexpr size_t kMaxLabelBytes = 256;

bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= kMaxNameBytes &&
         std::all_of(name.begin(), name.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

void AddUri(std::string_view uri, PeerIdentity& identity) {
  if (IsName(uri)) identity.uris.emplace_back(uri);
}

void AddDns(std::string_view name, PeerIdentity& identity) {
  if (!IsName(name) || name.find('*') != std::string_view::npos) return;
  identity.dns.push_back(absl::AsciiStrToLower(absl::string_view(name.data(), name.size())));
}

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

}  // namespace

std::string PeerIdentity::ToString() const {
  if (!uris.empty()) return absl::StrCat("uri:", uris.front().substr(0, kMaxLabelBytes));
  if (!dns.empty()) return absl::StrCat("dns:", dns.front().substr(0, kMaxLabelBytes));
  return "nobody";
}

PeerIdentity IdentityOf(const grpc::AuthContext& context) {
  PeerIdentity identity;
  if (!context.IsPeerAuthenticated()) return identity;
  for (const grpc::string_ref& uri : context.FindPropertyValues(GRPC_PEER_URI_PROPERTY_NAME)) {
    AddUri(View(uri), identity);
  }
  for (const grpc::string_ref& name : context.FindPropertyValues(GRPC_PEER_DNS_PROPERTY_NAME)) {
    AddDns(View(name), identity);
  }
  return identity;
}

PeerIdentity IdentityOf(const X509* certificate) {
  PeerIdentity identity;
  const AlternativeNames names = AlternativeNamesOf(certificate);
  for (const std::string& uri : names.uris) AddUri(uri, identity);
  for (const std::string& name : names.dns) AddDns(name, identity);
  return identity;
}

}  // namespace sparsebalance::security
