#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/measure.h"

namespace sparsebalance::gpu {
namespace {

// What the attention is held against.
constexpr int64_t kYardstickTokens = 65536;
constexpr double kForwardTflops = 90, kBothTflops = 60;
constexpr double kRouterShare = 0.15, kListsShare = 0.05, kBandwidthShare = 0.80;

const Measurement* Find(const std::vector<Measurement>& all, std::string_view name,
                        int64_t tokens) {
  const auto found = std::find_if(all.begin(), all.end(), [&](const Measurement& m) {
    return m.name == name && m.tokens == tokens;
  });
  return found == all.end() ? nullptr : &*found;
}

std::string Line(const std::string& what, const std::string& reached, const std::string& wanted,
                 bool met) {
  return absl::StrFormat("| %-44s | %-24s | %-12s | %-7s |\n", what, reached, wanted,
                         met ? "met" : "NOT MET");
}

void AddYardsticks(const std::vector<Measurement>& all, std::string* out) {
  const auto at = [&](std::string_view name) { return Find(all, name, kYardstickTokens); };
  const Measurement* forward = at("routed forward");
  const Measurement* both = at("routed forward + backward");
  const Measurement* select = at("select");
  const Measurement* means = at("means");
  const Measurement* lists = at("lists");
  if (forward == nullptr || both == nullptr || select == nullptr || means == nullptr ||
      lists == nullptr) {
    return;
  }
  const double forward_tflops = forward->FlopsPerSecond() * 1e-12;
  const double both_tflops = both->FlopsPerSecond() * 1e-12;
  const double router = (means->seconds + select->seconds - lists->seconds) / both->seconds;
  const double building = lists->seconds / both->seconds;
  *out += Line("forward with routing at 64K", absl::StrFormat("%.1f TFLOP/s", forward_tflops),
               absl::StrFormat(">= %.0f", kForwardTflops), forward_tflops >= kForwardTflops);
  *out +=
      Line("forward + backward with routing at 64K", absl::StrFormat("%.1f TFLOP/s", both_tflops),
           absl::StrFormat(">= %.0f", kBothTflops), both_tflops >= kBothTflops);
  *out += Line("router, share of that time", absl::StrFormat("%.1f %%", 100 * router),
               absl::StrFormat("<= %.0f %%", 100 * kRouterShare), router <= kRouterShare);
  *out += Line("block lists, share of that time", absl::StrFormat("%.1f %%", 100 * building),
               absl::StrFormat("<= %.0f %%", 100 * kListsShare), building <= kListsShare);
}

void AddBandwidth(const std::vector<Measurement>& all, std::string* out) {
  const Measurement* copy = Find(all, "device copy", 0);
  if (copy == nullptr) return;
  const Measurement* slowest = nullptr;
  for (const Measurement& m : all) {
    if (m.section != "bandwidth") continue;
    if (slowest == nullptr || m.BytesPerSecond() < slowest->BytesPerSecond()) slowest = &m;
  }
  if (slowest == nullptr) return;
  const double share = slowest->BytesPerSecond() / copy->BytesPerSecond();
  *out += Line(absl::StrCat("slowest of the bandwidth-bound ops (", slowest->name, ")"),
               absl::StrFormat("%.0f %% of the copy", 100 * share),
               absl::StrFormat(">= %.0f %%", 100 * kBandwidthShare), share >= kBandwidthShare);
}

void AddDense(const std::vector<Measurement>& all, std::string* out) {
  for (const Measurement& m : all) {
    if (m.name != "dense forward") continue;
    const Measurement* backward = Find(all, "dense backward", m.tokens);
    const Measurement* sparse = Find(all, "routed forward + backward", m.tokens);
    if (backward == nullptr || sparse == nullptr) continue;
    absl::StrAppendFormat(
        out, "| %-44s | %-24s | %-12s | %-7s |\n",
        absl::StrFormat("dense / sparse time at %d tokens", m.tokens),
        absl::StrFormat("%.2f", (m.seconds + backward->seconds) / sparse->seconds), "", "");
  }
}

}  // namespace

std::string Summary(const std::vector<Measurement>& measurements, std::string_view device) {
  std::string out = absl::StrFormat("| %-44s | %-24s | %-12s | %-7s |\n", std::string(device),
                                    "reached", "wanted", "");
  out += absl::StrFormat("|%s|%s|%s|%s|\n", std::string(46, '-'), std::string(26, '-'),
                         std::string(14, '-'), std::string(9, '-'));
  for (const Measurement& m : measurements) {
    if (m.section != "ceiling") continue;
    absl::StrAppendFormat(&out, "| %-44s | %-24s | %-12s | %-7s |\n", m.name,
                          m.name == "device copy"
                              ? absl::StrFormat("%.0f GB/s", m.BytesPerSecond() * 1e-9)
                              : absl::StrFormat("%.0f TFLOP/s", m.FlopsPerSecond() * 1e-12),
                          "(ceiling)", "");
  }
  AddYardsticks(measurements, &out);
  AddBandwidth(measurements, &out);
  AddDense(measurements, &out);
  return out;
}

std::string ToJson(const std::vector<Measurement>& measurements, std::string_view device) {
  nlohmann::json out;
  out["device"] = std::string(device);
  out["measurements"] = nlohmann::json::array();
  for (const Measurement& m : measurements) {
    nlohmann::json one = {{"section", m.section}, {"name", m.name}, {"seconds", m.seconds}};
    if (m.tokens > 0) one["tokens"] = m.tokens;
    if (m.bytes > 0) one["gigabytes_per_second"] = m.BytesPerSecond() * 1e-9;
    if (m.flops > 0) one["teraflops"] = m.FlopsPerSecond() * 1e-12;
    out["measurements"].push_back(std::move(one));
  }
  return out.dump(2) + "\n";
}

}  // namespace sparsebalance::gpu
