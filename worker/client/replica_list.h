// Which replica of the coordinator to call: the one that answered last, the one that another named,
// or the next of those that are known.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/ascii.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"

namespace sparsebalance {

// Not thread-safe.
class ReplicaList {
 public:
  // HOST:PORT,HOST:PORT,...
  explicit ReplicaList(const std::string& addresses) {
    for (const absl::string_view part : absl::StrSplit(addresses, ',', absl::SkipWhitespace())) {
      known_.emplace_back(absl::StripAsciiWhitespace(part));
    }
    if (known_.empty()) known_.push_back(addresses);
    current_ = known_.front();
  }

  const std::string& current() const { return current_; }
  std::string ToString() const { return absl::StrJoin(known_, ","); }

  // `address` could not be reached: calls go to the next one.
  void Unreachable(const std::string& address, absl::Time now) {
    unreachable_since_[address] = now;
    if (address != current_) return;  // another call has seen it before
    const auto known = std::find(known_.begin(), known_.end(), address);
    const size_t next = known == known_.end() ? 0 : static_cast<size_t>(known - known_.begin()) + 1;
    current_ = known_[next % known_.size()];
  }

  // `address` has answered.
  void Answered(const std::string& address) { unreachable_since_.erase(address); }

  // Another replica says that `owner` answers for the job. One that could not be reached a moment
  // ago is not gone to again: its claim runs out, and until then the one that said so is as good.
  void Redirected(const std::string& owner, absl::Time now) {
    constexpr absl::Duration kPause = absl::Seconds(2);
    const auto since = unreachable_since_.find(owner);
    if (since != unreachable_since_.end() && now - since->second < kPause) return;
    current_ = owner;
  }

 private:
  std::vector<std::string> known_;
  std::string current_;
  std::map<std::string, absl::Time> unreachable_since_;
};

}  // namespace sparsebalance
