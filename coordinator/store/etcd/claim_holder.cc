// A replica reduced to its claim on one job, for tests that kill and stop processes:
//
//   sb_claim_holder ENDPOINTS PREFIX ADDRESS NAMESPACE NAME TTL_SECONDS
//
// Claims the job, and then writes a line again and again: what Held says, and when it was asked, in
// nanoseconds of BootTime. Ends when its standard output does.
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "coordinator/store/etcd/etcd_claims.h"
#include "coordinator/store/etcd/etcd_client.h"

namespace sparsebalance {
namespace {

int Hold(char** argv) {
  EtcdClientOptions options;
  options.endpoints = absl::StrSplit(argv[1], ',');
  auto client = EtcdClient::Create(std::move(options));
  if (!client.ok()) {
    std::printf("no client: %s\n", client.status().ToString().c_str());
    return 1;
  }
  int64_t ttl = 0;
  if (!absl::SimpleAtoi(argv[6], &ttl)) return 2;
  auto claims = EtcdClaims::Start(
      client->get(), {.prefix = argv[2], .address = argv[3], .lease = {.ttl = absl::Seconds(ttl)}});
  if (!claims.ok()) {
    std::printf("no claims: %s\n", claims.status().ToString().c_str());
    return 1;
  }
  const JobId id{argv[4], argv[5]};
  const auto epoch = (*claims)->Claim(id, 0);
  if (!epoch.ok()) {
    std::printf("not claimed: %s\n", epoch.status().ToString().c_str());
    return 1;
  }
  while (true) {
    const int64_t asked = absl::ToInt64Nanoseconds(BootTime());
    const auto held = (*claims)->Held(id);
    const int written = held.ok()
                            ? std::printf("held %lld asked %lld\n", static_cast<long long>(*held),
                                          static_cast<long long>(asked))
                            : std::printf("lost asked %lld\n", static_cast<long long>(asked));
    if (written < 0 || std::fflush(stdout) != 0) return 0;
    absl::SleepFor(absl::Milliseconds(5));
  }
}

}  // namespace
}  // namespace sparsebalance

int main(int argc, char** argv) {
  if (argc != 7) {
    std::fprintf(stderr, "usage: %s ENDPOINTS PREFIX ADDRESS NAMESPACE NAME TTL_SECONDS\n",
                 argv[0]);
    return 2;
  }
  return sparsebalance::Hold(argv);
}
