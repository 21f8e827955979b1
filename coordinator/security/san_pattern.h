// Patterns for the names in certificates, as the authorization file writes them.
//
//   spiffe://cluster/ns/{namespace}/sa/trainer    a URI (also uri:spiffe://...)
//   spiffe://cluster/ns/ml/*                      everything beneath
//   dns:*.{namespace}.train.example.org           a DNS name
//
// A name is compared part by part; parts end at `/` in URIs and at `.` in DNS names. Within a part
// `*` stands for one or more characters, never for a separator. One exception: a URI's last part
// that is `*` alone stands for all the parts that follow, at least one character. `{namespace}` is
// a whole part and gives the namespace; there is at most one. A URI's scheme and host are literal,
// so that no pattern reaches beyond one trust domain by accident. URIs are compared byte by byte,
// DNS names without regard to case.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/security/peer_identity.h"

namespace sparsebalance::security {

class SanPattern {
 public:
  // INVALID_ARGUMENT says what is wrong with `text` and how to write it.
  static absl::StatusOr<SanPattern> Parse(const std::string& text);

  bool captures_namespace() const { return captures_; }

  // One entry for each name of the peer that fits: the namespace captured from it, empty where the
  // pattern captures none.
  std::vector<std::string> Matches(const PeerIdentity& identity) const;

 private:
  enum class Kind { kUri, kDns };
  // Literal pieces with a `*` between each two: one piece means equality.
  struct Part {
    std::vector<std::string> pieces;
    bool capture = false;
    bool rest = false;  // whatever follows
  };

  static absl::StatusOr<Part> ParsePart(std::string_view text);
  static bool PartFits(const Part& part, std::string_view text);
  std::optional<std::string> Match(std::string_view name) const;

  Kind kind_ = Kind::kUri;
  bool captures_ = false;
  std::vector<Part> parts_;
};

}  // namespace sparsebalance::security
