#include "coordinator/service/membership.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/service/retry_later.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

std::string JoinBytes(v1::JoinJobRequest request) {
  request.clear_wait_ms();
  request.clear_known_leader_epoch();
  return request.SerializeAsString();
}

bool BringsRendezvous(const google::protobuf::RepeatedPtrField<v1::RankInfo>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const v1::RankInfo& rank) { return !rank.rendezvous().empty(); });
}

}  // namespace

Membership::Membership(JobId id, uint32_t rank_count, uint64_t generation, bool finished,
                       MembershipTimes times, const JobEpoch* epoch)
    : id_(std::move(id)),
      times_(times),
      epoch_(epoch),
      generation_(generation),
      finished_(finished),
      holders_(rank_count) {}

absl::Status Membership::Stale(const std::string& message, uint64_t incarnation,
                               bool evicted) const {
  v1::StaleMember detail;
  *detail.mutable_job() = id_.ToProto();
  detail.set_current_generation(generation_);
  detail.set_current_leader_epoch(epoch_->current());
  detail.set_current_incarnation(incarnation);
  detail.set_evicted(evicted);
  absl::Status status = absl::AbortedError(message);
  planner::AttachDetail(status, detail);
  return status;
}

absl::Status Membership::HeldIsLost(uint64_t held, uint64_t incarnation) const {
  return Stale(absl::StrCat("generation ", held,
                            " cannot be kept: another node comes without it, or a later one was "
                            "formed; join again with held_generation 0 and fresh rendezvous"),
               incarnation);
}

bool Membership::Retries(const Seat& seat, const v1::JoinJobRequest& request) const {
  if (seat.state != SeatState::kMember) return false;
  if (request.held_generation() == generation_) {
    std::set<uint32_t> ranks;
    for (const v1::RankInfo& rank : request.ranks()) ranks.insert(rank.rank());
    return ranks == RanksOf(request.node_id());
  }
  // Having used the generation once, the node cannot have missed the answer: it wants a new one.
  return !seat.called && seat.join_bytes == JoinBytes(request);
}

absl::Status Membership::CheckConflicts(const v1::JoinJobRequest& request) const {
  for (const v1::RankInfo& rank : request.ranks()) {
    const std::string& holder = holders_[rank.rank()];
    if (holder.empty() || holder == request.node_id()) continue;
    absl::Status status = absl::AlreadyExistsError(
        absl::StrCat("rank ", rank.rank(), " of job ", id_.ToString(), " is held by node ", holder,
                     "; give node ", request.node_id(),
                     " other ranks, or wait until that node leaves or its lease ends"));
    v1::RankConflict detail;
    *detail.mutable_job() = id_.ToProto();
    detail.set_rank(rank.rank());
    detail.set_holder_node_id(holder);
    planner::AttachDetail(status, detail);
    return status;
  }
  return absl::OkStatus();
}

// Two versions may round differently, and then the ranks' parameters drift apart without a sign. So
// a node waits until the others run its version too: nodes can be exchanged one after the other.
absl::Status Membership::CheckVersion(const v1::JoinJobRequest& request, absl::Time now) const {
  constexpr absl::Duration kRetry = absl::Seconds(1);
  if (request.client_version().empty()) return absl::OkStatus();
  for (const auto& [node_id, seat] : seats_) {
    if (node_id == request.node_id() || seat.client_version.empty() ||
        seat.client_version == request.client_version() || Suspect(seat, now)) {
      continue;
    }
    return RetryLater(
        absl::StatusCode::kUnavailable,
        absl::StrCat("node ", request.node_id(), " runs ", request.client_version(), " and node ",
                     node_id, " ", seat.client_version, "; all nodes of job ", id_.ToString(),
                     " must run one version: exchange the rest, or go back with this one"),
        kRetry);
  }
  return absl::OkStatus();
}

absl::Status Membership::Join(const v1::JoinJobRequest& request, absl::Time now, Changes& changes) {
  const std::string& node_id = request.node_id();
  if (const auto latest = latest_.find(node_id);
      latest != latest_.end() && request.incarnation() < latest->second) {
    return Stale(absl::StrCat("node ", node_id, " has joined as incarnation ", latest->second,
                              "; incarnation ", request.incarnation(), " is over"),
                 latest->second);
  }
  if (const auto evicted = evicted_.find(node_id);
      evicted != evicted_.end() && (request.incarnation() <= evicted->second ||
                                    (request.previous_incarnation() != 0 &&
                                     request.previous_incarnation() <= evicted->second))) {
    return Stale(absl::StrCat("node ", node_id, " was evicted from job ", id_.ToString(),
                              " by an operator; start its process anew to let it join again"),
                 evicted->second, /*evicted=*/true);
  }
  if (absl::Status status = CheckConflicts(request); !status.ok()) return status;
  if (absl::Status status = CheckVersion(request, now); !status.ok()) return status;
  const auto seat = seats_.find(node_id);
  if (request.held_generation() != 0 && request.held_generation() < generation_ &&
      !BringsRendezvous(request.ranks())) {
    // Refused before it can end the generation that there is.
    return HeldIsLost(request.held_generation(), request.incarnation());
  }
  const bool same_process =
      seat != seats_.end() && seat->second.incarnation == request.incarnation();
  if (formed_ && same_process && Retries(seat->second, request)) {
    seat->second.last_seen = now;
    return absl::OkStatus();
  }
  if (formed_) {
    End(seat == seats_.end() ? absl::StrCat("node ", node_id, " joins")
        : same_process       ? absl::StrCat("node ", node_id, " joins again")
                             : absl::StrCat("node ", node_id, " was replaced by incarnation ",
                                            request.incarnation()),
        changes);
  }
  Place(request, now);
  RefuseHeld(changes);
  Seat& placed = seats_.at(node_id);
  if (placed.state != SeatState::kJoining) {
    return HeldIsLost(request.held_generation(), placed.incarnation);
  }
  ++placed.waits;
  if (ReadyToForm(now)) {
    Form(now);
    changes.formed = true;
  }
  return absl::OkStatus();
}

void Membership::Place(const v1::JoinJobRequest& request, absl::Time now) {
  const std::string& node_id = request.node_id();
  std::vector<v1::RankInfo> ranks(request.ranks().begin(), request.ranks().end());
  const bool brought = BringsRendezvous(request.ranks());
  int waits = 0;
  if (const auto old = seats_.find(node_id); old != seats_.end()) {
    // Calls of the process that still wait here end later and are counted then.
    waits = old->second.waits;
    if (old->second.incarnation == request.incarnation() && request.held_generation() != 0) {
      for (v1::RankInfo& rank : ranks) {
        for (const v1::RankInfo& known : old->second.ranks) {
          if (known.rank() != rank.rank()) continue;
          if (rank.rendezvous().empty()) rank.set_rendezvous(known.rendezvous());
          if (rank.device_name().empty()) rank.set_device_name(known.device_name());
        }
      }
    }
    Remove(node_id);
  }
  Seat seat;
  seat.incarnation = request.incarnation();
  seat.ranks = std::move(ranks);
  seat.brought_rendezvous = brought;
  seat.held_generation = request.held_generation();
  seat.next_step = request.next_step();
  seat.client_version = request.client_version();
  seat.join_bytes = JoinBytes(request);
  seat.waits = waits;
  seat.last_seen = now;
  for (const v1::RankInfo& rank : seat.ranks) holders_[rank.rank()] = node_id;
  held_ranks_ += seat.ranks.size();
  seats_[node_id] = std::move(seat);
  latest_[node_id] = request.incarnation();
  evicted_.erase(node_id);
  finished_ = false;
}

void Membership::Remove(const std::string& node_id) {
  const auto seat = seats_.find(node_id);
  if (seat == seats_.end()) return;
  for (const v1::RankInfo& rank : seat->second.ranks) holders_[rank.rank()].clear();
  held_ranks_ -= seat->second.ranks.size();
  seats_.erase(seat);
}

void Membership::End(const std::string& why, Changes& changes) {
  if (!formed_) return;
  formed_ = false;
  changes.ended = true;
  changes.why = absl::StrCat("generation ", generation_, " of job ", id_.ToString(),
                             " is over: ", why, "; join again");
  for (auto& [node_id, seat] : seats_) seat.state = SeatState::kRejoin;
}

bool Membership::EverybodyHolds(uint64_t generation) const {
  return std::all_of(seats_.begin(), seats_.end(), [&](const auto& entry) {
    return entry.second.state != SeatState::kJoining || entry.second.held_generation == generation;
  });
}

void Membership::RefuseHeld(Changes& changes) {
  for (auto& [node_id, seat] : seats_) {
    if (seat.state != SeatState::kJoining || seat.held_generation == 0) continue;
    if (seat.held_generation >= generation_ && EverybodyHolds(seat.held_generation)) continue;
    // What it brought may make a new communicator; without it, nobody could reach the node.
    if (seat.brought_rendezvous) continue;
    changes.refused.push_back(node_id);
  }
  for (const std::string& node_id : changes.refused) {
    seats_.at(node_id).state = SeatState::kRejoin;
  }
}

bool Membership::Present(const Seat& seat, absl::Time now) {
  if (seat.state == SeatState::kMember) return true;
  return seat.state == SeatState::kJoining && (seat.waits > 0 || now < seat.present_until);
}

bool Membership::ReadyToForm(absl::Time now) const {
  return held_ranks_ == holders_.size() &&
         std::all_of(seats_.begin(), seats_.end(),
                     [&](const auto& entry) { return Present(entry.second, now); });
}

void Membership::Form(absl::Time now) {
  const uint64_t held = seats_.begin()->second.held_generation;
  if (held != 0 && held >= generation_ && EverybodyHolds(held)) {
    generation_ = held;
  } else {
    for (const auto& [node_id, seat] : seats_) {
      generation_ = std::max(generation_, seat.held_generation);
    }
    ++generation_;
  }
  formed_ = true;
  for (auto& [node_id, seat] : seats_) {
    seat.state = SeatState::kMember;
    seat.called = false;
    seat.last_seen = now;
  }
  std::erase_if(latest_, [this](const auto& entry) { return !seats_.contains(entry.first); });
}

void Membership::EndJoinPoll(const std::string& node_id, bool returns, absl::Time now) {
  EndWait(node_id, now);
  const auto seat = seats_.find(node_id);
  if (seat == seats_.end()) return;
  seat->second.present_until = returns ? now + times_.join_presence : absl::InfinitePast();
}

absl::Status Membership::Touch(const v1::NodeKey& node, absl::Time now) {
  const auto entry = seats_.find(node.node_id());
  if (entry == seats_.end()) {
    const auto latest = latest_.find(node.node_id());
    return Stale(absl::StrCat("node ", node.node_id(), " is not a member of job ", id_.ToString(),
                              " (generation ", generation_, "); join again"),
                 latest == latest_.end() ? 0 : latest->second);
  }
  Seat& seat = entry->second;
  if (seat.incarnation != node.incarnation()) {
    return Stale(absl::StrCat("node ", node.node_id(), " is incarnation ", seat.incarnation,
                              " in job ", id_.ToString(), ", not ", node.incarnation()),
                 seat.incarnation);
  }
  seat.last_seen = now;
  if (seat.state == SeatState::kJoining) {
    return Stale(absl::StrCat("node ", node.node_id(), " is joining job ", id_.ToString(),
                              " and waits for other nodes"),
                 seat.incarnation);
  }
  if (seat.state == SeatState::kRejoin || node.generation() != generation_) {
    return Stale(absl::StrCat("generation ", node.generation(), " of job ", id_.ToString(),
                              " is over (the last complete one is ", generation_, "); join again"),
                 seat.incarnation);
  }
  seat.called = true;
  return absl::OkStatus();
}

void Membership::BeginWait(const std::string& node_id) {
  if (const auto seat = seats_.find(node_id); seat != seats_.end()) ++seat->second.waits;
}

void Membership::EndWait(const std::string& node_id, absl::Time now) {
  const auto seat = seats_.find(node_id);
  if (seat == seats_.end()) return;
  seat->second.waits = std::max(seat->second.waits - 1, 0);
  seat->second.last_seen = now;
}

absl::Status Membership::Leave(const v1::NodeKey& node, const std::string& reason, bool finished,
                               Changes& changes) {
  const auto seat = seats_.find(node.node_id());
  const auto latest = latest_.find(node.node_id());
  if (latest != latest_.end() && node.incarnation() < latest->second) {
    return Stale(absl::StrCat("node ", node.node_id(), " is incarnation ", latest->second,
                              " in job ", id_.ToString(), ", not ", node.incarnation()),
                 latest->second);
  }
  if (seat != seats_.end()) {
    const bool was_member = seat->second.state == SeatState::kMember;
    Remove(node.node_id());
    if (was_member && !finished) {
      End(absl::StrCat("node ", node.node_id(), " left",
                       reason.empty() ? "" : absl::StrCat(" (", reason, ")")),
          changes);
    }
  }
  if (finished) finished_ = true;
  if (seats_.empty()) formed_ = false;
  return absl::OkStatus();
}

absl::Status Membership::Evict(const std::string& node_id, const std::string& reason,
                               std::vector<uint32_t>& ranks, Changes& changes) {
  const auto entry = seats_.find(node_id);
  if (entry == seats_.end()) {
    return absl::NotFoundError(absl::StrCat(
        "node ", node_id, " is not in job ", id_.ToString(),
        seats_.empty() ? "; it has no nodes" : "; see `sbctl job` for those that are"));
  }
  for (const v1::RankInfo& rank : entry->second.ranks) ranks.push_back(rank.rank());
  const bool was_member = entry->second.state == SeatState::kMember;
  evicted_[node_id] = entry->second.incarnation;
  Remove(node_id);
  if (was_member) {
    End(absl::StrCat("node ", node_id, " was evicted by an operator",
                     reason.empty() ? "" : absl::StrCat(" (", reason, ")")),
        changes);
  }
  if (seats_.empty()) formed_ = false;
  return absl::OkStatus();
}

absl::Duration Membership::Allowed(const Seat& seat) const {
  const bool starting = seat.state == SeatState::kMember && !seat.called;
  return starting ? std::max(times_.lease, times_.startup_grace) : times_.lease;
}

bool Membership::Suspect(const Seat& seat, absl::Time now) const {
  return seat.waits == 0 && now - seat.last_seen > Allowed(seat) * times_.suspect_share;
}

Membership::Changes Membership::Expire(absl::Time now) {
  Changes changes;
  bool member_died = false;
  for (auto& [node_id, seat] : seats_) {
    const bool suspect = Suspect(seat, now);
    if (suspect != seat.suspect) {
      (suspect ? changes.suspected : changes.recovered).push_back(node_id);
      seat.suspect = suspect;
    }
    if (seat.waits > 0 || now - seat.last_seen <= Allowed(seat)) continue;
    changes.died.push_back(node_id);
    member_died |= seat.state == SeatState::kMember;
  }
  for (const std::string& node_id : changes.died) Remove(node_id);
  if (member_died) {
    std::string names;
    for (const std::string& node_id : changes.died) absl::StrAppend(&names, " ", node_id);
    End(absl::StrCat(
            changes.died.size() == 1 ? "the lease ran out of node" : "leases ran out of nodes",
            names),
        changes);
  }
  return changes;
}

void Membership::ExtendLeases(absl::Duration by) {
  for (auto& [node_id, seat] : seats_) seat.last_seen += by;
}

bool Membership::IsMember(const std::string& node_id) const {
  const auto seat = seats_.find(node_id);
  return seat != seats_.end() && seat->second.state == SeatState::kMember;
}

std::set<uint32_t> Membership::RanksOf(const std::string& node_id) const {
  std::set<uint32_t> ranks;
  const auto seat = seats_.find(node_id);
  if (seat == seats_.end()) return ranks;
  for (const v1::RankInfo& rank : seat->second.ranks) ranks.insert(rank.rank());
  return ranks;
}

std::vector<std::string> Membership::Nodes() const {
  std::vector<std::string> nodes;
  nodes.reserve(seats_.size());
  for (const auto& [node_id, seat] : seats_) nodes.push_back(node_id);
  return nodes;
}

std::vector<uint32_t> Membership::MissingRanks(absl::Time now) const {
  std::vector<uint32_t> missing;
  for (uint32_t rank = 0; rank < holders_.size(); ++rank) {
    const auto seat = seats_.find(holders_[rank]);
    if (seat == seats_.end() || !Present(seat->second, now)) missing.push_back(rank);
  }
  return missing;
}

uint64_t Membership::NextStep() const {
  const auto seat = seats_.find(holders_[0]);
  return seat == seats_.end() ? 0 : seat->second.next_step;
}

void Membership::FillMembers(google::protobuf::RepeatedPtrField<v1::Member>& members) const {
  std::vector<const v1::RankInfo*> infos(holders_.size(), nullptr);
  for (const auto& [node_id, seat] : seats_) {
    for (const v1::RankInfo& info : seat.ranks) infos[info.rank()] = &info;
  }
  for (uint32_t rank = 0; rank < holders_.size(); ++rank) {
    if (infos[rank] == nullptr) continue;
    v1::Member* member = members.Add();
    member->set_rank(rank);
    member->set_node_id(holders_[rank]);
    member->set_rendezvous(infos[rank]->rendezvous());
    member->set_incarnation(seats_.at(holders_[rank]).incarnation);
    member->set_device_name(infos[rank]->device_name());
  }
}

void Membership::FillStatus(v1::JobStatus& status, absl::Time now) const {
  google::protobuf::RepeatedPtrField<v1::Member> members;
  FillMembers(members);
  for (const v1::Member& member : members) {
    const Seat& seat = seats_.at(member.node_id());
    v1::RankStatus* rank = status.add_ranks();
    rank->set_rank(member.rank());
    rank->set_node_id(member.node_id());
    rank->set_incarnation(member.incarnation());
    rank->set_device_name(member.device_name());
    rank->set_client_version(seat.client_version);
    const absl::Duration silent = seat.waits > 0 ? absl::ZeroDuration() : now - seat.last_seen;
    rank->set_silent_ms(
        static_cast<uint64_t>(std::max<int64_t>(absl::ToInt64Milliseconds(silent), 0)));
    rank->set_suspect(Suspect(seat, now));
  }
}

}  // namespace sparsebalance
