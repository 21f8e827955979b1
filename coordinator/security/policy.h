// Which certificate names may do what, from a small JSON file. Comments are allowed.
//
//   {
//     "rules": [
//       // A trainer's nodes: the namespace is part of their name.
//       {"san": "spiffe://cluster/ns/{namespace}/sa/trainer", "role": "node"},
//       {"san": "dns:grafana.example.org", "role": "reader", "namespaces": ["*"]},
//       {"san": "dns:ops.example.org", "role": "operator", "namespaces": ["ml", "vision"]}
//     ]
//   }
//
// What several rules grant adds up; what none grants is refused. Patterns: san_pattern.h. Roles:
// rpc_access.h. `namespaces` holds names, "*" for every one, or "{namespace}" for the one that the
// pattern captures; it may be left out where the pattern captures one.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/security/peer_identity.h"
#include "coordinator/security/rpc_access.h"
#include "coordinator/security/san_pattern.h"

namespace sparsebalance::security {

struct Grant {
  Role role = Role::kReader;
  bool every_namespace = false;
  std::string name_space;  // where it is not every one
};

class Policy {
 public:
  // INVALID_ARGUMENT names `source`, the rule by its index, the field and its value, and says how
  // to write it. Unknown and repeated fields are refused: a misspelt one must not widen a rule.
  static absl::StatusOr<Policy> Parse(const std::string& json, const std::string& source);
  // NOT_FOUND, PERMISSION_DENIED or what else keeps the file from being read.
  static absl::StatusOr<std::string> ReadFile(const std::string& path);
  // Every peer with a verified name is an operator of everything: for mTLS without a file.
  static Policy Everyone();

  std::vector<Grant> GrantsOf(const PeerIdentity& identity) const;
  size_t rules() const { return rules_.size(); }

 private:
  friend class PolicyParser;

  struct Rule {
    SanPattern pattern;
    Role role = Role::kReader;
    bool every_namespace = false;
    bool captured_namespace = false;
    std::vector<std::string> namespaces;
  };

  std::vector<Rule> rules_;
  bool everyone_ = false;
};

}  // namespace sparsebalance::security
