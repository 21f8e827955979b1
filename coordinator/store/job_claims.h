// Which replica of the coordinator answers for which job, and under which leader epoch.
//
//   auto epoch = claims->Claim(id, request.known_leader_epoch());  // not on an RPC's thread
//   if (!epoch.ok()) return epoch.status();                        // NotOwner: says where to call
//   ...
//   auto epoch = claims->Held(id);                                 // before every answer
//
// A claim is given up by Release, or lost: the lease ran out because the store was away or the
// process stood still, or somebody deleted the claim. Then Held fails from that moment on, and
// OnLost tells of it once. Only Claim takes a job again, under a higher epoch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/store/job_id.h"

namespace sparsebalance {

// Thread-safe.
class JobClaims {
 public:
  virtual ~JobClaims() = default;

  // Takes the job for this process, or confirms that it has it, and returns its leader epoch: one
  // of our own that is not below `above`, or a new one that is above it. `above` is the highest
  // epoch that a client reports. UNAVAILABLE with a NotOwner detail where another replica has the
  // job, UNAVAILABLE without one where the store cannot be reached, INVALID_ARGUMENT
  // (FieldViolation) for an epoch that no coordinator can have had. May block for the store's
  // time-out: never call it on an RPC's thread. Where the job is held under an epoch below `above`,
  // that epoch is lost and told of.
  virtual absl::StatusOr<uint64_t> Claim(const JobId& id, uint64_t above) = 0;

  // The job's epoch while the job is surely ours, from local knowledge: never blocks. UNAVAILABLE
  // with a NotOwner detail else, which names the owner where one is known. Once the lease's time is
  // over by our own clock, counted from before the last successful renewal was sent, nothing is
  // ours.
  virtual absl::StatusOr<uint64_t> Held(const JobId& id) = 0;

  // Gives the job up, so that others may take it at once. Held fails from the call on, whatever it
  // returns. Idempotent. UNAVAILABLE where the store cannot be reached: the claim is then removed
  // later, as soon as it can be. Blocks like Claim.
  virtual absl::Status Release(const JobId& id) = 0;

  // Gives everything up and takes nothing any more: for a drain. Blocks like Claim. UNAVAILABLE
  // where the store cannot be reached: others then have to wait for the lease to run out.
  virtual absl::Status ReleaseAll() = 0;

  struct Owned {
    JobId id;
    std::string address;  // HOST:PORT for clients
    uint64_t epoch = 0;

    friend bool operator==(const Owned&, const Owned&) = default;
  };
  // The claims of all replicas, by job, as last heard. Never blocks.
  virtual std::vector<Owned> Owners() = 0;

  // `lost` is called from a thread of the claims' own for every job that was held under `epoch` and
  // is not any more without having been released, once for each epoch that Claim returned. It may
  // come late: the job may be claimed again already, under a higher epoch. Not called after the
  // destructor. To be set before the first Claim.
  using Lost = absl::AnyInvocable<void(const JobId& id, uint64_t epoch)>;
  virtual void OnLost(Lost lost) = 0;

  struct Health {
    bool lease_alive = false;    // jobs can be held
    absl::Duration lease_left;   // unless it is renewed
    bool store_answers = false;  // at the last renewal
    std::string problem;         // for people; empty where there is none
  };
  virtual Health CheckHealth() = 0;  // never blocks

  // Whether other processes may hold jobs too. Where not, every job is held here from the start,
  // and Claim waits for a file at most.
  virtual bool shared() const = 0;
};

}  // namespace sparsebalance
