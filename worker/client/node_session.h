// A node's relation to the coordinator for one job: registers, joins, then fetches plans and hands
// in telemetry in the background, so that training waits for the coordinator only where it wants
// to (Wait), and goes on without one.
//
//   auto session = NodeSession::Register(options, spec, stop);      // waits for the coordinator
//   auto members = (*session)->Join(ranks, /*next_step=*/0);        // waits for the other nodes
//   // ... connect the communicator through members' rendezvous blobs ...
//   (*session)->Request(batch);
//   (*session)->Wait(batch.step(), deadline);
//   (*session)->Leave("finished", /*job_finished=*/true);
//
// A coordinator that restarts is joined again in the background under the generation that is held.
// Replies of a lower leader epoch than one already seen are thrown away.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "sparsebalance/v1/coordinator.pb.h"
#include "worker/client/channel_credentials.h"
#include "worker/client/coordinator_client.h"
#include "worker/client/plan_source.h"
#include "worker/client/stop_signal.h"

namespace sparsebalance {

struct NodeSessionOptions {
  // HOST:PORT of the coordinator, or of each of its replicas, with commas between.
  std::string address = "127.0.0.1:7070";
  std::shared_ptr<ClientTls> tls;  // null: plaintext
  std::string node_id;             // unique within the job
  // Of this process; a restarted one has a higher value. 0: made of `restart_attempt` and the time.
  uint64_t incarnation = 0;
  // Restarts of the whole job so far, as whatever starts its nodes counts them.
  uint32_t restart_attempt = 0;
  // Of the session before, where this process joins again. 0: it has not been in the job; then,
  // where its clock is behind that of the machine on which its node ran before, it may take the
  // incarnation after that one's (incarnation.h).
  uint64_t previous_incarnation = 0;
  std::string client_version;  // program and version, for people
  // How long to wait for a coordinator or for the other nodes at start; infinite by default.
  absl::Duration start_timeout = absl::InfiniteDuration();
  absl::Duration rpc_timeout = absl::Seconds(10);       // calls that wait for nobody
  absl::Duration exchange_timeout = absl::Seconds(20);  // one long poll for a plan
  absl::Duration join_poll = absl::Seconds(2);          // one long poll for members
  absl::Duration backoff_initial = absl::Milliseconds(100);
  absl::Duration backoff_max = absl::Seconds(2);
  // Telemetry of so many steps is kept while the coordinator is away; older steps are dropped.
  size_t max_unsent_steps = 256;
  // Consumed batches wait likewise, and are sent some at a time: the coordinator bounds a call.
  size_t max_unsent_consumed = 16384;
  size_t max_consumed_per_call = 1024;
  // Called with lines for people; from any thread.
  std::function<void(const std::string&)> log = [](const std::string&) {};
};

class NodeSession : public PlanSource {
 public:
  // Waits until the coordinator answers, saying so every few seconds. Errors that waiting cannot
  // mend (another spec under the name, a bad field) return at once; CANCELLED after a stop;
  // DEADLINE_EXCEEDED after start_timeout. `stop` outlives the session.
  static absl::StatusOr<std::unique_ptr<NodeSession>> Register(NodeSessionOptions options,
                                                               v1::JobSpec spec,
                                                               const StopSignal* stop);
  ~NodeSession() override;

  // Waits until every rank of the job has joined, naming the missing ones. `ranks` are this node's.
  // ABORTED where a later life of this node has joined, or where it was evicted.
  absl::StatusOr<v1::JoinJobResponse> Join(std::vector<v1::RankInfo> ranks, uint64_t next_step);

  // PlanSource. Health is ABORTED once another process has replaced a member.
  void Request(const v1::GlobalBatch& batch) override;
  std::optional<PlanOffer> Wait(uint64_t step, absl::Time deadline) override;
  bool CoordinatorAway() override;
  void Report(v1::RankTelemetry telemetry) override;
  void ReportConsumed(v1::ConsumedBatch consumed) override;
  absl::Status Health() override;

  // Gives the coordinator what a checkpoint remembered about coverage, in chunks. A coordinator
  // that does not answer is no error of training: the status is for the log.
  absl::Status PutCoverage(const std::vector<v1::SequenceCoverage>& entries);

  // The measured profile of this job's device and model, or NOT_FOUND.
  absl::StatusOr<v1::LatencyProfile> GetProfile();
  absl::Status PutProfile(v1::LatencyProfile profile);

  // Sends the rest of the telemetry and gives the ranks back; one attempt within rpc_timeout.
  absl::Status Leave(const std::string& reason, bool job_finished);

  const v1::JobSpec& spec() const { return spec_; }
  uint64_t incarnation() const {
    absl::MutexLock lock(&mutex_);
    return incarnation_;
  }
  // An operator took this process out of the job: it must not join again.
  bool evicted() const {
    absl::MutexLock lock(&mutex_);
    return evicted_;
  }

 private:
  NodeSession(NodeSessionOptions options, v1::JobSpec spec, const StopSignal* stop);

  absl::Status RegisterWithRetry(absl::Time deadline);
  absl::StatusOr<v1::JoinJobResponse> JoinOnce(bool reconnect, absl::Duration wait);
  // After a JoinJob that was ABORTED: true where it is worth trying again.
  bool MayJoinAfter(const absl::Status& aborted);
  v1::NodeKey Key() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Adds telemetry and consumed batches that wait to be sent to a request that carries both.
  template <typename Request>
  void AddReports(Request& request) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (const v1::RankTelemetry& telemetry : telemetry_) *request.add_telemetry() = telemetry;
    for (size_t i = 0; i < consumed_.size() && i < options_.max_consumed_per_call; ++i) {
      *request.add_consumed() = consumed_[i];
    }
  }
  v1::ProfileKey DeviceKey() const;
  void ExchangeLoop();
  void HeartbeatLoop();
  // One call for the wanted step; false: pause before the next.
  bool ExchangeOnce();
  v1::ExchangeStepRequest NextRequest() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // These two also return false where the next call should not follow at once.
  bool TakeReply(const v1::ExchangeStepRequest& request, v1::ExchangeStepResponse reply);
  bool HandleFailure(const v1::ExchangeStepRequest& request, const absl::Status& status);
  // Registers and joins again under the held generation; false: try again later.
  bool Rejoin();
  bool Adopt(const v1::JoinJobResponse& joined);
  void DropReported(const v1::ExchangeStepRequest& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool ExchangeNeeded() const ABSL_SHARED_LOCKS_REQUIRED(mutex_);
  void StopThreads();

  const NodeSessionOptions options_;
  const v1::JobSpec spec_;
  const StopSignal* const stop_;
  CoordinatorClient client_;

  mutable absl::Mutex mutex_;
  uint64_t incarnation_ ABSL_GUARDED_BY(mutex_);
  bool incarnation_raised_ ABSL_GUARDED_BY(mutex_) = false;
  bool evicted_ ABSL_GUARDED_BY(mutex_) = false;
  uint64_t spec_fingerprint_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t leader_epoch_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t generation_ ABSL_GUARDED_BY(mutex_) = 0;
  absl::Duration heartbeat_ ABSL_GUARDED_BY(mutex_) = absl::Seconds(2);
  std::vector<v1::RankInfo> ranks_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> incarnations_ ABSL_GUARDED_BY(mutex_);  // by rank, as first joined
  std::optional<v1::GlobalBatch> wanted_ ABSL_GUARDED_BY(mutex_);
  std::optional<PlanOffer> offer_ ABSL_GUARDED_BY(mutex_);
  // Steps before this one are over: no plan for them is fetched or offered.
  uint64_t first_open_step_ ABSL_GUARDED_BY(mutex_) = 0;
  // The coordinator cannot be reached, so waiting for a plan is pointless.
  bool away_ ABSL_GUARDED_BY(mutex_) = false;
  std::deque<v1::RankTelemetry> telemetry_ ABSL_GUARDED_BY(mutex_);
  std::deque<v1::ConsumedBatch> consumed_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  bool rejoin_needed_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  // The call for a plan that is under way, so that it can be cut short once training has moved on.
  grpc::ClientContext* in_flight_ ABSL_GUARDED_BY(mutex_) = nullptr;
  uint64_t in_flight_step_ ABSL_GUARDED_BY(mutex_) = 0;

  std::thread exchange_thread_;
  std::thread heartbeat_thread_;
};

}  // namespace sparsebalance
