#include "tests/load/scrape_load.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "grpcpp/grpcpp.h"
#include "httplib.h"
#include "tests/load/load_job.h"
#include "tests/load/load_server.h"

namespace sparsebalance::load {
namespace {

double QuantileMs(std::vector<absl::Duration> values, double q) {
  std::sort(values.begin(), values.end());
  return absl::ToDoubleMilliseconds(
      values[static_cast<size_t>(q * static_cast<double>(values.size() - 1))]);
}

std::vector<absl::Duration> TimeHeartbeats(Channels& channels, const LoadJob& job) {
  std::vector<absl::Duration> took;
  for (int i = 0; i < 3000; ++i) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = job.Key(0);
    v1::HeartbeatResponse answer;
    grpc::ClientContext context;
    const absl::Time begin = absl::Now();
    const grpc::Status status = channels.stub(0).Heartbeat(&context, request, &answer);
    took.push_back(absl::Now() - begin);
    if (!status.ok()) Die("heartbeat", absl::UnknownError(status.error_message()));
  }
  return took;
}

}  // namespace

int Scrape(int jobs) {
  const Server server({}, /*with_metrics=*/true);
  Channels channels(server.address(), 4);
  std::vector<std::unique_ptr<LoadJob>> all;
  for (int i = 0; i < jobs; ++i) {
    all.push_back(std::make_unique<LoadJob>(&channels, JobShape{.name = absl::StrCat("job-", i),
                                                                .nodes = 8,
                                                                .ranks_per_node = 8,
                                                                .sequences = 128,
                                                                .seed = static_cast<uint64_t>(i)}));
    MustBeOk("join", all.back()->Join());
    for (uint64_t step = 0; step < 20; ++step) {
      MustBeOk("ask", all.back()->Ask(step).status);
      MustBeOk("report", all.back()->Report(step));
    }
  }
  const std::string& address = server.metrics();
  httplib::Client client(address.substr(0, address.find(':')),
                         std::stoi(address.substr(address.find(':') + 1)));
  client.set_keep_alive(true);
  size_t bytes = 0;
  size_t series = 0;
  const auto scrape = [&] {
    const absl::Time begin = absl::Now();
    const httplib::Result page = client.Get("/metrics");
    const absl::Duration took = absl::Now() - begin;
    if (!page || page->status != 200) Die("scrape", absl::UnavailableError("no answer"));
    bytes = page->body.size();
    series = 0;
    for (size_t at = 0; at < page->body.size(); at = page->body.find('\n', at) + 1) {
      series += page->body[at] != '#';
    }
    return took;
  };
  std::vector<absl::Duration> scrapes;
  for (int i = 0; i < 100; ++i) scrapes.push_back(scrape());
  std::printf("%d jobs of 64 ranks: %zu series, %.0f kB\n", jobs, series,
              static_cast<double>(bytes) / 1e3);
  std::printf("scrape, ms:              p50 %7.2f  p99 %7.2f\n", QuantileMs(scrapes, 0.5),
              QuantileMs(scrapes, 0.99));
  // In turns, so that the noise of the machine falls on both.
  std::vector<absl::Duration> alone;
  std::vector<absl::Duration> beside;
  for (int turn = 0; turn < 4; ++turn) {
    const std::vector<absl::Duration> quiet = TimeHeartbeats(channels, *all.front());
    alone.insert(alone.end(), quiet.begin(), quiet.end());
    std::atomic<bool> ending{false};
    std::thread scraper([&] {
      while (!ending) scrape();
    });
    const std::vector<absl::Duration> busy = TimeHeartbeats(channels, *all.front());
    beside.insert(beside.end(), busy.begin(), busy.end());
    ending = true;
    scraper.join();
  }
  std::printf("heartbeat alone, ms:     p50 %7.2f  p99 %7.2f\n", QuantileMs(alone, 0.5),
              QuantileMs(alone, 0.99));
  std::printf("beside endless scrapes:  p50 %7.2f  p99 %7.2f\n", QuantileMs(beside, 0.5),
              QuantileMs(beside, 0.99));
  return 0;
}

}  // namespace sparsebalance::load
