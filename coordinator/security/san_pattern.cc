#include "coordinator/security/san_pattern.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

constexpr std::string_view kCapture = "{namespace}";
// As for every namespace and name of a job.
constexpr size_t kMaxNamespaceBytes = 200;

absl::Status Invalid(const std::string& problem) { return absl::InvalidArgumentError(problem); }

bool HasPattern(std::string_view text) {
  return text.find_first_of("*{}") != std::string_view::npos;
}

bool Consume(std::string_view prefix, std::string_view& text) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

}  // namespace

absl::StatusOr<SanPattern::Part> SanPattern::ParsePart(std::string_view text) {
  Part part;
  if (text == kCapture) {
    part.capture = true;
    return part;
  }
  if (text.find_first_of("{}") != std::string_view::npos) {
    return Invalid(absl::StrCat("in '", std::string(text),
                                "': braces are for {namespace} only, which is a whole part between "
                                "two separators"));
  }
  for (;;) {
    const size_t star = text.find('*');
    part.pieces.emplace_back(text.substr(0, star));
    if (star == std::string_view::npos) break;
    text.remove_prefix(star + 1);
    if (!text.empty() && text.front() == '*') {
      return Invalid(
          "'**' means nothing: a `*` at the end of a URI already stands for all that "
          "follows");
    }
  }
  return part;
}

absl::StatusOr<SanPattern> SanPattern::Parse(const std::string& text) {
  SanPattern pattern;
  std::string_view rest = text;
  std::string lowered;
  const bool printable =
      std::all_of(rest.begin(), rest.end(), [](char c) { return c > ' ' && c < '\x7f'; });
  if (!printable) return Invalid("holds a space, a control character or one beyond ASCII");
  if (Consume("dns:", rest)) {
    pattern.kind_ = Kind::kDns;
    lowered = absl::AsciiStrToLower(absl::string_view(rest.data(), rest.size()));
    rest = lowered;
  } else {
    Consume("uri:", rest);
    const size_t scheme = rest.find("://");
    if (scheme == std::string_view::npos || scheme == 0) {
      return Invalid(
          "is neither a URI (spiffe://cluster/ns/ml/sa/trainer) nor a DNS name "
          "(dns:host.example.org)");
    }
    const std::string_view host = rest.substr(scheme + 3, rest.find('/', scheme + 3) - scheme - 3);
    if (host.empty()) return Invalid("has no host after its scheme");
    if (HasPattern(rest.substr(0, scheme)) || HasPattern(host)) {
      return Invalid("has a pattern in its scheme or host; write them out, in a rule for each");
    }
  }
  if (rest.empty()) return Invalid("is empty");
  const char separator = pattern.kind_ == Kind::kUri ? '/' : '.';
  for (bool more = true; more;) {
    const size_t end = rest.find(separator);
    more = end != std::string_view::npos;
    auto part = ParsePart(rest.substr(0, end));
    if (!part.ok()) return part.status();
    if (part->capture && std::exchange(pattern.captures_, true)) {
      return Invalid("holds {namespace} twice");
    }
    if (!more && pattern.kind_ == Kind::kUri && rest == "*") part->rest = true;
    pattern.parts_.push_back(*std::move(part));
    if (more) rest.remove_prefix(end + 1);
  }
  return pattern;
}

bool SanPattern::PartFits(const Part& part, std::string_view text) {
  const std::vector<std::string>& pieces = part.pieces;
  if (pieces.size() == 1) return text == pieces.front();
  if (!Consume(pieces.front(), text)) return false;
  // Every `*` takes a character; the earliest place for each piece leaves most for the others.
  for (size_t i = 1; i + 1 < pieces.size(); ++i) {
    const size_t found = text.find(pieces[i], 1);
    if (found == std::string_view::npos) return false;
    text.remove_prefix(found + pieces[i].size());
  }
  const std::string& last = pieces.back();
  return text.size() > last.size() && text.substr(text.size() - last.size()) == last;
}

std::optional<std::string> SanPattern::Match(std::string_view name) const {
  const char separator = kind_ == Kind::kUri ? '/' : '.';
  std::string captured;
  bool more = true;
  for (const Part& part : parts_) {
    if (!more) return std::nullopt;
    if (part.rest) return name.empty() ? std::nullopt : std::optional(captured);
    const size_t end = name.find(separator);
    more = end != std::string_view::npos;
    const std::string_view text = name.substr(0, end);
    if (part.capture) {
      if (text.empty() || text.size() > kMaxNamespaceBytes) return std::nullopt;
      captured = std::string(text);
    } else if (!PartFits(part, text)) {
      return std::nullopt;
    }
    if (more) name.remove_prefix(end + 1);
  }
  return more ? std::nullopt : std::optional(captured);
}

std::vector<std::string> SanPattern::Matches(const PeerIdentity& identity) const {
  std::vector<std::string> matches;
  for (const std::string& name : kind_ == Kind::kUri ? identity.uris : identity.dns) {
    if (auto captured = Match(name)) matches.push_back(*std::move(captured));
  }
  return matches;
}

}  // namespace sparsebalance::security
