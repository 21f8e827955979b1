// Groups by least load, ties by the lower group: the other half of LPT.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "coordinator/planner/latency_model.h"

namespace sparsebalance::planner {

// A binary heap over one number a group, its load above its index, so that comparing costs nothing.
// Key is uint64_t where all loads together stay below MostLoad, else UInt128.
template <class Key>
class LeastLoaded {
 public:
  // For so many groups.
  static int64_t MostLoad(int groups) {
    return sizeof(Key) > sizeof(uint64_t) ? INT64_MAX : INT64_MAX >> BitsFor(groups);
  }

  struct Taken {
    int64_t load;
    int group;
  };

  explicit LeastLoaded(int groups) : group_bits_(BitsFor(groups)) {
    heap_.reserve(groups);
    for (int g = 0; g < groups; ++g) heap_.push_back(static_cast<Key>(g));
  }

  // Puts a group in, back again where it was taken.
  void Add(int64_t load, int group) {
    const Key key = KeyOf(load, group);
    if (open_ && GroupOf(heap_[0]) == group) {
      open_ = false;
      SiftDown(key);
      return;
    }
    CloseTop();
    heap_.push_back(key);
    SiftUp(heap_.size() - 1);
  }

  // Takes out the least loaded group that `fits` accepts; nothing if none does.
  template <class Fits>
  std::optional<Taken> Take(const Fits& fits) {
    CloseTop();
    if (heap_.empty()) return std::nullopt;
    if (const Taken top = Top(); fits(top.group)) {
      open_ = true;  // most of the time it comes back at once
      return top;
    }
    std::optional<Taken> found;
    passed_.clear();
    while (!heap_.empty()) {
      const Taken top = Top();
      if (fits(top.group)) {
        found = top;
        RemoveTop();
        break;
      }
      passed_.push_back(heap_[0]);
      RemoveTop();
    }
    for (const Key key : passed_) {
      heap_.push_back(key);
      SiftUp(heap_.size() - 1);
    }
    return found;
  }

 private:
  // To the wide one groups may be added that were not there at first.
  static int BitsFor(int groups) {
    return sizeof(Key) > sizeof(uint64_t) ? 32 : std::bit_width(static_cast<unsigned>(groups));
  }

  Key KeyOf(int64_t load, int group) const {
    return static_cast<Key>(load) << group_bits_ | static_cast<Key>(group);
  }
  int GroupOf(Key key) const { return static_cast<int>(key & ((Key{1} << group_bits_) - 1)); }
  Taken Top() const { return {static_cast<int64_t>(heap_[0] >> group_bits_), GroupOf(heap_[0])}; }

  // The group at the top was taken for good.
  void CloseTop() {
    if (!open_) return;
    open_ = false;
    RemoveTop();
  }

  void RemoveTop() {
    const Key last = heap_.back();
    heap_.pop_back();
    if (!heap_.empty()) SiftDown(last);
  }

  void SiftDown(Key key) {
    const size_t n = heap_.size();
    Key* const heap = heap_.data();
    size_t at = 0;
    for (size_t child = 1; child < n; child = 2 * at + 1) {
      if (child + 1 < n) child += heap[child + 1] < heap[child] ? 1 : 0;
      if (key < heap[child]) break;
      heap[at] = heap[child];
      at = child;
    }
    heap[at] = key;
  }

  void SiftUp(size_t at) {
    const Key key = heap_[at];
    while (at > 0 && key < heap_[(at - 1) / 2]) {
      heap_[at] = heap_[(at - 1) / 2];
      at = (at - 1) / 2;
    }
    heap_[at] = key;
  }

  const int group_bits_;
  std::vector<Key> heap_;
  std::vector<Key> passed_;
  bool open_ = false;  // the top is taken, and its place is kept
};

}  // namespace sparsebalance::planner
