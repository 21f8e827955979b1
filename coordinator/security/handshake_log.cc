#include "coordinator/security/handshake_log.h"

#include <spdlog/spdlog.h>

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace sparsebalance::security {
namespace {

// OpenSSL's reasons and what they mean to whoever runs the service.
constexpr std::pair<std::string_view, const char*> kMeanings[] = {
    {"peer did not return a certificate", "a client showed no certificate"},
    {"certificate verify failed", "a peer's certificate has expired or is not of a CA known here"},
    {"certificate expired", "a peer says that our certificate has expired"},
    {"unknown ca", "a peer does not know the CA of our certificate"},
    {"bad certificate", "a peer does not accept our certificate"},
    {"wrong version number", "a peer speaks plaintext to a TLS port, or something that is not TLS"},
    {"http request", "a peer speaks plain HTTP to a TLS port"},
    {"unsupported protocol", "a peer speaks only versions of TLS older than 1.2"},
    {"no shared cipher", "a peer has no cipher in common with us"},
};

}  // namespace

HandshakeLog::HandshakeLog(std::function<absl::Time()> now)
    : now_(std::move(now)), limiter_(absl::Minutes(1), 64) {}

bool HandshakeLog::Take(std::string_view line) {
  constexpr std::string_view kMark = "Handshake failed with fatal error ";
  const size_t mark = line.find(kMark);
  if (mark == std::string_view::npos) return false;
  ++failures_;
  // "SSL_ERROR_SSL: error:0A0000C7:SSL routines::peer did not return a certificate."
  std::string_view reason = line.substr(mark + kMark.size());
  if (const size_t colon = reason.rfind(':'); colon != std::string_view::npos) {
    reason.remove_prefix(colon + 1);
  }
  while (!reason.empty() && (reason.front() == ' ')) reason.remove_prefix(1);
  while (!reason.empty() && (reason.back() == '.')) reason.remove_suffix(1);
  const std::optional<uint64_t> unsaid = limiter_.Admit(std::string(reason), now_());
  if (!unsaid) return true;
  std::string meaning(reason);
  for (const auto& [text, explained] : kMeanings) {
    if (reason.find(text) == std::string_view::npos) continue;
    meaning = absl::StrCat(explained, " (", meaning, ")");
    break;
  }
  spdlog::warn("TLS handshake refused: {}{}", meaning,
               *unsaid == 0 ? std::string()
                            : absl::StrCat("; ", *unsaid, " more like it since the last line"));
  return true;
}

}  // namespace sparsebalance::security
