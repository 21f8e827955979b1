#include "tests/load/load_job.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <random>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/status_conversion.h"
#include "grpcpp/grpcpp.h"

namespace sparsebalance::load {
namespace {

constexpr absl::Duration kDeadline = absl::Seconds(120);

}  // namespace

Channels::Channels(const std::string& address, int count) {
  for (int i = 0; i < count; ++i) {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    arguments.SetMaxReceiveMessageSize(-1);
    channels_.push_back(
        grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments));
    stubs_.push_back(v1::Coordinator::NewStub(channels_.back()));
  }
}

LoadJob::LoadJob(Channels* channels, JobShape shape)
    : channels_(channels), shape_(std::move(shape)) {}

v1::NodeKey LoadJob::Key(uint32_t node) const {
  v1::NodeKey key;
  key.mutable_job()->set_name(shape_.name);
  key.set_node_id(absl::StrCat("node-", node));
  key.set_incarnation(incarnation_);
  key.set_generation(generation_);
  return key;
}

template <typename Request, typename Response>
LoadJob::Round LoadJob::CallAll(std::vector<Request>& requests, std::vector<Response>& responses,
                                void (v1::Coordinator::Stub::async_interface::*method)(
                                    grpc::ClientContext*, const Request*, Response*,
                                    std::function<void(grpc::Status)>)) {
  const size_t count = requests.size();
  responses.assign(count, Response());
  Round round;
  round.latency.resize(count);
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (size_t i = 0; i < count; ++i) {
    contexts.push_back(std::make_unique<grpc::ClientContext>());
    contexts.back()->set_deadline(absl::ToChronoTime(absl::Now() + kDeadline));
  }
  absl::Mutex mutex;
  size_t left = count;
  const absl::Time begin = absl::Now();
  for (size_t i = 0; i < count; ++i) {
    const absl::Time sent = absl::Now();
    (channels_->stub(i).async()->*method)(contexts[i].get(), &requests[i], &responses[i],
                                          [&, i, sent](grpc::Status status) {
                                            const absl::Duration took = absl::Now() - sent;
                                            absl::MutexLock lock(&mutex);
                                            round.latency[i] = took;
                                            if (!status.ok() && round.status.ok())
                                              round.status = FromGrpcStatus(status);
                                            --left;
                                          });
  }
  absl::MutexLock lock(&mutex);
  const auto done = [&] { return left == 0; };
  mutex.Await(absl::Condition(&done));
  round.took = absl::Now() - begin;
  return round;
}

absl::Status LoadJob::Join() {
  v1::RegisterJobRequest registration;
  v1::JobSpec& spec = *registration.mutable_spec();
  spec.mutable_job()->set_name(shape_.name);
  const uint32_t ranks = shape_.nodes * shape_.ranks_per_node;
  spec.mutable_parallelism()->set_data(ranks);
  spec.mutable_plan()->set_data_parallel_size(ranks);
  spec.mutable_plan()->set_block_tokens(128);
  spec.mutable_plan()->set_base_budget_blocks(16);
  spec.mutable_plan()->set_max_tokens_per_micro_batch(131'072);
  spec.mutable_plan()->set_coverage_guard(0.1);
  spec.mutable_plan()->set_policy(shape_.policy);
  spec.set_num_layers(32);
  spec.set_device_class("load");
  spec.set_model_class("load");
  spec.set_global_batch_size(shape_.sequences);
  grpc::ClientContext context;
  v1::RegisterJobResponse registered;
  if (absl::Status status =
          FromGrpcStatus(channels_->stub(0).RegisterJob(&context, registration, &registered));
      !status.ok()) {
    return status;
  }
  std::vector<v1::JoinJobRequest> requests(shape_.nodes);
  for (uint32_t node = 0; node < shape_.nodes; ++node) {
    v1::JoinJobRequest& request = requests[node];
    request.mutable_job()->set_name(shape_.name);
    request.set_spec_fingerprint(registered.spec_fingerprint());
    request.set_node_id(absl::StrCat("node-", node));
    request.set_incarnation(incarnation_ + 1);  // of another process each time
    request.set_wait_ms(60'000);
    for (uint32_t r = 0; r < shape_.ranks_per_node; ++r) {
      v1::RankInfo* rank = request.add_ranks();
      rank->set_rank(node * shape_.ranks_per_node + r);
      rank->set_rendezvous(absl::StrCat("10.0.0.", node, ":", r));
    }
  }
  ++incarnation_;
  std::vector<v1::JoinJobResponse> answers;
  const Round round = CallAll<v1::JoinJobRequest, v1::JoinJobResponse>(
      requests, answers, &v1::Coordinator::Stub::async_interface::JoinJob);
  if (!round.status.ok()) return round.status;
  generation_ = answers.front().generation();
  return absl::OkStatus();
}

const v1::GlobalBatch& LoadJob::Batch(uint64_t step) {
  if (batch_made_ && batch_.step() == step) return batch_;
  batch_ = v1::GlobalBatch();
  batch_.set_step(step);
  // Long-tailed, as long-context data is: most are short, a few fill a micro-batch.
  std::mt19937_64 random(shape_.seed * 1'000'003 + step);
  std::lognormal_distribution<double> length(std::log(6000.0), 1.0);
  for (uint32_t i = 0; i < shape_.sequences; ++i) {
    v1::BatchSequence* sequence = batch_.add_sequences();
    sequence->set_id(step * shape_.sequences + i);
    const auto tokens = static_cast<uint64_t>(std::clamp(length(random), 128.0, 131'072.0));
    sequence->set_tokens(tokens);
    sequence->set_supervised_tokens(tokens / 2);
  }
  batch_.set_digest(BatchDigest(batch_));
  batch_made_ = true;
  return batch_;
}

LoadJob::Round LoadJob::Ask(uint64_t step) {
  const v1::GlobalBatch& batch = Batch(step);
  std::vector<v1::ExchangeStepRequest> requests(shape_.nodes);
  for (uint32_t node = 0; node < shape_.nodes; ++node) {
    *requests[node].mutable_node() = Key(node);
    requests[node].set_wait_ms(60'000);
    v1::GlobalBatch* asked = requests[node].mutable_batch();
    if (node == 0) {
      *asked = batch;
    } else {
      asked->set_step(step);
      asked->set_digest(batch.digest());
    }
  }
  std::vector<v1::ExchangeStepResponse> answers;
  return CallAll<v1::ExchangeStepRequest, v1::ExchangeStepResponse>(
      requests, answers, &v1::Coordinator::Stub::async_interface::ExchangeStep);
}

absl::Status LoadJob::Report(uint64_t step) {
  std::vector<v1::ExchangeStepRequest> requests(shape_.nodes);
  for (uint32_t node = 0; node < shape_.nodes; ++node) {
    *requests[node].mutable_node() = Key(node);
    requests[node].set_report_only(true);
    for (uint32_t r = 0; r < shape_.ranks_per_node; ++r) {
      v1::RankTelemetry* report = requests[node].add_telemetry();
      report->set_rank(node * shape_.ranks_per_node + r);
      report->set_step(step);
      report->set_step_ms(500);
      report->set_compute_ms(450);
    }
  }
  std::vector<v1::ExchangeStepResponse> answers;
  return CallAll<v1::ExchangeStepRequest, v1::ExchangeStepResponse>(
             requests, answers, &v1::Coordinator::Stub::async_interface::ExchangeStep)
      .status;
}

absl::Status LoadJob::Consume(uint64_t step) {
  v1::ExchangeStepRequest request;
  *request.mutable_node() = Key(0);
  request.set_report_only(true);
  v1::ConsumedBatch* consumed = request.add_consumed();
  consumed->set_step(step);
  for (const v1::BatchSequence& sequence : Batch(step).sequences()) {
    consumed->add_sequence_ids(sequence.id());
  }
  grpc::ClientContext context;
  v1::ExchangeStepResponse answer;
  return FromGrpcStatus(channels_->stub(0).ExchangeStep(&context, request, &answer));
}

absl::Status LoadJob::Leave() {
  std::vector<v1::LeaveJobRequest> requests(shape_.nodes);
  for (uint32_t node = 0; node < shape_.nodes; ++node) {
    *requests[node].mutable_node() = Key(node);
    requests[node].set_job_finished(true);
  }
  std::vector<v1::LeaveJobResponse> answers;
  return CallAll<v1::LeaveJobRequest, v1::LeaveJobResponse>(
             requests, answers, &v1::Coordinator::Stub::async_interface::LeaveJob)
      .status;
}

absl::Duration Quantile(std::vector<absl::Duration> values, double part) {
  if (values.empty()) return absl::ZeroDuration();
  std::sort(values.begin(), values.end());
  const auto index = static_cast<size_t>(std::ceil(part * static_cast<double>(values.size())));
  return values[std::min(std::max<size_t>(index, 1), values.size()) - 1];
}

}  // namespace sparsebalance::load
