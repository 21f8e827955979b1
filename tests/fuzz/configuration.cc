#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "coordinator/config/config_values.h"
#include "coordinator/security/policy.h"
#include "coordinator/service/listen_address.h"
#include "coordinator/service/namespace_quota.h"
#include "coordinator/service/store_location.h"
#include "tests/fuzz/targets.h"

namespace sparsebalance::fuzz {
namespace {

void Quotas(const std::string& text) {
  const auto table = QuotaTable::Parse(absl::StrSplit(text, '\n'));
  if (table.ok()) table->For("ml");
}

void Address(const std::string& text) {
  const auto parsed = ListenAddress::Parse(text);
  if (!parsed.ok()) return;
  const auto again = ListenAddress::Parse(parsed->ToString());
  SB_FUZZ_CHECK(again.ok() && again->host == parsed->host && again->port == parsed->port,
                parsed->ToString());
}

void Location(const std::string& text) {
  const auto parsed = StoreLocation::Parse(text);
  if (!parsed.ok() || parsed->kind != StoreLocation::Kind::kEtcd) return;
  SB_FUZZ_CHECK(!parsed->endpoints.empty() && parsed->prefix.back() == '/', text);
}

void Values(const std::string& text) {
  const auto duration = ParseDurationText(text);
  SB_FUZZ_CHECK(!duration.ok() || *duration > absl::ZeroDuration(), text);
  const auto bytes = ParseBytesText(text);
  SB_FUZZ_CHECK(!bytes.ok() || *bytes > 0, text);
  const auto count = ParseCountText(text);
  SB_FUZZ_CHECK(!count.ok() || *count > 0, text);
}

void Rules(const std::string& text) {
  const auto policy = security::Policy::Parse(text, "rules.json");
  if (!policy.ok()) return;
  security::PeerIdentity peer;
  peer.uris = {"spiffe://cluster/ns/ml/sa/trainer"};
  peer.dns = {"ops.example.org"};
  for (const security::Grant& grant : policy->GrantsOf(peer)) {
    SB_FUZZ_CHECK(grant.every_namespace || !grant.name_space.empty(), text);
  }
}

constexpr void (*kTextParsers[])(const std::string&) = {&Quotas, &Address, &Location, &Values,
                                                        &Rules};

}  // namespace

void Configuration(std::string_view input) {
  if (input.empty()) return;
  const size_t parser = static_cast<uint8_t>(input[0]) % std::size(kTextParsers);
  kTextParsers[parser](std::string(input.substr(1)));
}

std::vector<std::string> ConfigurationSeeds() {
  const auto with = [](char parser, const std::string& text) {
    return std::string(1, parser) + text;
  };
  return {with(0, "ml:max-jobs=5,max-bytes=2GiB\n*:max-ranks=64"),
          with(1, "127.0.0.1:7070"),
          with(1, "[::1]:0"),
          with(2, "etcd://a:2379,[::1]:2379/prefix"),
          with(2, "/var/lib/store.db"),
          with(3, "1h30m"),
          with(3, "64MiB"),
          with(4,
               R"({"rules":[{"san":"spiffe://cluster/ns/{namespace}/sa/trainer","role":"node"},
                   {"san":"dns:ops.example.org","role":"operator","namespaces":["*"]}]})")};
}

}  // namespace sparsebalance::fuzz
