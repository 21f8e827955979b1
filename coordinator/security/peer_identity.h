// Who is at the other end of a connection: the names in the certificate that was verified.
#pragma once

#include <string>
#include <vector>

#include "coordinator/security/openssl_types.h"
#include "grpcpp/security/auth_context.h"

namespace sparsebalance::security {

// Subject alternative names; a common name counts for nothing. Names with bytes that do not belong
// into one are left out, and so are wildcard DNS names, which name nobody.
struct PeerIdentity {
  std::vector<std::string> uris;
  std::vector<std::string> dns;  // in lower case

  bool empty() const { return uris.empty() && dns.empty(); }
  // For logs and errors: uri:..., else dns:..., else "nobody". At most 256 bytes.
  std::string ToString() const;
};

// Empty where the caller showed no certificate, plaintext included.
PeerIdentity IdentityOf(const grpc::AuthContext& context);
// The certificate must have been verified by the caller.
PeerIdentity IdentityOf(const X509* certificate);

}  // namespace sparsebalance::security
