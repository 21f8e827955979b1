// The calls of a trainer, one after the other: a job of one node with one rank, three steps, and
// nothing goes wrong. ../trainer has more ranks, and goes on when something does.
//
//   example-first-plan HOST:PORT
#include <openssl/sha.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <stdexcept>
#include <string>

#include "grpcpp/grpcpp.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace v1 = sparsebalance::v1;

void Must(const grpc::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.error_message());
}

// Eight sequences, and the digest by which ranks that read other data are found out
// (GlobalBatch.digest).
v1::GlobalBatch BatchOf(uint64_t step) {
  v1::GlobalBatch batch;
  std::string bytes;
  const auto append = [&](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) bytes.push_back(static_cast<char>(value >> 8 * byte));
  };
  batch.set_step(step);
  for (const uint64_t value : {step, batch.epoch()}) append(value);
  for (uint64_t id = 8 * step; id < 8 * step + 8; ++id) {
    v1::BatchSequence& sequence = *batch.add_sequences();
    sequence.set_id(id);
    sequence.set_tokens(64 + id * 7919 % 1024);
    sequence.set_supervised_tokens(sequence.tokens());
    for (const uint64_t value : {id, sequence.tokens(), sequence.tokens()}) append(value);
  }
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash);
  for (int byte = 0; byte < 8; ++byte) batch.set_digest(batch.digest() << 8 | hash[byte]);
  return batch;
}

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("usage: example-first-plan HOST:PORT");
  const auto stub =
      v1::Coordinator::NewStub(grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  const auto call = [&](auto method, const auto& request, auto response) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(10));
    Must((stub.get()->*method)(&context, request, &response));
    return response;
  };
  using Stub = v1::Coordinator::Stub;

  v1::RegisterJobRequest job;  // what all ranks agree on
  job.mutable_spec()->mutable_job()->set_name("first-plan");
  job.mutable_spec()->mutable_parallelism()->set_data(1);
  job.mutable_spec()->mutable_plan()->set_data_parallel_size(1);
  job.mutable_spec()->mutable_plan()->set_block_tokens(64);
  job.mutable_spec()->mutable_plan()->set_base_budget_blocks(4);
  job.mutable_spec()->mutable_plan()->set_max_tokens_per_micro_batch(2048);
  job.mutable_spec()->set_num_layers(2);
  job.mutable_spec()->set_global_batch_size(8);
  const auto registered = call(&Stub::RegisterJob, job, v1::RegisterJobResponse());

  v1::JoinJobRequest join;  // this node and its ranks; answers when all nodes are there
  *join.mutable_job() = job.spec().job();
  join.set_spec_fingerprint(registered.spec_fingerprint());
  join.set_node_id("node-0");
  join.set_incarnation(std::chrono::system_clock::now().time_since_epoch().count());
  join.add_ranks()->set_rendezvous("where other ranks reach this one");
  join.set_wait_ms(5000);
  const auto joined = call(&Stub::JoinJob, join, v1::JoinJobResponse());

  v1::ExchangeStepRequest exchange;  // what steps took, and the next batch
  *exchange.mutable_node()->mutable_job() = job.spec().job();
  exchange.mutable_node()->set_node_id(join.node_id());
  exchange.mutable_node()->set_incarnation(join.incarnation());
  exchange.mutable_node()->set_generation(joined.generation());
  exchange.set_wait_ms(5000);
  for (uint64_t step = 0; step < 3; ++step) {
    *exchange.mutable_batch() = BatchOf(step);
    const auto planned = call(&Stub::ExchangeStep, exchange, v1::ExchangeStepResponse());
    exchange.clear_telemetry();
    v1::RankTelemetry& telemetry = *exchange.add_telemetry();  // sent with the next call
    telemetry.set_step(step);
    telemetry.set_plan_digest(planned.plan_digest());
    for (const v1::MicroBatch& micro_batch : planned.plan().ranks(0).micro_batches()) {
      for (const v1::Slice& slice : micro_batch.slices()) {  // here a trainer would train
        std::printf("step %lu sequence %lu budget %u\n", step, slice.sequence_id(),
                    slice.budget_blocks());
      }
    }
  }

  v1::LeaveJobRequest leave;
  *leave.mutable_node() = exchange.node();
  *leave.mutable_telemetry() = exchange.telemetry();
  leave.set_job_finished(true);
  call(&Stub::LeaveJob, leave, v1::LeaveJobResponse());
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
