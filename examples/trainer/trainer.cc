// A trainer that takes its plans from a SparseBalance coordinator, by the generated stubs alone.
// docs/integration.md goes through it; what every trainer has already is in own_trainer.h.
//
//   example-trainer HOST:PORT RANK FIRST_STEP END_STEP
#include <openssl/sha.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "examples/trainer/own_trainer.h"
#include "grpcpp/grpcpp.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"
#include "sparsebalance/v1/errors.pb.h"

namespace v1 = sparsebalance::v1;
using grpc::StatusCode;
using Stub = v1::Coordinator::Stub;
using std::chrono::milliseconds;
using std::chrono::system_clock;

// Errors carry typed details: those of errors.proto.
template <typename Detail>
std::optional<Detail> DetailOf(const grpc::Status& status) {
  v1::RpcStatus rpc;
  Detail detail;
  if (!rpc.ParseFromString(status.error_details())) return std::nullopt;
  for (const auto& any : rpc.details()) {
    if (any.UnpackTo(&detail)) return detail;
  }
  return std::nullopt;
}

struct Session {
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<Stub> stub;
  v1::JobSpec spec;
  v1::NodeKey node;  // who calls: in every request after JoinJob
  v1::RankInfo rank;
  v1::ExchangeStepRequest reports;  // telemetry that the coordinator does not have yet
  bool rejoin = false;
};

// One call. It ends after three seconds, long polls included.
template <typename Request, typename Response>
grpc::Status Call(Session& session,
                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                  const Request& request, Response& response) {
  grpc::ClientContext context;
  context.set_deadline(system_clock::now() + milliseconds(3000));
  return (session.stub.get()->*method)(&context, request, &response);
}

// What all ranks agree on. Another spec under the name of a live job is refused.
v1::JobSpec Spec() {
  v1::JobSpec spec;
  spec.mutable_job()->set_name("example");
  spec.mutable_parallelism()->set_data(kRanks);
  spec.mutable_plan()->set_data_parallel_size(kRanks);
  spec.mutable_plan()->set_block_tokens(64);
  spec.mutable_plan()->set_base_budget_blocks(kBaseBudgetBlocks);
  spec.mutable_plan()->set_max_tokens_per_micro_batch(2048);
  spec.set_num_layers(2);
  spec.set_global_batch_size(kBatchSize);
  return spec;
}

// What a step trains, with the digest that GlobalBatch describes: the coordinator checks it.
v1::GlobalBatch BatchMessage(uint64_t step) {
  v1::GlobalBatch batch;
  std::string bytes;
  const auto append = [&](uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) bytes.push_back(static_cast<char>(value >> 8 * byte));
  };
  batch.set_step(step);
  append(step);
  append(batch.epoch());
  for (const TokenSequence& sequence : GlobalBatchOf(step)) {
    v1::BatchSequence* out = batch.add_sequences();
    out->set_id(sequence.id);
    out->set_tokens(sequence.tokens);
    out->set_supervised_tokens(sequence.tokens);
    for (const uint64_t value : {sequence.id, sequence.tokens, sequence.tokens}) append(value);
  }
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash.data());
  uint64_t digest = 0;
  for (int byte = 0; byte < 8; ++byte) digest = digest << 8 | hash[byte];
  batch.set_digest(digest);
  return batch;
}

// One attempt to register the job and to join it. `held` is 0 at start; later it is the generation
// whose communicator this process still has, which is then kept.
grpc::Status Join(Session& session, uint64_t held, uint64_t step, v1::JoinJobResponse& joined) {
  v1::RegisterJobRequest registration;
  *registration.mutable_spec() = session.spec;
  registration.set_known_leader_epoch(session.node.known_leader_epoch());
  v1::RegisterJobResponse registered;
  grpc::Status status = Call(session, &Stub::RegisterJob, registration, registered);
  if (!status.ok()) return status;

  v1::JoinJobRequest request;
  *request.mutable_job() = session.spec.job();
  request.set_spec_fingerprint(registered.spec_fingerprint());
  request.set_node_id(session.node.node_id());
  request.set_incarnation(session.node.incarnation());
  *request.add_ranks() = session.rank;
  if (held != 0) request.mutable_ranks(0)->clear_rendezvous();  // good for a new communicator only
  request.set_held_generation(held);
  request.set_next_step(step);
  request.set_known_leader_epoch(registered.leader_epoch());
  request.set_wait_ms(1000);
  status = Call(session, &Stub::JoinJob, request, joined);
  if (!status.ok()) return status;
  session.node.set_generation(joined.generation());
  session.node.set_known_leader_epoch(joined.leader_epoch());
  session.rejoin = false;
  return status;
}

// The plan of a step. ABORTED: this process can have none any more; any other error: not this time.
grpc::Status Ask(Session& session, const v1::GlobalBatch& batch,
                 v1::ExchangeStepResponse& response) {
  // What a coordinator that is away costs a step.
  if (!session.channel->WaitForConnected(system_clock::now() + milliseconds(100))) {
    return {StatusCode::UNAVAILABLE, "the coordinator is away"};
  }
  if (session.rejoin) {
    v1::JoinJobResponse joined;
    const uint64_t held = session.node.generation();
    const grpc::Status status = Join(session, held, batch.step(), joined);
    if (!status.ok()) return status;
    if (joined.generation() != held) return {StatusCode::ABORTED, "there are other members now"};
  }
  v1::ExchangeStepRequest request = session.reports;
  *request.mutable_node() = session.node;
  *request.mutable_batch() = batch;
  if (session.rank.rank() != 0) request.mutable_batch()->clear_sequences();  // the digest is enough
  request.set_wait_ms(1000);
  const grpc::Status status = Call(session, &Stub::ExchangeStep, request, response);
  const StatusCode code = status.error_code();
  if (code == StatusCode::ABORTED || code == StatusCode::NOT_FOUND) {
    session.rejoin = true;  // it may have been restarted: join again before the next step
    return {StatusCode::UNAVAILABLE, status.error_message()};
  }
  // Reports that were refused would be refused again.
  if (status.ok() || code == StatusCode::INVALID_ARGUMENT) session.reports.clear_telemetry();
  if (!status.ok()) return status;
  if (response.leader_epoch() < session.node.known_leader_epoch()) {
    return {StatusCode::UNAVAILABLE, "a plan of a coordinator that was replaced"};
  }
  if (response.generation() != request.node().generation()) {
    return {StatusCode::UNAVAILABLE, "a plan for other members"};
  }
  session.node.set_known_leader_epoch(response.leader_epoch());
  return status;
}

// The sequences that the plan gives this rank, micro-batch by micro-batch.
MicroBatches WorkOf(const v1::Plan& plan, uint32_t rank) {
  MicroBatches work;
  for (const v1::RankPlan& rank_plan : plan.ranks()) {
    if (rank_plan.rank() != rank) continue;
    for (const v1::MicroBatch& micro_batch : rank_plan.micro_batches()) {
      work.emplace_back();
      for (const v1::Slice& slice : micro_batch.slices()) {
        work.back().push_back({slice.sequence_id(), slice.token_end(), slice.budget_blocks()});
      }
    }
  }
  return work;
}

v1::RankTelemetry Train(const MicroBatches& work, uint32_t rank, uint64_t step) {
  v1::RankTelemetry telemetry;
  telemetry.set_rank(rank);
  telemetry.set_step(step);
  for (size_t i = 0; i < work.size(); ++i) {
    v1::MicroBatchTelemetry* micro_batch = telemetry.add_micro_batches();
    const Times times = TrainMicroBatch(work[i]);
    micro_batch->set_index(static_cast<uint32_t>(i));
    micro_batch->set_forward_ms(times.forward_ms);
    micro_batch->set_backward_ms(times.backward_ms);
    telemetry.set_compute_ms(telemetry.compute_ms() + times.forward_ms + times.backward_ms);
    for (const Work& sequence : work[i]) {
      v1::SequenceTelemetry* out = micro_batch->add_sequences();
      out->set_sequence_id(sequence.id);
      out->set_tokens(sequence.tokens);
      out->set_planned_budget_blocks(sequence.budget_blocks);
      telemetry.set_tokens(telemetry.tokens() + sequence.tokens);
    }
  }
  telemetry.set_step_ms(telemetry.compute_ms());
  return telemetry;
}

int Fail(const char* what, const std::string& why) {
  std::fprintf(stderr, "%s: %s\n", what, why.c_str());
  return 1;
}

int main(int argc, char** argv) {
  if (argc != 5) return Fail("usage", "example-trainer HOST:PORT RANK FIRST_STEP END_STEP");
  const auto rank = static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10));
  const uint64_t first = std::strtoull(argv[3], nullptr, 10);
  const uint64_t end = std::strtoull(argv[4], nullptr, 10);
  Communicator communicator(rank);

  Session session;
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(256 << 20);  // plans of large jobs exceed gRPC's 4 MiB
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  session.channel =
      grpc::CreateCustomChannel(argv[1], grpc::InsecureChannelCredentials(), arguments);
  session.stub = v1::Coordinator::NewStub(session.channel);
  session.spec = Spec();
  *session.node.mutable_job() = session.spec.job();
  session.node.set_node_id("node-" + std::to_string(rank));
  session.node.set_incarnation(MicrosecondsSince1970());  // higher than that of the process before
  session.rank.set_rank(rank);
  session.rank.set_rendezvous(communicator.Address());

  v1::JoinJobResponse joined;
  grpc::Status status = Join(session, 0, first, joined);
  while (!status.ok()) {
    const auto retry = DetailOf<v1::RetryLater>(status);
    if (!retry && status.error_code() != StatusCode::UNAVAILABLE &&  // no coordinator yet
        status.error_code() != StatusCode::DEADLINE_EXCEEDED) {      // some ranks are missing
      return Fail("cannot join", status.error_message());
    }
    std::fprintf(stderr, "waiting: %s\n", status.error_message().c_str());
    std::this_thread::sleep_for(milliseconds(retry ? retry->retry_after_ms() : 200));
    status = Join(session, 0, first, joined);
  }
  if (!communicator.Connect(joined.members(0).rendezvous())) {
    return Fail("cannot reach rank 0", joined.members(0).node_id());
  }

  for (uint64_t step = first; step < end; ++step) {
    v1::ExchangeStepResponse response;
    const v1::GlobalBatch batch = BatchMessage(step);
    status = Ask(session, batch, response);
    if (!status.ok()) std::fprintf(stderr, "step %lu: %s\n", step, status.error_message().c_str());
    if (status.error_code() == StatusCode::ABORTED) return Fail("lost", "start from a checkpoint");

    // No rank acts on a plan alone: all have the same one, or none uses any.
    const uint64_t plan = response.plan_digest();
    const uint64_t data = batch.digest();
    std::array<uint64_t, 5> most = {status.ok() ? 0u : 1u, plan, ~plan, data, ~data};
    if (!communicator.AllReduceMax(most)) return Fail("lost", "a rank; start from a checkpoint");
    if (most[3] != ~most[4]) return Fail("step", "the ranks read different data");
    const bool use_plan = most[0] == 0 && most[1] == ~most[2];

    const MicroBatches work =
        use_plan ? WorkOf(response.plan(), rank) : BalancedByLength(GlobalBatchOf(step), rank);
    v1::RankTelemetry telemetry = Train(work, rank, step);
    telemetry.set_used_fallback(!use_plan);
    if (use_plan) {
      telemetry.set_plan_digest(plan);
    } else {
      telemetry.set_no_plan_reason(status.ok() ? v1::NO_PLAN_REASON_RANKS_DIFFER
                                               : v1::NO_PLAN_REASON_COORDINATOR_AWAY);
    }
    // A coordinator that is away for long need not learn of every step.
    if (session.reports.telemetry_size() < 256) *session.reports.add_telemetry() = telemetry;
    PrintStep(step, use_plan ? plan : 0, work);
  }

  v1::LeaveJobRequest request;
  *request.mutable_node() = session.node;
  *request.mutable_telemetry() = session.reports.telemetry();
  request.set_job_finished(true);
  v1::LeaveJobResponse left;
  status = Call(session, &Stub::LeaveJob, request, left);
  // The steps are trained all the same.
  if (!status.ok()) std::fprintf(stderr, "leaving: %s\n", status.error_message().c_str());
  return 0;
}
