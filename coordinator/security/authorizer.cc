#include "coordinator/security/authorizer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

constexpr size_t kMaxLoggedBytes = 200;

// What a caller sends must not be able to write lines of the log.
std::string Shown(std::string_view text) {
  return absl::CHexEscape(absl::string_view(text.data(), std::min(text.size(), kMaxLoggedBytes)));
}

bool Covers(const Grant& grant, Scope scope, std::string_view name_space) {
  switch (scope) {
    case Scope::kJob:
      return grant.every_namespace || grant.name_space == name_space;
    case Scope::kListing:
      return name_space.empty() || grant.every_namespace || grant.name_space == name_space;
    case Scope::kShared:
      return true;
    case Scope::kJobOrAll:
      return grant.every_namespace || (!name_space.empty() && grant.name_space == name_space);
    case Scope::kAll:
      return grant.every_namespace;
  }
  return false;
}

std::string RolesFor(const Access& access) {
  if (!access.node && !access.reader) return "operator";
  return absl::StrCat(access.node ? "node, " : "", access.reader ? "reader or " : "or ",
                      "operator");
}

std::string Where(const Access& access, const std::string& shown_namespace) {
  switch (access.scope) {
    case Scope::kJob:
      return absl::StrCat("namespace '", shown_namespace, "'");
    case Scope::kListing:
      return shown_namespace.empty() ? "any namespace"
                                     : absl::StrCat("namespace '", shown_namespace, "'");
    case Scope::kJobOrAll:
      return shown_namespace.empty() ? "every namespace"
                                     : absl::StrCat("namespace '", shown_namespace, "'");
    case Scope::kShared:
      return "any namespace";
    case Scope::kAll:
      return "every namespace";
  }
  return "";
}

}  // namespace

Authorizer::Authorizer(Policy policy, Options options)
    : options_(std::move(options)),
      log_limiter_(options_.log_interval, options_.logged_denials),
      policy_(std::make_shared<const Policy>(std::move(policy))) {}

std::shared_ptr<const Policy> Authorizer::policy() const {
  absl::MutexLock lock(&mutex_);
  return policy_;
}

void Authorizer::Replace(Policy policy) {
  auto replacement = std::make_shared<const Policy>(std::move(policy));
  absl::MutexLock lock(&mutex_);
  policy_.swap(replacement);
}

absl::Status Authorizer::Check(const PeerIdentity& identity, Method method,
                               std::string_view name_space,
                               const std::function<std::string()>& address) {
  const Access& access = AccessOf(method);
  if (access.scope == Scope::kJob && name_space.empty()) name_space = "default";
  if (identity.empty()) {
    const std::string message = absl::StrCat(
        access.name, " needs a client certificate with a URI or DNS name that the CA has signed");
    Denied(identity, method, message, std::string(), address);
    return absl::UnauthenticatedError(message);
  }
  for (const Grant& grant : policy()->GrantsOf(identity)) {
    if (Allows(access, grant.role) && Covers(grant, access.scope, name_space)) {
      return absl::OkStatus();
    }
  }
  const std::string shown_namespace = Shown(name_space);
  const std::string where = Where(access, shown_namespace);
  const std::string message = absl::StrCat(
      identity.ToString(), " may not call ", access.name, " in ", where, ": it takes the role ",
      RolesFor(access), " there, which a rule in the coordinator's authorization file gives");
  Denied(identity, method, message, shown_namespace, address);
  return absl::PermissionDeniedError(message);
}

void Authorizer::Denied(const PeerIdentity& identity, Method method, const std::string& message,
                        const std::string& name_space,
                        const std::function<std::string()>& address) {
  options_.on_denial(method);
  const std::string key =
      absl::StrCat(identity.ToString(), "\n", AccessOf(method).name, "\n", name_space);
  const std::optional<uint64_t> unsaid = log_limiter_.Admit(key, options_.now());
  if (!unsaid) return;
  spdlog::warn("denied{}: {}{}", address ? absl::StrCat(" to ", address()) : std::string(), message,
               *unsaid == 0 ? std::string()
                            : absl::StrCat(" (and ", *unsaid, " times since the last line)"));
}

NamespaceView Authorizer::VisibleNamespaces(const PeerIdentity& identity) const {
  NamespaceView view;
  // Every role may read; all that counts is where.
  for (Grant& grant : policy()->GrantsOf(identity)) {
    if (grant.every_namespace) {
      view.every = true;
    } else {
      view.names.insert(std::move(grant.name_space));
    }
  }
  return view;
}

}  // namespace sparsebalance::security
