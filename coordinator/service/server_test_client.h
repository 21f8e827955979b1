// A client of a real coordinator for tests: two nodes, a and b, with a rank each.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/status_conversion.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance::testing_support {

class TestClient {
 public:
  using Stub = v1::Coordinator::Stub;

  explicit TestClient(const std::string& address)
      : channel_(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(),
                                           OwnConnection())),
        stub_(v1::Coordinator::NewStub(channel_)) {}

  template <typename Request, typename Response>
  absl::Status Call(grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response,
                    grpc::ClientContext* context = nullptr) {
    grpc::ClientContext own;
    grpc::ClientContext* used = context == nullptr ? &own : context;
    used->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    return FromGrpcStatus((stub_.get()->*method)(used, request, response));
  }

  static v1::JobSpec Spec(const std::string& name) {
    v1::JobSpec spec;
    spec.mutable_job()->set_name(name);
    spec.mutable_parallelism()->set_data(2);
    spec.mutable_plan()->set_data_parallel_size(2);
    spec.mutable_plan()->set_block_tokens(64);
    spec.mutable_plan()->set_base_budget_blocks(8);
    spec.mutable_plan()->set_max_tokens_per_micro_batch(4096);
    spec.mutable_plan()->set_coverage_guard(0.1);
    spec.set_num_layers(2);
    spec.set_device_class("cpu");
    spec.set_model_class("tiny");
    spec.set_global_batch_size(8);
    return spec;
  }

  uint64_t Register(const std::string& name) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = Spec(name);
    v1::RegisterJobResponse answer;
    const absl::Status status = Call(&Stub::RegisterJob, request, &answer);
    EXPECT_TRUE(status.ok()) << status;
    return answer.spec_fingerprint();
  }

  absl::Status Join(const std::string& job, const std::string& node, uint64_t held,
                    v1::JoinJobResponse* answer, grpc::ClientContext* context = nullptr,
                    uint64_t next_step = 0) {
    v1::JoinJobRequest request;
    request.mutable_job()->set_name(job);
    request.set_spec_fingerprint(Register(job));
    request.set_node_id(node);
    request.set_incarnation(1);
    request.set_held_generation(held);
    request.set_next_step(next_step);
    request.set_wait_ms(60'000);
    request.add_ranks()->set_rank(node == "a" ? 0 : 1);
    return Call(&Stub::JoinJob, request, answer, context);
  }

  // Both nodes join; afterwards the job trains.
  void FormPair(const std::string& job, uint64_t held_generation = 0, uint64_t next_step = 0) {
    v1::JoinJobResponse a;
    v1::JoinJobResponse b;
    std::thread other([&] {
      const absl::Status status = Join(job, "b", held_generation, &b, nullptr, next_step);
      EXPECT_TRUE(status.ok()) << status;
    });
    const absl::Status status = Join(job, "a", held_generation, &a, nullptr, next_step);
    EXPECT_TRUE(status.ok()) << status;
    other.join();
    EXPECT_EQ(a.generation(), b.generation());
    generation_ = a.generation();
  }

  v1::NodeKey Key(const std::string& job, const std::string& node) const {
    v1::NodeKey key;
    key.mutable_job()->set_name(job);
    key.set_node_id(node);
    key.set_incarnation(1);
    key.set_generation(generation_);
    return key;
  }

  absl::Status Heartbeat(const std::string& job, const std::string& node) {
    v1::HeartbeatRequest request;
    *request.mutable_node() = Key(job, node);
    v1::HeartbeatResponse answer;
    return Call(&Stub::Heartbeat, request, &answer);
  }

  absl::Status Exchange(const std::string& job, const std::string& node, uint64_t step,
                        v1::ExchangeStepResponse* answer) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = Key(job, node);
    request.set_wait_ms(60'000);
    v1::GlobalBatch* batch = request.mutable_batch();
    batch->set_step(step);
    for (uint64_t i = 0; i < 8; ++i) {
      v1::BatchSequence* sequence = batch->add_sequences();
      sequence->set_id(step * 8 + i);
      sequence->set_tokens(100 + 200 * i);
      sequence->set_supervised_tokens(50);
    }
    batch->set_digest(BatchDigest(*batch));
    if (node != "a") batch->clear_sequences();
    return Call(&Stub::ExchangeStep, request, answer);
  }

  absl::Status Report(const std::string& job, const std::string& node, uint32_t rank,
                      uint64_t step) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = Key(job, node);
    request.set_report_only(true);
    v1::RankTelemetry* report = request.add_telemetry();
    report->set_rank(rank);
    report->set_step(step);
    report->set_step_ms(20);
    report->set_compute_ms(10);
    v1::ExchangeStepResponse answer;
    return Call(&Stub::ExchangeStep, request, &answer);
  }

  absl::Status Consume(const std::string& job, const std::string& node, uint64_t step,
                       const std::vector<uint64_t>& ids, v1::ExchangeStepResponse* answer) {
    v1::ExchangeStepRequest request;
    *request.mutable_node() = Key(job, node);
    request.set_report_only(true);
    v1::ConsumedBatch* batch = request.add_consumed();
    batch->set_step(step);
    for (const uint64_t id : ids) batch->add_sequence_ids(id);
    return Call(&Stub::ExchangeStep, request, answer);
  }

  absl::Status Leave(const std::string& job, const std::string& node) {
    v1::LeaveJobRequest request;
    *request.mutable_node() = Key(job, node);
    request.set_job_finished(true);
    v1::LeaveJobResponse answer;
    return Call(&Stub::LeaveJob, request, &answer);
  }

  v1::JobStatus Status(const std::string& job) {
    v1::GetJobRequest request;
    request.mutable_job()->set_name(job);
    v1::GetJobResponse answer;
    const absl::Status status = Call(&Stub::GetJob, request, &answer);
    EXPECT_TRUE(status.ok()) << status;
    return answer.status();
  }

  // Follows the job's revisions until it is as wanted.
  void WaitFor(const std::string& job, const std::function<bool(const v1::JobStatus&)>& wanted) {
    v1::WatchJobRequest request;
    request.mutable_job()->set_name(job);
    request.set_wait_ms(100);
    while (true) {
      v1::WatchJobResponse answer;
      const absl::Status status = Call(&Stub::WatchJob, request, &answer);
      ASSERT_TRUE(status.ok()) << status;
      if (wanted(answer.status())) return;
      request.set_after_revision(answer.status().revision());
    }
  }
  void WaitForState(const std::string& job, v1::JobState state) {
    WaitFor(job, [state](const v1::JobStatus& status) { return status.state() == state; });
  }

  // Sends one message to any method and returns the first of its answers, both as bytes.
  std::string Raw(const std::string& method, const std::string& message) {
    grpc::GenericStub stub(channel_);
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
    grpc::CompletionQueue queue;
    const auto wait = [&] {
      void* tag = nullptr;
      bool ok = false;
      return queue.Next(&tag, &ok) && ok;
    };
    const auto call = stub.PrepareCall(&context, method, &queue);
    call->StartCall(nullptr);
    if (!wait()) return "no call";
    const grpc::Slice slice(message);
    call->Write(grpc::ByteBuffer(&slice, 1), nullptr);
    if (!wait()) return "no answer";  // the server ended the call at once
    call->WritesDone(nullptr);
    if (!wait()) return "no answer";
    grpc::ByteBuffer buffer;
    call->Read(&buffer, nullptr);
    if (!wait()) return "no answer";
    std::vector<grpc::Slice> slices;
    std::string bytes;
    if (!buffer.Dump(&slices).ok()) return "not readable";
    for (const grpc::Slice& part : slices) {
      bytes.append(reinterpret_cast<const char*>(part.begin()), part.size());
    }
    context.TryCancel();
    grpc::Status status;
    call->Finish(&status, nullptr);
    wait();
    return bytes;
  }

 private:
  // Tests run several servers on one port, one after another: each client has its own connection.
  static grpc::ChannelArguments OwnConnection() {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return arguments;
  }

  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<Stub> stub_;
  uint64_t generation_ = 1;
};

}  // namespace sparsebalance::testing_support
