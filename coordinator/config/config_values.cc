#include "coordinator/config/config_values.h"

#include <cctype>
#include <cmath>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

absl::string_view View(std::string_view text) { return {text.data(), text.size()}; }

absl::Status Wrong(std::string_view text, absl::string_view wanted) {
  return absl::InvalidArgumentError(absl::StrCat("'", View(text), "' is not ", wanted));
}

// The number of bytes that a unit stands for; 0 where there is no such unit.
double BytesOf(absl::string_view unit) {
  if (unit.empty() || unit == "B") return 1;
  static constexpr absl::string_view kPrefixes = "KMGT";
  const size_t power = kPrefixes.find(absl::ascii_toupper(static_cast<unsigned char>(unit[0])));
  if (power == absl::string_view::npos) return 0;
  const absl::string_view rest = unit.substr(1);
  if (rest.empty() || rest == "B") return std::pow(1000.0, static_cast<double>(power + 1));
  if (rest == "i" || rest == "iB") return std::pow(1024.0, static_cast<double>(power + 1));
  return 0;
}

}  // namespace

absl::StatusOr<absl::Duration> ParseDurationText(std::string_view text) {
  constexpr absl::string_view kWanted =
      "a duration above zero, such as 30s, 5m, 1h30m, 500ms, or a number of seconds";
  absl::Duration duration;
  double seconds = 0;
  if (absl::SimpleAtod(View(text), &seconds)) {
    if (!std::isfinite(seconds)) return Wrong(text, kWanted);
    duration = absl::Seconds(seconds);
  } else if (!absl::ParseDuration(View(text), &duration)) {
    return Wrong(text, kWanted);
  }
  if (duration <= absl::ZeroDuration() || duration == absl::InfiniteDuration()) {
    return Wrong(text, kWanted);
  }
  return duration;
}

absl::StatusOr<uint64_t> ParseBytesText(std::string_view text) {
  constexpr absl::string_view kWanted = "a number of bytes above zero, such as 4096, 64MiB or 2GB";
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.')) {
    ++digits;
  }
  double number = 0;
  const double unit = BytesOf(absl::StripAsciiWhitespace(View(text.substr(digits))));
  if (unit == 0 || !absl::SimpleAtod(View(text.substr(0, digits)), &number)) {
    return Wrong(text, kWanted);
  }
  const double bytes = std::floor(number * unit);
  // Above 2^53 a double no longer counts in ones.
  if (!(bytes >= 1) || bytes > 9007199254740992.0) return Wrong(text, kWanted);
  return static_cast<uint64_t>(bytes);
}

absl::StatusOr<uint64_t> ParseCountText(std::string_view text) {
  uint64_t count = 0;
  if (!absl::SimpleAtoi(View(text), &count) || count == 0) {
    return Wrong(text, "a whole number above zero");
  }
  return count;
}

}  // namespace sparsebalance
