// Who is in a job: seats, incarnations, leases and the generation.
//
// A generation is one complete membership: every rank held once by nodes that all asked to join. It
// ends as soon as one of them leaves, dies, or comes back as another process; the others keep their
// ranks but have to join again. If all come back holding the communicator of the same generation
// (the coordinator was away, nobody died), the generation stays; otherwise the next one is formed,
// from nodes that bring fresh rendezvous data.
//
// Not thread-safe: the job's mutex guards it. It knows no callbacks: callers act on what it
// returns.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/service/job_epoch.h"
#include "coordinator/store/job_id.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

struct MembershipTimes {
  absl::Duration lease;          // a node silent for so long is dead
  absl::Duration startup_grace;  // the same, until a new member's first call
  absl::Duration join_presence;  // between two polls of JoinJob
  double suspect_share = 0.5;    // of the silence allowed: from there on a node is suspect
};

class Membership {
 public:
  // What a call changed. The caller tells every waiter that it concerns.
  struct Changes {
    bool ended = false;                  // a generation that was complete is over
    std::string why;                     // for people, where ended
    bool formed = false;                 // all ranks are in
    std::vector<std::string> refused;    // joining nodes whose held generation cannot be kept
    std::vector<std::string> died;       // nodes whose lease ran out
    std::vector<std::string> suspected;  // nodes that have become suspect
    std::vector<std::string> recovered;  // nodes that were suspect and have called since
  };

  // `generation` is the last one formed, 0 for none; `finished`: the job has left with all its
  // steps done. `epoch` outlives the object.
  Membership(JobId id, uint32_t rank_count, uint64_t generation, bool finished,
             MembershipTimes times, const JobEpoch* epoch);

  // Gives the node its ranks, starting one poll of it unless the outcome is `formed` or the node is
  // a member already (IsMember). ABORTED (StaleMember) for an older incarnation; ALREADY_EXISTS
  // (RankConflict); UNAVAILABLE (RetryLater) where another node runs another version. `changes` is
  // filled in either case. The request has passed ValidateJoin.
  absl::Status Join(const v1::JoinJobRequest& request, absl::Time now, Changes& changes);

  // The poll of JoinJob is over without an answer. `returns`: the node was told to call again.
  void EndJoinPoll(const std::string& node_id, bool returns, absl::Time now);

  // Any call of a member keeps its lease. ABORTED (StaleMember) unless it is a member of the
  // current generation with its current incarnation; a node that has to join again keeps its lease
  // nevertheless.
  absl::Status Touch(const v1::NodeKey& node, absl::Time now);

  // While a call of the node waits here it is alive. No effect on nodes that are gone.
  void BeginWait(const std::string& node_id);
  void EndWait(const std::string& node_id, absl::Time now);

  // Gives the ranks back. A node that is not in the job has nothing to give back: OK. ABORTED for
  // an older incarnation. With `finished` the generation goes on for the rest, so that they can
  // report their last steps; without it the generation is over.
  absl::Status Leave(const v1::NodeKey& node, const std::string& reason, bool finished,
                     Changes& changes);

  // An operator takes the node out, as if it had died; its process cannot come back. NOT_FOUND
  // where it is not in the job. `ranks` gets those it held.
  absl::Status Evict(const std::string& node_id, const std::string& reason,
                     std::vector<uint32_t>& ranks, Changes& changes);

  // Removes nodes whose lease has run out, and looks who is close to it.
  Changes Expire(absl::Time now);

  // The coordinator itself stood still for so long: nobody's silence.
  void ExtendLeases(absl::Duration by);

  bool IsMember(const std::string& node_id) const;
  bool HasNodes() const { return !seats_.empty(); }
  // All ranks are held by members of the current generation.
  bool complete() const { return formed_ && held_ranks_ == holders_.size(); }
  bool formed() const { return formed_; }
  bool finished() const { return finished_; }
  uint64_t generation() const { return generation_; }

  std::set<uint32_t> RanksOf(const std::string& node_id) const;
  std::vector<std::string> Nodes() const;
  size_t NodeCount() const { return seats_.size(); }
  // Ranks whose node is neither a member nor waiting to become one.
  std::vector<uint32_t> MissingRanks(absl::Time now) const;
  const std::string& HolderOf(uint32_t rank) const { return holders_[rank]; }
  // Position in training of the node that holds rank 0.
  uint64_t NextStep() const;

  void FillMembers(google::protobuf::RepeatedPtrField<v1::Member>& members) const;
  // Rank, node, incarnation, silence and device of every rank that is held.
  void FillStatus(v1::JobStatus& status, absl::Time now) const;

  // ABORTED with the current values; `incarnation` is that of the asking node here, or 0.
  absl::Status Stale(const std::string& message, uint64_t incarnation, bool evicted = false) const;

 private:
  enum class SeatState {
    kJoining,  // asked to join, waits for the others
    kMember,   // of the generation
    kRejoin,   // was a member of a generation that is over
  };
  struct Seat {
    SeatState state = SeatState::kJoining;
    uint64_t incarnation = 0;
    std::vector<v1::RankInfo> ranks;
    bool brought_rendezvous = false;  // with the last join
    uint64_t held_generation = 0;
    uint64_t next_step = 0;
    std::string client_version;
    std::string join_bytes;  // of the last join without its wait: the same again is a retry
    bool called = false;     // has made a call as a member
    bool suspect = false;    // as last told
    int waits = 0;           // calls that wait here
    absl::Time present_until = absl::InfinitePast();
    absl::Time last_seen;
  };

  absl::Status HeldIsLost(uint64_t held, uint64_t incarnation) const;
  bool Retries(const Seat& seat, const v1::JoinJobRequest& request) const;
  absl::Status CheckConflicts(const v1::JoinJobRequest& request) const;
  absl::Status CheckVersion(const v1::JoinJobRequest& request, absl::Time now) const;
  void Place(const v1::JoinJobRequest& request, absl::Time now);
  void Remove(const std::string& node_id);
  void End(const std::string& why, Changes& changes);
  void RefuseHeld(Changes& changes);
  bool EverybodyHolds(uint64_t generation) const;
  static bool Present(const Seat& seat, absl::Time now);
  // Silence that is allowed to the node now.
  absl::Duration Allowed(const Seat& seat) const;
  bool Suspect(const Seat& seat, absl::Time now) const;
  bool ReadyToForm(absl::Time now) const;
  void Form(absl::Time now);

  const JobId id_;
  const MembershipTimes times_;
  const JobEpoch* const epoch_;
  uint64_t generation_;
  bool formed_ = false;
  bool finished_;
  std::map<std::string, Seat> seats_;
  std::vector<std::string> holders_;  // node by rank, empty: nobody
  size_t held_ranks_ = 0;
  // Highest incarnation by node, also of nodes that are gone, until the next generation is formed:
  // an old process must not come back in between.
  std::map<std::string, uint64_t> latest_;
  // Incarnation by node that an operator took out; forgotten when a later one joins.
  std::map<std::string, uint64_t> evicted_;
};

}  // namespace sparsebalance
