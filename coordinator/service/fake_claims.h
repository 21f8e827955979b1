// Claims of several coordinators in one process, for tests: who holds what is written on a board,
// and the test takes it away.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/store/job_claims.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::testing_support {

// Used by one thread.
class ClaimBoard {
 public:
  struct Entry {
    std::string address;
    uint64_t epoch = 0;
  };

  std::map<JobId, Entry> entries;
  uint64_t last_epoch = 0;
};

class FakeClaims : public JobClaims {
 public:
  FakeClaims(ClaimBoard* board, std::string address)
      : board_(board), address_(std::move(address)) {}

  absl::StatusOr<uint64_t> Claim(const JobId& id, uint64_t above) override {
    if (!unreachable_.ok()) return unreachable_;
    const auto entry = board_->entries.find(id);
    if (entry != board_->entries.end() && entry->second.address != address_) return NotOurs(id);
    if (entry != board_->entries.end() && entry->second.epoch >= above) return entry->second.epoch;
    board_->last_epoch = std::max(board_->last_epoch, above) + 1;
    board_->entries[id] = {address_, board_->last_epoch};
    return board_->last_epoch;
  }

  absl::StatusOr<uint64_t> Held(const JobId& id) override {
    const auto entry = board_->entries.find(id);
    if (entry == board_->entries.end() || entry->second.address != address_) return NotOurs(id);
    return entry->second.epoch;
  }

  absl::Status Release(const JobId& id) override {
    if (Held(id).ok()) board_->entries.erase(id);
    return absl::OkStatus();
  }

  absl::Status ReleaseAll() override {
    std::erase_if(board_->entries,
                  [this](const auto& entry) { return entry.second.address == address_; });
    return absl::OkStatus();
  }

  std::vector<Owned> Owners() override {
    std::vector<Owned> owners;
    for (const auto& [id, entry] : board_->entries) {
      owners.push_back({id, entry.address, entry.epoch});
    }
    return owners;
  }

  void OnLost(Lost lost) override { lost_ = std::move(lost); }
  Health CheckHealth() override { return {}; }
  bool shared() const override { return true; }

  // The lease ran out: the claim goes, and the owner hears of it.
  void Lose(const JobId& id) {
    const uint64_t epoch = board_->entries.at(id).epoch;
    board_->entries.erase(id);
    if (lost_) lost_(id, epoch);
  }
  // The store does not answer until this is OK.
  void SetUnreachable(absl::Status status) { unreachable_ = std::move(status); }

 private:
  absl::Status NotOurs(const JobId& id) const {
    v1::NotOwner detail;
    *detail.mutable_job() = id.ToProto();
    const auto entry = board_->entries.find(id);
    if (entry != board_->entries.end()) {
      detail.set_owner_address(entry->second.address);
      detail.set_owner_epoch(entry->second.epoch);
    }
    absl::Status status =
        absl::UnavailableError(absl::StrCat("job ", id.ToString(), " is not held here"));
    planner::AttachDetail(status, detail);
    return status;
  }

  ClaimBoard* const board_;
  const std::string address_;
  Lost lost_;
  absl::Status unreachable_;
};

}  // namespace sparsebalance::testing_support
