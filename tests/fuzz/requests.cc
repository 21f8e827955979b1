#include <functional>
#include <memory>
#include <utility>

#include "coordinator/service/service_test_util.h"
#include "tests/fuzz/targets.h"

namespace sparsebalance::fuzz {
namespace {

using testing_support::Coordinator;

constexpr char kBystander[] = "bystander";

// Small limits, so that inputs can reach them.
ServiceOptions SmallOptions() {
  ServiceOptions options;
  options.max_jobs = 8;
  options.max_ranks_per_job = 64;
  options.max_batch_sequences = 64;
  options.max_open_steps = 2;
  options.kept_plans = 4;
  options.kept_step_reports = 4;
  return options;
}

template <typename Request>
bool Parse(std::string_view bytes, Request& request) {
  return request.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()));
}

bool NamesBystander(const v1::JobKey& key) { return key.name() == kBystander; }

using Handler = std::function<void(Coordinator&, std::string_view)>;

// By the byte in front of a request.
const std::vector<Handler>& Handlers() {
  static const auto* const handlers = new std::vector<Handler>{
      [](Coordinator& c, std::string_view bytes) {
        v1::RegisterJobRequest request;
        if (Parse(bytes, request) && !NamesBystander(request.spec().job())) {
          c.Register(request).IgnoreError();
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::JoinJobRequest request;
        if (!Parse(bytes, request) || NamesBystander(request.job())) return;
        // The fingerprint is a digest, which no input guesses.
        v1::GetJobRequest get;
        *get.mutable_job() = request.job();
        if (const auto job = c.registry->GetJob(get); job.ok()) {
          request.set_spec_fingerprint(job->status().spec_fingerprint());
        }
        c.Join(request);
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::ExchangeStepRequest request;
        if (!Parse(bytes, request) || NamesBystander(request.node().job())) return;
        // Nor does one guess this.
        if (!request.batch().sequences().empty()) {
          request.mutable_batch()->set_digest(BatchDigest(request.batch()));
        }
        c.Exchange(request);
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::HeartbeatRequest request;
        if (Parse(bytes, request) && !NamesBystander(request.node().job())) {
          c.registry->Heartbeat(request).IgnoreError();
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::LeaveJobRequest request;
        if (Parse(bytes, request) && !NamesBystander(request.node().job())) {
          c.registry->LeaveJob(request).IgnoreError();
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::PutCoverageRequest request;
        if (Parse(bytes, request) && !NamesBystander(request.node().job())) {
          c.registry->PutCoverage(request).IgnoreError();
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::PutProfileRequest request;
        if (Parse(bytes, request)) c.registry->PutProfile(request).IgnoreError();
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::GetPlanRequest request;
        if (Parse(bytes, request)) c.registry->GetPlan(request).IgnoreError();
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::EvictNodeRequest request;
        if (Parse(bytes, request) && !NamesBystander(request.job())) {
          c.registry->EvictNode(request).IgnoreError();
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::RemoveJobRequest request;
        if (Parse(bytes, request) && !NamesBystander(request.job())) {
          c.registry->RemoveJob(request).IgnoreError();
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        v1::WatchJobRequest request;
        if (Parse(bytes, request)) {
          c.registry->WatchJob(request, [](const absl::StatusOr<v1::WatchJobResponse>&) {});
        }
      },
      [](Coordinator& c, std::string_view bytes) {
        // Time passes: at most two minutes.
        const size_t seconds = bytes.empty() ? 1 : static_cast<uint8_t>(bytes[0]) % 120;
        c.scheduler.Advance(absl::Seconds(static_cast<int64_t>(seconds)));
      },
  };
  return *handlers;
}

std::string Framed(uint8_t method, const google::protobuf::Message& message) {
  const std::string bytes = message.SerializeAsString();
  std::string framed(1, static_cast<char>(method));
  framed += static_cast<char>(bytes.size() & 0xff);
  framed += static_cast<char>(bytes.size() >> 8);
  return framed + bytes;
}

}  // namespace

void Requests(std::string_view input) {
  MemoryStore store;
  Coordinator coordinator(&store, SmallOptions());
  coordinator.FormPair(kBystander);
  const auto run_plans = [&] {
    coordinator.executor.RunAll();
    coordinator.background.RunAll();
  };
  size_t calls = 0;
  while (input.size() >= 3 && calls++ < 64) {
    const auto method = static_cast<uint8_t>(input[0]) % Handlers().size();
    const size_t wanted =
        static_cast<uint8_t>(input[1]) | static_cast<size_t>(static_cast<uint8_t>(input[2])) << 8;
    const size_t length = std::min(wanted, input.size() - 3);
    Handlers()[method](coordinator, input.substr(3, length));
    input.remove_prefix(3 + length);
    run_plans();
    for (const char* node : {"a", "b"}) {
      const absl::Status alive = coordinator.Heartbeat(Coordinator::Key(kBystander, node));
      // Enough time may have passed in one call for its own lease to run out.
      SB_FUZZ_CHECK(alive.ok() || absl::IsAborted(alive), alive.ToString());
    }
  }
  const v1::JobStatus bystander = coordinator.Status(kBystander);
  SB_FUZZ_CHECK(bystander.generation() == 1, "a request named no job and ended a generation");
  SB_FUZZ_CHECK(bystander.remembered_sequences() == 0, "coverage went to a job that none named");
  SB_FUZZ_CHECK(bystander.next_step() == 0, "a job was asked for a step that none named");
}

std::vector<std::string> RequestSeeds() {
  MemoryStore store;
  Coordinator coordinator(&store);
  v1::RegisterJobRequest registration;
  *registration.mutable_spec() = testing_support::MakeSpec("job");
  coordinator.Register(registration).IgnoreError();
  const auto join = [&](const char* node, uint32_t rank) {
    return Framed(1, coordinator.JoinRequest("job", node, {rank}));
  };
  const std::string formed = Framed(0, registration) + join("a", 0) + join("b", 1);
  const auto ask = [](const char* node, uint64_t step) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = Coordinator::Key("job", node);
    *request.mutable_batch() = testing_support::MakeBatch(step);
    if (std::string_view(node) != "a") request.mutable_batch()->clear_sequences();
    request.set_wait_ms(1000);
    return Framed(2, request);
  };
  v1::ExchangeStepRequest report;
  *report.mutable_node() = Coordinator::Key("job", "a");
  *report.add_telemetry() = testing_support::MakeTelemetry(0, 0);
  report.add_consumed()->add_sequence_ids(1);
  report.set_report_only(true);
  v1::LeaveJobRequest leave;
  *leave.mutable_node() = Coordinator::Key("job", "a");
  v1::PutCoverageRequest coverage;
  *coverage.mutable_node() = Coordinator::Key("job", "a");
  v1::SequenceCoverage* entry = coverage.add_entries();
  entry->set_sequence_id(3);
  entry->set_tokens(512);
  *entry->mutable_coverage() = report.telemetry(0).micro_batches(0).sequences(0).coverage();
  v1::PutProfileRequest profile;
  profile.mutable_profile()->mutable_key()->set_device_class("cpu");
  profile.mutable_profile()->mutable_key()->set_model_class("tiny");
  profile.mutable_profile()->mutable_model()->set_per_token_ms(0.01);
  profile.mutable_profile()->mutable_model()->set_forward_fraction(0.3);
  profile.mutable_profile()->mutable_model()->set_block_tokens(64);
  v1::EvictNodeRequest evict;
  evict.mutable_job()->set_name("job");
  evict.set_node_id("b");
  v1::RemoveJobRequest remove;
  remove.mutable_job()->set_name("job");
  remove.set_force(true);
  v1::GetPlanRequest plan;
  plan.mutable_job()->set_name("job");
  plan.set_explain(true);
  v1::HeartbeatRequest heartbeat;
  *heartbeat.mutable_node() = Coordinator::Key("job", "a");
  const std::string time = std::string("\x0b\x01\x00\x1e", 4);
  return {formed + ask("a", 0) + ask("b", 0) + Framed(7, plan),
          formed + Framed(2, report) + Framed(2, report) + Framed(5, coverage),
          formed + Framed(4, leave) + join("a", 0),
          formed + Framed(8, evict) + Framed(3, heartbeat) + join("b", 1),
          formed + time + time + join("a", 0) + join("b", 1),
          Framed(6, profile) + formed + ask("a", 0) + Framed(9, remove) + ask("b", 0)};
}

}  // namespace sparsebalance::fuzz
