#include "coordinator/service/consumed_journal.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace sparsebalance {
namespace {

bool Same(const v1::ConsumedBatch& a, const v1::ConsumedBatch& b) {
  return a.epoch() == b.epoch() && std::equal(a.sequence_ids().begin(), a.sequence_ids().end(),
                                              b.sequence_ids().begin(), b.sequence_ids().end());
}

}  // namespace

ConsumedJournal::ConsumedJournal(std::vector<v1::ConsumedBatch> stored) {
  for (v1::ConsumedBatch& batch : stored) {
    Count(batch);
    const uint64_t step = batch.step();
    entries_[step] = Entry{std::move(batch)};
  }
}

void ConsumedJournal::Count(const v1::ConsumedBatch& batch) {
  sequences_ += static_cast<size_t>(batch.sequence_ids_size());
  Epoch& epoch = epochs_[batch.epoch()];
  for (const uint64_t id : batch.sequence_ids()) {
    if (!epoch.seen.insert(id).second) {
      ++epoch.repeats[id];
      ++epoch.twice;
    }
  }
}

void ConsumedJournal::Uncount(const v1::ConsumedBatch& batch) {
  sequences_ -= static_cast<size_t>(batch.sequence_ids_size());
  Epoch& epoch = epochs_[batch.epoch()];
  for (const uint64_t id : batch.sequence_ids()) {
    const auto repeats = epoch.repeats.find(id);
    if (repeats == epoch.repeats.end()) {
      epoch.seen.erase(id);
      continue;
    }
    if (--repeats->second == 0) epoch.repeats.erase(repeats);
    --epoch.twice;
  }
  if (epoch.seen.empty()) epochs_.erase(batch.epoch());
}

std::optional<uint64_t> ConsumedJournal::Add(const v1::ConsumedBatch& batch) {
  if (batch.epoch() < first_kept_epoch_) return std::nullopt;
  const auto known = entries_.find(batch.step());
  if (known != entries_.end()) {
    Entry& entry = known->second;
    if (Same(entry.batch, batch)) {
      if (!not_stored_.contains(batch.step()) || entry.write_id != 0) return std::nullopt;
      entry.write_id = next_write_id_++;
      return entry.write_id;
    }
    Uncount(entry.batch);
  }
  Count(batch);
  const uint64_t write_id = next_write_id_++;
  entries_[batch.step()] = Entry{batch, write_id};
  not_stored_.insert(batch.step());
  return write_id;
}

void ConsumedJournal::Written(uint64_t step, uint64_t write_id, bool ok) {
  const auto entry = entries_.find(step);
  if (entry == entries_.end() || entry->second.write_id != write_id) return;
  entry->second.write_id = 0;
  if (ok) not_stored_.erase(step);
}

bool ConsumedJournal::CutBack(uint64_t next_step) {
  const auto first = entries_.lower_bound(next_step);
  if (first == entries_.end()) return false;
  for (auto entry = first; entry != entries_.end(); ++entry) Uncount(entry->second.batch);
  entries_.erase(first, entries_.end());
  not_stored_.erase(not_stored_.lower_bound(next_step), not_stored_.end());
  // Training may be back in an epoch that was pruned.
  first_kept_epoch_ = entries_.empty() ? 0 : entries_.begin()->second.batch.epoch();
  return true;
}

std::optional<uint64_t> ConsumedJournal::Prune() {
  if (epochs_.empty()) return std::nullopt;
  const uint64_t current = epochs_.rbegin()->first;
  const uint64_t first_kept = current == 0 ? 0 : current - 1;
  if (first_kept <= first_kept_epoch_) return std::nullopt;
  first_kept_epoch_ = first_kept;
  epochs_.erase(epochs_.begin(), epochs_.lower_bound(first_kept));
  std::erase_if(entries_, [&](const auto& entry) {
    if (entry.second.batch.epoch() >= first_kept) return false;
    not_stored_.erase(entry.first);
    sequences_ -= static_cast<size_t>(entry.second.batch.sequence_ids_size());
    return true;
  });
  return first_kept;
}

uint64_t ConsumedJournal::stored_through_step() const {
  const auto end = not_stored_.empty() ? entries_.end() : entries_.find(*not_stored_.begin());
  return end == entries_.begin() ? 0 : std::prev(end)->first;
}

uint64_t ConsumedJournal::stored_count() const {
  // Nothing before the first gap: nothing may be acknowledged.
  if (!not_stored_.empty() && entries_.begin()->first == *not_stored_.begin()) return 0;
  return entries_.size() - not_stored_.size();
}

uint64_t ConsumedJournal::consumed_in_epoch() const {
  return epochs_.empty() ? 0 : epochs_.rbegin()->second.seen.size();
}

uint64_t ConsumedJournal::consumed_twice() const {
  uint64_t twice = 0;
  for (const auto& [number, epoch] : epochs_) twice += epoch.twice;
  return twice;
}

size_t ConsumedJournal::bytes() const {
  // An id in its batch, and a slot of a hash table that is at least 7/16 full.
  constexpr size_t kPerSequence = sizeof(uint64_t) + 21;
  return sequences_ * kPerSequence + entries_.size() * (sizeof(Entry) + 64);
}

std::vector<v1::ConsumedBatch> ConsumedJournal::Batches() const {
  std::vector<v1::ConsumedBatch> batches;
  batches.reserve(entries_.size());
  for (const auto& [step, entry] : entries_) batches.push_back(entry.batch);
  return batches;
}

}  // namespace sparsebalance
