// What a coordinator takes: rates, latencies, fairness and memory, with the real program as the
// server and real connections. Client and server share the machine's cores, so rates are lower
// bounds, and comparisons are made in one run.
//
//   service_load rpc        ExchangeStep beside an empty unary RPC of the same gRPC
//   service_load large      512 nodes of 8 ranks, 16,384 sequences a step
//   service_load fairness   200 jobs of 16 nodes side by side
//   service_load memory     bytes a rank and a remembered sequence
//   service_load soak       100,000 rounds with jobs coming and going
//   service_load wait       what a worker waits for its plans
//   service_load scrape     a scrape of 100 jobs, and what calls notice of it

#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "grpcpp/grpcpp.h"
#include "health/v1/health.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "tests/e2e/cluster.h"
#include "tests/load/load_job.h"
#include "tests/load/load_server.h"
#include "tests/load/scrape_load.h"

namespace sparsebalance::load {
namespace {

double Ms(absl::Duration d) { return absl::ToDoubleMilliseconds(d); }

// Keeps `outstanding` calls of one kind under way for some time; `start` makes one and calls back.
struct Rate {
  double per_second = 0;
  double server_us = 0;  // of the server's CPU, a call
};
Rate Measure(const Server& server, absl::Duration time, int outstanding,
             const std::function<void(size_t slot, std::function<void()> done)>& start) {
  std::atomic<uint64_t> calls{0};
  std::atomic<bool> ending{false};
  absl::Mutex mutex;
  int left = outstanding;
  std::function<void(size_t)> again = [&](size_t slot) {
    start(slot, [&, slot] {
      calls.fetch_add(1, std::memory_order_relaxed);
      if (!ending.load(std::memory_order_relaxed)) {
        again(slot);
        return;
      }
      absl::MutexLock lock(&mutex);
      --left;
    });
  };
  const absl::Duration cpu_before = server.CpuTime();
  const absl::Time begin = absl::Now();
  for (int i = 0; i < outstanding; ++i) again(static_cast<size_t>(i));
  absl::SleepFor(time);
  ending = true;
  {
    absl::MutexLock lock(&mutex);
    const auto done = [&] { return left == 0; };
    mutex.Await(absl::Condition(&done));
  }
  const double seconds = absl::ToDoubleSeconds(absl::Now() - begin);
  const double cpu = absl::ToDoubleMicroseconds(server.CpuTime() - cpu_before);
  const auto count = static_cast<double>(calls.load());
  return {count / seconds, cpu / count};
}

int Rpc(double seconds, int pairs) {
  constexpr int kOutstanding = 64;
  constexpr int kChannels = 8;
  const Server server;
  Channels channels(server.address(), kChannels);
  LoadJob job(&channels, {.name = "rpc", .nodes = 64, .ranks_per_node = 1, .sequences = 256});
  MustBeOk("join", job.Join());
  MustBeOk("first plan", job.Ask(0).status);

  Channels health_channels(server.health(), kChannels);
  std::vector<std::unique_ptr<grpc::health::v1::Health::Stub>> health;
  for (size_t i = 0; i < kChannels; ++i) {
    health.push_back(grpc::health::v1::Health::NewStub(health_channels.shared(i)));
  }
  struct Slot {
    std::unique_ptr<grpc::ClientContext> context;
    grpc::health::v1::HealthCheckResponse health;
    v1::ExchangeStepRequest request;
    v1::ExchangeStepResponse answer;
    uint64_t step = 1;
  };
  std::vector<Slot> slots(kOutstanding);
  const grpc::health::v1::HealthCheckRequest empty;
  const auto call_empty = [&](size_t i, std::function<void()> done) {
    slots[i].context = std::make_unique<grpc::ClientContext>();
    health[i % kChannels]->async()->Check(slots[i].context.get(), &empty, &slots[i].health,
                                          [done](const grpc::Status&) { done(); });
  };
  std::atomic<uint64_t> failures{0};
  const auto exchange = [&](size_t i, std::function<void()> done) {
    slots[i].context = std::make_unique<grpc::ClientContext>();
    slots[i].answer.Clear();
    channels.stub(i).async()->ExchangeStep(slots[i].context.get(), &slots[i].request,
                                           &slots[i].answer,
                                           [&failures, done](const grpc::Status& status) {
                                             if (!status.ok()) ++failures;
                                             done();
                                           });
  };
  // A node's report of one step of one rank, and a retry for a plan that is there.
  const auto report = [&](size_t i, std::function<void()> done) {
    v1::ExchangeStepRequest& request = slots[i].request;
    request.Clear();
    *request.mutable_node() = job.Key(static_cast<uint32_t>(i));
    request.set_report_only(true);
    v1::RankTelemetry* telemetry = request.add_telemetry();
    telemetry->set_rank(static_cast<uint32_t>(i));
    telemetry->set_step(++slots[i].step);
    telemetry->set_step_ms(500);
    telemetry->set_compute_ms(450);
    exchange(i, std::move(done));
  };
  const auto bare = [&](size_t i, std::function<void()> done) {
    v1::ExchangeStepRequest& request = slots[i].request;
    request.Clear();
    *request.mutable_node() = job.Key(static_cast<uint32_t>(i));
    request.set_report_only(true);
    exchange(i, std::move(done));
  };

  std::printf("%-34s %12s %14s %12s\n", "call", "calls/s", "server us/call", "of empty");
  std::vector<double> shares_bare;
  std::vector<double> shares_report;
  for (int pair = 0; pair < pairs; ++pair) {
    const absl::Duration time = absl::Seconds(seconds);
    const Rate nothing = Measure(server, time, kOutstanding, call_empty);
    const Rate plain = Measure(server, time, kOutstanding, bare);
    const Rate reports = Measure(server, time, kOutstanding, report);
    shares_bare.push_back(plain.per_second / nothing.per_second);
    shares_report.push_back(reports.per_second / nothing.per_second);
    std::printf("%-34s %12.0f %14.1f\n", "empty unary RPC", nothing.per_second, nothing.server_us);
    std::printf("%-34s %12.0f %14.1f %11.0f%%\n", "ExchangeStep, nothing to say", plain.per_second,
                plain.server_us, 100 * shares_bare.back());
    std::printf("%-34s %12.0f %14.1f %11.0f%%\n", "ExchangeStep, a rank's report",
                reports.per_second, reports.server_us, 100 * shares_report.back());
    std::fflush(stdout);
  }
  const auto median = [](std::vector<double> values) {
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
  };
  std::printf(
      "median: %.0f%% and %.0f%% of the empty RPC's rate (%d pairs of %.1f s, %d calls at a "
      "time)\n",
      100 * median(shares_bare), 100 * median(shares_report), pairs, seconds, kOutstanding);
  if (failures > 0) std::printf("FAILED calls: %d\n", static_cast<int>(failures.load()));
  return failures == 0 ? 0 : 1;
}

void PrintRounds(const char* what, const std::vector<LoadJob::Round>& rounds) {
  std::vector<absl::Duration> took;
  std::vector<absl::Duration> calls;
  absl::Duration all;
  for (const LoadJob::Round& round : rounds) {
    took.push_back(round.took);
    all += round.took;
    calls.insert(calls.end(), round.latency.begin(), round.latency.end());
  }
  std::printf("%-26s %9.2f rounds/s   round p50 %7.1f ms   call p50 %7.1f  p99 %7.1f ms\n", what,
              static_cast<double>(rounds.size()) / absl::ToDoubleSeconds(all),
              Ms(Quantile(took, 0.5)), Ms(Quantile(calls, 0.5)), Ms(Quantile(calls, 0.99)));
  std::fflush(stdout);
}

int Large(uint32_t nodes, uint32_t ranks, uint32_t sequences, int rounds) {
  const Server server;
  Channels channels(server.address(), 16);
  LoadJob job(&channels,
              {.name = "large", .nodes = nodes, .ranks_per_node = ranks, .sequences = sequences});
  const absl::Time begin = absl::Now();
  MustBeOk("join", job.Join());
  std::printf("%d nodes of %d ranks joined in %.0f ms; %d sequences a step\n", nodes, ranks,
              Ms(absl::Now() - begin), sequences);
  std::vector<LoadJob::Round> planned;
  std::vector<LoadJob::Round> prefetched;
  for (int step = 0; step < rounds; ++step) {
    planned.push_back(job.Ask(static_cast<uint64_t>(step)));
    MustBeOk("ask", planned.back().status);
    // The plan is there now, as it is when it was asked for during the step before.
    prefetched.push_back(job.Ask(static_cast<uint64_t>(step)));
    MustBeOk("ask again", prefetched.back().status);
    MustBeOk("report", job.Report(static_cast<uint64_t>(step)));
  }
  PrintRounds("plans made beforehand", prefetched);
  PrintRounds("planning in the loop", planned);
  std::printf("server: %.0f MB resident\n", static_cast<double>(server.ResidentBytes()) / 1e6);
  return 0;
}

int Fairness(int jobs, uint32_t nodes, double seconds, bool with_large) {
  const Server server;
  std::vector<std::unique_ptr<Channels>> channels;
  std::vector<std::unique_ptr<LoadJob>> all;
  for (int i = 0; i < jobs; ++i) {
    if (i % 10 == 0) channels.push_back(std::make_unique<Channels>(server.address(), 1));
    all.push_back(std::make_unique<LoadJob>(channels.back().get(),
                                            JobShape{.name = absl::StrCat("job-", i),
                                                     .nodes = nodes,
                                                     .ranks_per_node = 1,
                                                     .sequences = nodes * 4,
                                                     .seed = static_cast<uint64_t>(i)}));
    MustBeOk("join", all.back()->Join());
  }
  // One job that is a hundred times the size of the others, where asked for.
  Channels large_channels(server.address(), 4);
  LoadJob large(&large_channels,
                {.name = "huge", .nodes = 128, .ranks_per_node = 8, .sequences = 8192});
  std::atomic<bool> ending{false};
  std::thread huge;
  uint64_t huge_rounds = 0;
  if (with_large) {
    MustBeOk("join", large.Join());
    huge = std::thread([&] {
      while (!ending) {
        MustBeOk("huge", large.Ask(huge_rounds).status);
        ++huge_rounds;
      }
    });
  }
  // Every job starts a round at its own times, as training does, from a few threads.
  const absl::Duration period = absl::Seconds(2);
  std::vector<std::vector<absl::Duration>> latency(static_cast<size_t>(jobs));
  constexpr int kThreads = 8;
  std::vector<std::thread> threads;
  const absl::Time begin = absl::Now();
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<uint64_t> step(static_cast<size_t>(jobs), 0);
      for (int beat = 0; absl::Now() - begin < absl::Seconds(seconds); ++beat) {
        for (int i = t; i < jobs; i += kThreads) {
          const absl::Time due = begin + period * beat + period * (static_cast<double>(i) / jobs);
          absl::SleepFor(due - absl::Now());
          const auto index = static_cast<size_t>(i);
          const LoadJob::Round round = all[index]->Ask(step[index]++);
          MustBeOk("ask", round.status);
          latency[index].insert(latency[index].end(), round.latency.begin(), round.latency.end());
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ending = true;
  if (huge.joinable()) huge.join();
  std::vector<absl::Duration> p99;
  for (const auto& calls : latency) p99.push_back(Quantile(calls, 0.99));
  const double median = Ms(Quantile(p99, 0.5));
  const double worst = Ms(Quantile(p99, 1.0));
  std::printf(
      "%d jobs of %d nodes, a round every %.0f s each%s: p99 of the median job %.1f ms, of "
      "the worst %.1f ms, %.2f times as long\n",
      jobs, nodes, absl::ToDoubleSeconds(period),
      with_large
          ? absl::StrCat(", beside a job of 1,024 ranks that made ", huge_rounds, " rounds").c_str()
          : "",
      median, worst, worst / median);
  return 0;
}

int Memory() {
  const Server server;
  Channels channels(server.address(), 8);
  // The first job also pays for threads and buffers that the process then has; what a rank takes
  // is what further jobs add.
  size_t resident = server.ResidentBytes();
  std::printf("idle %.1f MB\n", static_cast<double>(resident) / 1e6);
  constexpr uint32_t kNodes = 512;
  constexpr uint32_t kRanks = 8;
  for (const char* name : {"first", "second", "third", "fourth"}) {
    LoadJob ranks(&channels, {.name = name, .nodes = kNodes, .ranks_per_node = kRanks});
    MustBeOk("join", ranks.Join());
    const size_t joined = server.ResidentBytes();
    std::printf("%s job of %d ranks joined: %.0f bytes more a rank\n", name, kNodes * kRanks,
                (static_cast<double>(joined) - static_cast<double>(resident)) /
                    static_cast<double>(kNodes * kRanks));
    resident = joined;
  }
  // Coverage that is remembered, handed over as after a resume, and the journal of one epoch.
  LoadJob sequences(&channels, {.name = "sequences", .nodes = 1, .sequences = 4096});
  MustBeOk("join", sequences.Join());
  const size_t before = server.ResidentBytes();
  constexpr uint64_t kSequences = 500'000;
  constexpr uint64_t kCall = 5'000;
  for (uint64_t first = 0; first < kSequences; first += kCall) {
    v1::PutCoverageRequest request;
    *request.mutable_node() = sequences.Key(0);
    for (uint64_t id = first; id < first + kCall; ++id) {
      v1::SequenceCoverage* entry = request.add_entries();
      entry->set_sequence_id(id);
      entry->set_tokens(8192);
      for (const auto& [budget, coverage] : {std::pair{1u, 0.0}, {8u, 0.8}, {64u, 1.0}}) {
        entry->mutable_coverage()->add_budget_blocks(budget);
        entry->mutable_coverage()->add_coverage(coverage);
      }
    }
    grpc::ClientContext context;
    v1::PutCoverageResponse answer;
    const grpc::Status status = channels.stub(0).PutCoverage(&context, request, &answer);
    if (!status.ok()) Die("coverage", absl::UnknownError(status.error_message()));
  }
  const size_t covered = server.ResidentBytes();
  for (uint64_t step = 0; step < kSequences / 4096; ++step) {
    MustBeOk("consume", sequences.Consume(step));
  }
  const size_t journalled = server.ResidentBytes();
  constexpr uint64_t journalled_sequences = kSequences / 4096 * 4096;
  std::printf(
      "%d sequences: %.0f bytes each for coverage, %.0f more for the journal\n",
      static_cast<int>(kSequences),
      static_cast<double>(covered - before) / static_cast<double>(kSequences),
      static_cast<double>(journalled - covered) / static_cast<double>(journalled_sequences));
  return 0;
}

int Soak(uint64_t rounds) {
  // Jobs that have finished go soon, as over months they do in time.
  const Server server({"--finished-retention", "2s", "--kept-plans", "8"});
  Channels channels(server.address(), 4);
  constexpr uint64_t kRoundsAJob = 50;
  uint64_t done = 0;
  uint64_t jobs = 0;
  std::printf("%10s %8s %12s\n", "rounds", "jobs", "resident MB");
  uint64_t next_line = 0;
  while (done < rounds) {
    LoadJob job(&channels, {.name = absl::StrCat("job-", jobs++), .nodes = 2, .sequences = 16});
    MustBeOk("join", job.Join());
    for (uint64_t step = 0; step < kRoundsAJob && done < rounds; ++step, ++done) {
      MustBeOk("ask", job.Ask(step).status);
      MustBeOk("report", job.Report(step));
      MustBeOk("consume", job.Consume(step));
    }
    MustBeOk("leave", job.Leave());
    if (done < next_line) continue;
    std::printf("%10d %8d %12.1f\n", static_cast<int>(done), static_cast<int>(jobs),
                static_cast<double>(server.ResidentBytes()) / 1e6);
    std::fflush(stdout);
    next_line += rounds / 20;
  }
  return 0;
}

// What a real worker waits for its plans, with steps of a fifth of a second and more.
int Wait(uint64_t steps) {
  e2e::Cluster cluster;
  cluster.PackData(/*documents=*/400, /*shortest=*/500, /*longest=*/6000);
  cluster.StartCoordinator();
  const std::vector<std::string> flags = {"--steps",
                                          absl::StrCat(steps),
                                          "--global-batch-size",
                                          "8",
                                          "--max-tokens-per-micro-batch",
                                          "8192",
                                          "--block-tokens",
                                          "64",
                                          "--base-budget",
                                          "8",
                                          "--hidden-size",
                                          "192",
                                          "--layers",
                                          "4",
                                          "--heads",
                                          "4",
                                          "--kv-heads",
                                          "4",
                                          "--intermediate-size",
                                          "512"};
  const auto one = cluster.StartWorker(2, 1, flags);
  const auto zero = cluster.StartWorker(2, 0, flags);
  if (zero->Wait(absl::Hours(1)) != 0 || one->Wait(absl::Hours(1)) != 0) {
    Die("train", absl::UnknownError(zero->Output()));
  }
  std::vector<absl::Duration> step_times;
  std::vector<absl::Duration> waits;
  std::vector<absl::Duration> agreements;
  uint64_t fallbacks = 0;
  std::ifstream in(cluster.output() + "/steps.jsonl");
  for (std::string line; std::getline(in, line);) {
    const nlohmann::json step = nlohmann::json::parse(line);
    if (step.at("step").get<uint64_t>() < 5) continue;  // the first plan has no step to hide behind
    step_times.push_back(absl::Milliseconds(step.at("step_ms").get<double>()));
    fallbacks += step.at("used_fallback").get<bool>() ? 1 : 0;
    for (const nlohmann::json& rank : step.at("ranks")) {
      waits.push_back(absl::Milliseconds(rank.at("plan_wait_ms").get<double>()));
      agreements.push_back(absl::Milliseconds(rank.at("agreement_ms").get<double>()));
    }
  }
  std::printf(
      "%d steps of %.0f ms (p50), %d by fallback; wait for a plan p50 %.3f p99 %.3f max "
      "%.3f ms; agreement, which also waits for the other rank, p50 %.3f p99 %.3f ms\n",
      static_cast<int>(step_times.size()), Ms(Quantile(step_times, 0.5)),
      static_cast<int>(fallbacks), Ms(Quantile(waits, 0.5)), Ms(Quantile(waits, 0.99)),
      Ms(Quantile(waits, 1.0)), Ms(Quantile(agreements, 0.5)), Ms(Quantile(agreements, 0.99)));
  return 0;
}

int Main(int argc, char** argv) {
  CLI::App app("What a coordinator takes.", "service_load");
  app.require_subcommand(1);
  double seconds = 2;
  int pairs = 5;
  CLI::App* rpc = app.add_subcommand("rpc", "ExchangeStep beside an empty unary RPC");
  rpc->add_option("--seconds", seconds, "Of each measurement")->capture_default_str();
  rpc->add_option("--pairs", pairs, "Measurements of each kind")->capture_default_str();
  uint32_t nodes = 512;
  uint32_t ranks = 8;
  uint32_t sequences = 16'384;
  int rounds = 20;
  CLI::App* large = app.add_subcommand("large", "One large job");
  large->add_option("--nodes", nodes, "Nodes")->capture_default_str();
  large->add_option("--ranks", ranks, "Ranks a node")->capture_default_str();
  large->add_option("--sequences", sequences, "Sequences a step")->capture_default_str();
  large->add_option("--rounds", rounds, "Rounds of each kind")->capture_default_str();
  int jobs = 200;
  uint32_t job_nodes = 16;
  double fairness_seconds = 20;
  bool huge = false;
  CLI::App* fairness = app.add_subcommand("fairness", "Many jobs side by side");
  fairness->add_option("--jobs", jobs, "Jobs")->capture_default_str();
  fairness->add_option("--nodes", job_nodes, "Nodes of each")->capture_default_str();
  fairness->add_option("--seconds", fairness_seconds, "How long")->capture_default_str();
  fairness->add_flag("--huge", huge, "Beside one job of 1,024 ranks that never pauses");
  int scraped_jobs = 100;
  CLI::App* scrape = app.add_subcommand("scrape", "A scrape of many jobs");
  scrape->add_option("--jobs", scraped_jobs, "Jobs")->capture_default_str();
  CLI::App* memory = app.add_subcommand("memory", "Bytes a rank and a sequence");
  uint64_t soak_rounds = 100'000;
  CLI::App* soak = app.add_subcommand("soak", "Jobs that come and go");
  soak->add_option("--rounds", soak_rounds, "Rounds")->capture_default_str();
  uint64_t steps = 150;
  CLI::App* wait = app.add_subcommand("wait", "What a worker waits for its plans");
  wait->add_option("--steps", steps, "Steps to train")->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::Error& e) {
    return app.exit(e);
  }
  if (rpc->parsed()) return Rpc(seconds, pairs);
  if (large->parsed()) return Large(nodes, ranks, sequences, rounds);
  if (fairness->parsed()) return Fairness(jobs, job_nodes, fairness_seconds, huge);
  if (memory->parsed()) return Memory();
  if (scrape->parsed()) return Scrape(scraped_jobs);
  if (soak->parsed()) return Soak(soak_rounds);
  if (wait->parsed()) return Wait(steps);
  return 0;
}

}  // namespace
}  // namespace sparsebalance::load

int main(int argc, char** argv) { return sparsebalance::load::Main(argc, argv); }
