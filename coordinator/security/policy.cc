#include "coordinator/security/policy.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <set>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::security {
namespace {

using nlohmann::json;

constexpr size_t kMaxFileBytes = 1 << 20;
constexpr size_t kMaxShownBytes = 200;
constexpr char kCaptured[] = "{namespace}";

// Exceptions end here. A field given twice is an error, whatever JSON makes of it.
absl::StatusOr<json> ParseJson(const std::string& text) {
  std::vector<std::set<std::string>> fields;
  std::string repeated;
  const json::parser_callback_t check = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      fields.emplace_back();
    } else if (event == json::parse_event_t::object_end) {
      fields.pop_back();
    } else if (event == json::parse_event_t::key) {
      std::string key = parsed.get<std::string>();
      if (!fields.back().insert(key).second && repeated.empty()) repeated = std::move(key);
    }
    return true;
  };
  try {
    json parsed = json::parse(text, check, /*allow_exceptions=*/true, /*ignore_comments=*/true);
    if (!repeated.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("field \"", repeated, "\" is given twice"));
    }
    return parsed;
  } catch (const json::exception& e) {
    // "[json.exception.parse_error.101] parse error at line 3, column 9: ..."
    const std::string what = e.what();
    const size_t end = what.find("] ");
    return absl::InvalidArgumentError(
        absl::StrCat("is not JSON: ", end == std::string::npos ? what : what.substr(end + 2)));
  }
}

std::string Shown(const json& value) {
  std::string text = value.dump(-1, ' ', false, json::error_handler_t::replace);
  if (text.size() > kMaxShownBytes) text = absl::StrCat(text.substr(0, kMaxShownBytes), "...");
  return text;
}

}  // namespace

// One rule after the other; the first mistake ends it.
class PolicyParser {
 public:
  PolicyParser(const json& document, const std::string& source)
      : document_(document), source_(source) {}

  absl::StatusOr<Policy> Parse() {
    if (!document_.is_object()) return Wrong("", "must be an object: {\"rules\": [...]}");
    for (const auto& [key, value] : document_.items()) {
      if (key != "rules") return Wrong(key, "unknown field; there is only \"rules\"");
    }
    const auto rules = document_.find("rules");
    if (rules == document_.end() || !rules->is_array() || rules->empty()) {
      return Wrong("rules", "must be an array of at least one rule, or nobody could call anything");
    }
    Policy policy;
    for (size_t i = 0; i < rules->size(); ++i) {
      auto rule = ParseRule((*rules)[i], absl::StrCat("rules[", i, "]"));
      if (!rule.ok()) return rule.status();
      policy.rules_.push_back(*std::move(rule));
    }
    return policy;
  }

 private:
  absl::Status Wrong(const std::string& field, const std::string& problem) const {
    return absl::InvalidArgumentError(absl::StrCat("authorization file ", source_, ": ", field,
                                                   field.empty() ? "" : ": ", problem));
  }

  absl::StatusOr<std::string> Text(const json& object, const std::string& path,
                                   const std::string& key, const char* remedy) const {
    const auto found = object.find(key);
    const std::string field = absl::StrCat(path, ".", key);
    if (found == object.end()) return Wrong(field, absl::StrCat("is missing; ", remedy));
    if (!found->is_string()) {
      return Wrong(field, absl::StrCat(Shown(*found), " is not a string; ", remedy));
    }
    return found->get<std::string>();
  }

  absl::StatusOr<Policy::Rule> ParseRule(const json& object, const std::string& path) const {
    if (!object.is_object()) {
      return Wrong(path, absl::StrCat(Shown(object),
                                      " is not an object with san, role and "
                                      "namespaces"));
    }
    for (const auto& [key, value] : object.items()) {
      if (key != "san" && key != "role" && key != "namespaces") {
        return Wrong(absl::StrCat(path, ".", key),
                     "unknown field; a rule has san, role and namespaces");
      }
    }
    const auto san = Text(object, path, "san",
                          "write the name in the peers' certificates, such as "
                          "spiffe://cluster/ns/ml/sa/trainer");
    if (!san.ok()) return san.status();
    auto pattern = SanPattern::Parse(*san);
    if (!pattern.ok()) {
      return Wrong(absl::StrCat(path, ".san"), absl::StrCat("'", san->substr(0, kMaxShownBytes),
                                                            "' ", pattern.status().message()));
    }
    constexpr char kRoles[] = "use \"node\", \"reader\" or \"operator\"";
    const auto role_name = Text(object, path, "role", kRoles);
    if (!role_name.ok()) return role_name.status();
    const std::optional<Role> role = RoleByName(*role_name);
    if (!role) {
      return Wrong(
          absl::StrCat(path, ".role"),
          absl::StrCat("'", role_name->substr(0, kMaxShownBytes), "' is no role; ", kRoles));
    }
    Policy::Rule rule;
    rule.pattern = *std::move(pattern);
    rule.role = *role;
    if (absl::Status status = ParseNamespaces(object, path, rule); !status.ok()) return status;
    return rule;
  }

  absl::Status ParseNamespaces(const json& object, const std::string& path,
                               Policy::Rule& rule) const {
    const std::string field = absl::StrCat(path, ".namespaces");
    constexpr char kRemedy[] = "write the namespaces that the peers may touch, or [\"*\"] for all";
    const bool captures = rule.pattern.captures_namespace();
    const auto found = object.find("namespaces");
    if (found == object.end()) {
      if (!captures) return Wrong(field, absl::StrCat("is missing; ", kRemedy));
      rule.captured_namespace = true;
      return absl::OkStatus();
    }
    if (!found->is_array() || found->empty()) {
      return Wrong(field, absl::StrCat(Shown(*found), " is not a list of names; ", kRemedy));
    }
    for (size_t i = 0; i < found->size(); ++i) {
      const json& entry = (*found)[i];
      const std::string entry_field = absl::StrCat(field, "[", i, "]");
      const std::string name = entry.is_string() ? entry.get<std::string>() : std::string();
      if (name.empty()) {
        return Wrong(entry_field, absl::StrCat(Shown(entry), " is not a name; ", kRemedy));
      }
      if (name == "*") {
        rule.every_namespace = true;
      } else if (name == kCaptured) {
        if (!captures) {
          return Wrong(entry_field, "{namespace} has no value: the san does not contain it");
        }
        rule.captured_namespace = true;
      } else if (name.find_first_of("*{}") != std::string::npos) {
        return Wrong(entry_field, absl::StrCat("'", name.substr(0, kMaxShownBytes),
                                               "' is a pattern; only \"*\" and \"{namespace}\" are "
                                               "understood here, else names"));
      } else {
        rule.namespaces.push_back(name);
      }
    }
    if (captures && !rule.captured_namespace) {
      return Wrong(field,
                   "the san captures {namespace}, which is not in this list; add "
                   "\"{namespace}\", or write `*` in the san");
    }
    return absl::OkStatus();
  }

  const json& document_;
  const std::string& source_;
};

absl::StatusOr<Policy> Policy::Parse(const std::string& text, const std::string& source) {
  auto document = ParseJson(text);
  if (!document.ok()) {
    return absl::InvalidArgumentError(
        absl::StrCat("authorization file ", source, ": ", document.status().message()));
  }
  return PolicyParser(*document, source).Parse();
}

absl::StatusOr<std::string> Policy::ReadFile(const std::string& path) {
  const auto failed = [&](int error) {
    return absl::ErrnoToStatus(error, absl::StrCat("authorization file ", path, " cannot be read"));
  };
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  const std::unique_ptr<std::FILE, CloseFile> file(std::fopen(path.c_str(), "rbe"));
  if (file == nullptr) return failed(errno);
  std::string text(kMaxFileBytes + 1, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  if (std::ferror(file.get()) != 0) return failed(errno);
  if (text.size() > kMaxFileBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("authorization file ", path, ": has more than ", kMaxFileBytes, " bytes"));
  }
  return text;
}

Policy Policy::Everyone() {
  Policy policy;
  policy.everyone_ = true;
  return policy;
}

std::vector<Grant> Policy::GrantsOf(const PeerIdentity& identity) const {
  std::vector<Grant> grants;
  if (everyone_ && !identity.empty()) {
    grants.push_back({Role::kOperator, true, {}});
    return grants;
  }
  for (const Rule& rule : rules_) {
    std::vector<std::string> matches = rule.pattern.Matches(identity);
    if (matches.empty()) continue;
    if (rule.every_namespace) grants.push_back({rule.role, true, {}});
    for (const std::string& name : rule.namespaces) grants.push_back({rule.role, false, name});
    if (!rule.captured_namespace) continue;
    for (std::string& name : matches) grants.push_back({rule.role, false, std::move(name)});
  }
  return grants;
}

}  // namespace sparsebalance::security
