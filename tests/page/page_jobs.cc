#include "tests/page/page_jobs.h"

#include <cmath>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/latency_model.h"
#include "coordinator/service/batch_digest.h"
#include "gtest/gtest.h"

namespace sparsebalance::testing_support {
namespace {

constexpr uint32_t kBlockTokens = 128;
constexpr double kForwardShare = 1.0 / 3;

// Reproducible, and spread over [0, 1).
double Spread(uint64_t a, uint64_t b) {
  uint64_t x = (a * 0x9e3779b97f4a7c15U) ^ (b + 0x7f4a7c159e3779b9U);
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9U;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebU;
  return static_cast<double>((x ^ (x >> 31)) >> 11) / static_cast<double>(uint64_t{1} << 53);
}

v1::LatencyModel PageLatency() {
  v1::LatencyModel model;
  model.set_constant_ms(1.5);
  model.set_per_token_ms(0.006);
  model.set_per_pair_ms(2e-6);
  model.set_router_ms_per_token_block(1.5e-6);
  model.set_forward_fraction(kForwardShare);
  model.set_step_constant_ms(18);
  model.set_block_tokens(kBlockTokens);
  return model;
}

}  // namespace

PageJob::PageJob(TestClient* client, PageJobShape shape)
    : client_(client), shape_(std::move(shape)) {}

v1::JobKey PageJob::key() const {
  v1::JobKey key;
  key.set_namespace_(shape_.ns);
  key.set_name(shape_.name);
  return key;
}

std::string PageJob::NodeId(uint32_t node) const { return absl::StrCat("gpu-", 101 + node); }

v1::NodeKey PageJob::NodeKey(uint32_t node) const {
  v1::NodeKey out;
  *out.mutable_job() = key();
  out.set_node_id(NodeId(node));
  out.set_incarnation(1);
  out.set_generation(generation_);
  return out;
}

void PageJob::Register() {
  v1::RegisterJobRequest request;
  v1::JobSpec& spec = *request.mutable_spec();
  *spec.mutable_job() = key();
  spec.mutable_parallelism()->set_data(shape_.data);
  spec.mutable_parallelism()->set_pipeline(shape_.pipeline);
  v1::PlanSettings& plan = *spec.mutable_plan();
  plan.set_policy(shape_.policy);
  plan.set_data_parallel_size(shape_.data);
  plan.set_pipeline_parallel_size(shape_.pipeline);
  plan.set_block_tokens(kBlockTokens);
  plan.set_base_budget_blocks(16);
  plan.set_min_budget_blocks(4);
  plan.set_max_budget_blocks(64);
  plan.set_max_tokens_per_micro_batch(65536);
  plan.set_coverage_guard(0.1);
  plan.set_equal_micro_batch_count(shape_.pipeline > 1);
  spec.set_num_layers(28);
  spec.set_device_class("h100-sxm");
  spec.set_model_class("qwen2-1.5b");
  spec.set_global_batch_size(static_cast<uint32_t>(shape_.sequences));
  spec.set_lease_ms(600'000);
  v1::RegisterJobResponse answer;
  const absl::Status status = client_->Call(&TestClient::Stub::RegisterJob, request, &answer);
  EXPECT_TRUE(status.ok()) << status;
  fingerprint_ = answer.spec_fingerprint();
}

v1::JoinJobRequest PageJob::JoinRequest(uint32_t node) const {
  v1::JoinJobRequest request;
  *request.mutable_job() = key();
  request.set_spec_fingerprint(fingerprint_);
  request.set_node_id(NodeId(node));
  request.set_incarnation(1);
  request.set_wait_ms(60'000);
  for (uint32_t r = 0; r < shape_.ranks_per_node; ++r) {
    v1::RankInfo& rank = *request.add_ranks();
    rank.set_rank(node * shape_.ranks_per_node + r);
    rank.set_device_name("H100 80GB");
  }
  return request;
}

void PageJob::OfEveryNode(const std::function<void(uint32_t)>& call) const {
  std::vector<std::thread> threads;
  for (uint32_t node = 0; node < nodes(); ++node) {
    threads.emplace_back([&call, node] { call(node); });
  }
  for (std::thread& thread : threads) thread.join();
}

void PageJob::Join() {
  std::vector<uint64_t> generations(nodes(), 0);
  OfEveryNode([&](uint32_t node) {
    v1::JoinJobResponse answer;
    const absl::Status status =
        client_->Call(&TestClient::Stub::JoinJob, JoinRequest(node), &answer);
    EXPECT_TRUE(status.ok()) << status;
    generations[node] = answer.generation();
  });
  generation_ = generations[0];
}

void PageJob::JoinAlone(uint32_t node) {
  v1::JoinJobRequest request = JoinRequest(node);
  request.set_wait_ms(1);
  v1::JoinJobResponse answer;
  EXPECT_EQ(client_->Call(&TestClient::Stub::JoinJob, request, &answer).code(),
            absl::StatusCode::kDeadlineExceeded);
}

v1::GlobalBatch PageJob::Batch(uint64_t step) const {
  v1::GlobalBatch batch;
  batch.set_step(step);
  for (int i = 0; i < shape_.sequences; ++i) {
    const auto index = static_cast<uint64_t>(i);
    v1::BatchSequence& sequence = *batch.add_sequences();
    sequence.set_id(step * static_cast<uint64_t>(shape_.sequences) + index);
    // Half of a batch is a few thousand tokens, some are ten times as long.
    const double u = Spread(step + 1, index);
    sequence.set_tokens(static_cast<uint64_t>(1200 * std::exp(2.7 * u * u * u + 1.1 * u)));
    sequence.set_supervised_tokens(sequence.tokens() / 2);
  }
  batch.set_digest(BatchDigest(batch));
  return batch;
}

v1::RankTelemetry PageJob::Telemetry(uint32_t rank, uint64_t step, const v1::RankPlan& plan,
                                     bool fallback) const {
  const auto slow = shape_.slow.find(rank);
  const double factor = slow == shape_.slow.end() ? 1 : slow->second;
  const planner::LatencyPredictor predictor(PageLatency(), kBlockTokens);
  v1::RankTelemetry report;
  report.set_rank(rank);
  report.set_step(step);
  report.set_used_fallback(fallback);
  double compute = 0;
  for (int m = 0; m < plan.micro_batches_size(); ++m) {
    const v1::MicroBatch& planned = plan.micro_batches(m);
    if (planned.zero_weight()) continue;
    double ms = planner::MsFromNs(predictor.constant_ns());
    for (const v1::Slice& slice : planned.slices()) {
      const auto tokens = static_cast<int64_t>(slice.token_end());
      ms += planner::MsFromNs(predictor.SequenceNs(
          tokens, (tokens + kBlockTokens - 1) / kBlockTokens, slice.budget_blocks()));
    }
    ms *= factor * (1 + 0.02 * (Spread(step * 64 + static_cast<uint64_t>(m), rank) - 0.5));
    v1::MicroBatchTelemetry& micro = *report.add_micro_batches();
    micro.set_index(static_cast<uint32_t>(m));
    micro.set_forward_ms(ms * kForwardShare);
    micro.set_backward_ms(ms * (1 - kForwardShare));
    compute += ms;
    for (const v1::Slice& slice : planned.slices()) {
      v1::SequenceTelemetry& sequence = *micro.add_sequences();
      sequence.set_sequence_id(slice.sequence_id());
      sequence.set_tokens(slice.token_end());
      sequence.set_planned_budget_blocks(slice.budget_blocks());
      sequence.add_realized_budget_blocks(slice.budget_blocks());
      report.set_tokens(report.tokens() + slice.token_end());
      report.set_supervised_tokens(report.supervised_tokens() + slice.token_end() / 2);
    }
  }
  report.set_compute_ms(compute);
  report.set_step_ms(compute * 1.08 + 12);
  report.set_plan_wait_ms(0.4);
  report.set_loss_sum(static_cast<double>(report.supervised_tokens()) *
                      (1.6 + 1.5 / (1 + 0.1 * static_cast<double>(step))));
  return report;
}

void PageJob::Step(uint64_t step, bool fallback) {
  const v1::GlobalBatch batch = Batch(step);
  std::vector<v1::Plan> plans(nodes());
  OfEveryNode([&](uint32_t node) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = NodeKey(node);
    *request.mutable_batch() = batch;
    if (node != 0) request.mutable_batch()->clear_sequences();
    request.set_wait_ms(60'000);
    v1::ExchangeStepResponse answer;
    const absl::Status status = client_->Call(&TestClient::Stub::ExchangeStep, request, &answer);
    EXPECT_TRUE(status.ok()) << status;
    plans[node] = answer.plan();
  });
  for (uint32_t node = 0; node < nodes(); ++node) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = NodeKey(node);
    request.set_report_only(true);
    for (uint32_t r = 0; r < shape_.ranks_per_node; ++r) {
      const uint32_t rank = node * shape_.ranks_per_node + r;
      for (const v1::RankPlan& plan : plans[node].ranks()) {
        if (plan.rank() != rank / shape_.pipeline) continue;
        *request.add_telemetry() = Telemetry(rank, step, plan, fallback);
      }
    }
    if (node == 0) {
      v1::ConsumedBatch& consumed = *request.add_consumed();
      consumed.set_step(step);
      for (const v1::BatchSequence& sequence : batch.sequences()) {
        consumed.add_sequence_ids(sequence.id());
      }
    }
    v1::ExchangeStepResponse answer;
    const absl::Status status = client_->Call(&TestClient::Stub::ExchangeStep, request, &answer);
    EXPECT_TRUE(status.ok()) << status;
  }
}

void PageJob::Finish() {
  for (uint32_t node = 0; node < nodes(); ++node) {
    v1::LeaveJobRequest request;
    *request.mutable_node() = NodeKey(node);
    request.set_job_finished(true);
    v1::LeaveJobResponse answer;
    const absl::Status status = client_->Call(&TestClient::Stub::LeaveJob, request, &answer);
    EXPECT_TRUE(status.ok()) << status;
  }
}

v1::JobStatus PageJob::Status() {
  v1::GetJobRequest request;
  *request.mutable_job() = key();
  v1::GetJobResponse answer;
  const absl::Status status = client_->Call(&TestClient::Stub::GetJob, request, &answer);
  EXPECT_TRUE(status.ok()) << status;
  return answer.status();
}

void PutPageProfile(TestClient& client, const std::string& ns) {
  v1::PutProfileRequest request;
  v1::LatencyProfile& profile = *request.mutable_profile();
  profile.mutable_key()->set_namespace_(ns);
  profile.mutable_key()->set_device_class("h100-sxm");
  profile.mutable_key()->set_model_class("qwen2-1.5b");
  *profile.mutable_model() = PageLatency();
  v1::PutProfileResponse answer;
  const absl::Status status = client.Call(&TestClient::Stub::PutProfile, request, &answer);
  EXPECT_TRUE(status.ok()) << status;
}

}  // namespace sparsebalance::testing_support
