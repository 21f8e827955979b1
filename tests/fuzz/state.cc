#include <string>
#include <utility>
#include <vector>

#include "coordinator/planner/coverage_memory.h"
#include "coordinator/planner/latency_estimator.h"
#include "coordinator/service/consumed_journal.h"
#include "coordinator/service/request_validation.h"
#include "coordinator/service/service_test_util.h"
#include "coordinator/service/state_transfer.h"
#include "tests/fuzz/targets.h"

namespace sparsebalance::fuzz {
namespace {

constexpr uint32_t kBlockTokens = 64;

void Coverage(std::string_view bytes) {
  planner::CoverageMemory memory(kBlockTokens, 4096);
  if (!memory.RestoreChunk(bytes).ok()) return;
  // What was taken must be good enough to plan by, and to store again.
  for (const uint64_t tokens : {uint64_t{1}, uint64_t{64}, uint64_t{5000}})
    memory.Lookup(1, tokens);
  for (size_t chunk = 0; chunk < memory.NumChunks(); ++chunk) {
    planner::CoverageMemory copy(kBlockTokens, 4096);
    SB_FUZZ_CHECK(copy.RestoreChunk(memory.Chunk(chunk)).ok(), "a chunk of ours is refused");
  }
}

void Latency(std::string_view bytes) {
  planner::EstimatorOptions options;
  options.block_tokens = kBlockTokens;
  options.parallelism.set_data(2);
  planner::LatencyEstimator estimator(options, std::nullopt);
  if (!estimator.Restore(std::string(bytes)).ok()) return;
  planner::LatencyEstimator copy(options, std::nullopt);
  SB_FUZZ_CHECK(copy.Restore(estimator.Serialize()).ok(), "a state of ours is refused");
}

void Profile(std::string_view bytes) {
  v1::LatencyProfile profile;
  if (!profile.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  if (!ValidateProfile(profile).ok()) return;
  planner::EstimatorOptions options;
  options.block_tokens = profile.model().block_tokens();
  options.parallelism.set_data(2);
  planner::LatencyEstimator estimator(options, profile);
  estimator.model();
}

void Journal(std::string_view bytes) {
  std::vector<v1::ConsumedBatch> batches;
  v1::LeaveJobRequest carrier;  // any message with a row of batches
  if (!carrier.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
  batches.assign(carrier.consumed().begin(), carrier.consumed().end());
  ConsumedJournal journal(batches);
  for (const v1::ConsumedBatch& batch : batches) journal.Add(batch);
  journal.Prune();
  journal.CutBack(batches.empty() ? 0 : batches.front().step());
  journal.Batches();
  journal.bytes();
}

void Backup(std::string_view bytes) {
  MemoryStore store;
  testing_support::Coordinator coordinator(&store);
  StateImporter importer({[&](const v1::LatencyProfile& profile) {
                            v1::PutProfileRequest request;
                            *request.mutable_profile() = profile;
                            return coordinator.registry->PutProfile(request).status();
                          },
                          [&](JobSeed job, uint64_t above) {
                            return coordinator.registry->ImportJob(std::move(job), above, true);
                          }});
  // Each record behind a byte for its length, so that small inputs hold several.
  while (!bytes.empty()) {
    const size_t length = std::min<size_t>(static_cast<uint8_t>(bytes[0]), bytes.size() - 1);
    v1::StateRecord record;
    if (record.ParseFromArray(bytes.data() + 1, static_cast<int>(length))) {
      importer.Add(record).IgnoreError();
    }
    bytes.remove_prefix(1 + length);
  }
  importer.Finish().IgnoreError();
}

constexpr void (*kStateParsers[])(std::string_view) = {&Coverage, &Latency, &Profile, &Journal,
                                                       &Backup};

}  // namespace

void State(std::string_view input) {
  if (input.empty()) return;
  const size_t parser = static_cast<uint8_t>(input[0]) % std::size(kStateParsers);
  kStateParsers[parser](input.substr(1));
}

std::vector<std::string> StateSeeds() {
  const auto with = [](char parser, const std::string& bytes) {
    return std::string(1, parser) + bytes;
  };
  planner::CoverageMemory memory(kBlockTokens);
  const v1::RankTelemetry report = testing_support::MakeTelemetry(0, 0);
  for (uint64_t id = 0; id < 3; ++id) {
    memory.Observe(id, 512, report.micro_batches(0).sequences(0).coverage()).IgnoreError();
  }
  planner::EstimatorOptions options;
  options.block_tokens = kBlockTokens;
  options.parallelism.set_data(2);
  planner::LatencyEstimator estimator(options, std::nullopt);
  estimator.Observe(report);
  v1::LatencyProfile profile;
  profile.mutable_key()->set_namespace_("default");
  profile.mutable_key()->set_device_class("cpu");
  profile.mutable_key()->set_model_class("tiny");
  profile.mutable_model()->set_per_token_ms(0.01);
  profile.mutable_model()->set_forward_fraction(0.3);
  profile.mutable_model()->set_block_tokens(kBlockTokens);
  v1::LeaveJobRequest journal;
  for (uint64_t step = 0; step < 3; ++step) {
    v1::ConsumedBatch* batch = journal.add_consumed();
    batch->set_step(step);
    batch->set_epoch(step / 2);
    batch->add_sequence_ids(step);
  }
  std::string backup;
  const auto add = [&](const v1::StateRecord& record) {
    const std::string bytes = record.SerializeAsString();
    backup += static_cast<char>(bytes.size());
    backup += bytes;
  };
  v1::StateRecord record;
  record.mutable_header()->set_format(kStateFormat);
  add(record);
  *record.mutable_job()->mutable_spec() = testing_support::MakeSpec("job");
  add(record);
  record.mutable_consumed()->mutable_job()->set_name("job");
  record.mutable_consumed()->mutable_batch()->add_sequence_ids(1);
  add(record);
  record.mutable_trailer()->set_records(3);
  add(record);
  return {with(0, memory.Chunk(0)),
          with(0, memory.Chunk(1)),
          with(1, estimator.Serialize()),
          with(2, profile.SerializeAsString()),
          with(3, journal.SerializeAsString()),
          with(4, backup)};
}

}  // namespace sparsebalance::fuzz
