#include "worker/eval/recall_task.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/status_macros.h"
#include "worker/data/indexed_dataset_builder.h"

namespace sparsebalance::eval {
namespace {

// SplitMix64 (Steele, Lea and Flood, 2014): unlike the standard library's distributions, the same
// everywhere.
class Random {
 public:
  Random(uint64_t seed, uint64_t stream) : state_(seed) {
    state_ = Next() ^ stream;
    state_ = Next();
  }

  uint64_t Next() {
    uint64_t x = state_ += 0x9E3779B97F4A7C15ULL;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ULL;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBULL;
    return x ^ (x >> 31);
  }
  // In [0, bound). The bias of the modulo is below 2^-40 for bounds of this task.
  int64_t Below(int64_t bound) {
    return static_cast<int64_t>(Next() % static_cast<uint64_t>(bound));
  }
  template <typename T>
  void Shuffle(std::vector<T>& values) {
    for (auto i = static_cast<int64_t>(values.size()) - 1; i > 0; --i) {
      std::swap(values[static_cast<size_t>(i)], values[static_cast<size_t>(Below(i + 1))]);
    }
  }

 private:
  uint64_t state_;
};

constexpr int64_t kPairTokens = 1;
constexpr int64_t kQueryTokens = 2;  // with the answer

// A key, where it is paired and where it is queried.
struct PlannedPair {
  int64_t key = 0, value = 0;
  int64_t position = -1;  // once it is laid out
  int64_t block = 0;
};

// Plans block by block which pairs and queries come where, then lays the blocks out.
class Generator {
 public:
  Generator(const RecallTaskOptions& options, uint64_t index)
      : options_(options), random_(options.seed, index) {
    for (int64_t key = 0; key < options.keys; ++key) keys_.push_back(key);
    random_.Shuffle(keys_);
  }

  RecallSequence Make() {
    const int64_t length = options_.lengths[static_cast<size_t>(
        random_.Below(static_cast<int64_t>(options_.lengths.size())))];
    for (int64_t begin = 0; begin < length; begin += options_.block_tokens) {
      Block& block = blocks_.emplace_back();
      block.tokens = std::min(options_.block_tokens, length - begin);
      block.free = block.tokens;
    }
    for (int64_t b = 0; b < Blocks(); ++b) {
      for (int64_t p = 0; p < options_.pairs_per_block; ++p) PlanPair(b);
    }
    for (Block& block : blocks_) LayOut(block);
    return std::move(out_);
  }

 private:
  // Items are pairs, by their index in pairs_; a query is the pair that it asks for.
  struct Item {
    size_t pair;
    bool query;
  };
  struct Block {
    int64_t tokens = 0;
    int64_t free = 0;
    int64_t queries = 0;
    std::vector<Item> items;
  };

  int64_t Blocks() const { return static_cast<int64_t>(blocks_.size()); }

  bool HasRoomForQuery(const Block& block) const {
    return block.queries < options_.queries_per_block && block.free >= kQueryTokens;
  }

  void PlanPair(int64_t b) {
    Block& block = blocks_[static_cast<size_t>(b)];
    if (block.free < kPairTokens) return;
    block.free -= kPairTokens;
    block.items.push_back({pairs_.size(), /*query=*/false});
    pairs_.push_back({.key = keys_.back(), .value = random_.Below(options_.values), .block = b});
    keys_.pop_back();

    // Every range that still has room is as likely as the others, whatever its width.
    std::vector<std::vector<int64_t>> choices;
    for (const DistanceRange& range : options_.distances) {
      std::vector<int64_t> places;
      const int64_t last = std::min(b + range.last, Blocks() - 1);
      for (int64_t place = b + range.first; place <= last; ++place) {
        if (HasRoomForQuery(blocks_[static_cast<size_t>(place)])) places.push_back(place);
      }
      if (!places.empty()) choices.push_back(std::move(places));
    }
    if (choices.empty()) return;  // a pair that nobody asks for
    const int64_t place = Choose(Choose(choices));
    Block& asked = blocks_[static_cast<size_t>(place)];
    asked.free -= kQueryTokens;
    ++asked.queries;
    asked.items.push_back({pairs_.size() - 1, /*query=*/true});
  }

  template <typename T>
  const T& Choose(const std::vector<T>& from) {
    return from[static_cast<size_t>(random_.Below(static_cast<int64_t>(from.size())))];
  }

  // Items in random order at random places, a query never before its pair.
  void LayOut(Block& block) {
    random_.Shuffle(block.items);
    for (size_t q = 0; q < block.items.size(); ++q) {
      for (size_t p = q + 1; p < block.items.size(); ++p) {
        if (block.items[q].query && !block.items[p].query &&
            block.items[q].pair == block.items[p].pair) {
          std::swap(block.items[q], block.items[p]);
        }
      }
    }
    auto left = static_cast<int64_t>(block.items.size());
    for (const Item& item : block.items) {
      // Each gap between items is as likely to get the next filler: their number is random.
      for (; block.free > 0 && random_.Below(left + block.free) < block.free; --block.free) {
        AddFiller();
      }
      --left;
      if (item.query) {
        AddQuery(pairs_[item.pair]);
      } else {
        AddPair(pairs_[item.pair]);
      }
    }
    for (; block.free > 0; --block.free) AddFiller();
  }

  int64_t position() const { return static_cast<int64_t>(out_.tokens.size()); }

  void Add(int64_t token, bool supervised = false) {
    out_.tokens.push_back(static_cast<int32_t>(token));
    out_.mask.push_back(supervised ? 1 : 0);
  }
  void AddFiller() { Add(random_.Below(options_.fillers)); }
  void AddPair(PlannedPair& pair) {
    pair.position = position();
    Add(options_.Pair(pair.key, pair.value));
  }
  void AddQuery(const PlannedPair& pair) {
    out_.queries.push_back(
        {position(), pair.position, position() / options_.block_tokens - pair.block});
    Add(options_.Query(pair.key));
    Add(options_.Value(pair.value), /*supervised=*/true);
  }

  const RecallTaskOptions& options_;
  Random random_;
  std::vector<int64_t> keys_;  // not yet paired
  std::vector<PlannedPair> pairs_;
  std::vector<Block> blocks_;
  RecallSequence out_;
};

absl::Status Positive(const std::string& name, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", it must be at least 1"));
}

std::string RangeText(const DistanceRange& range) {
  if (range.first == range.last) return absl::StrCat(range.first);
  return absl::StrCat(range.first, "-", range.last);
}

}  // namespace

absl::StatusOr<std::vector<DistanceRange>> ParseDistances(const std::string& text) {
  std::vector<DistanceRange> ranges;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::vector<std::string> ends = absl::StrSplit(part, '-');
    DistanceRange range;
    if (ends.size() > 2 || !absl::SimpleAtoi(ends.front(), &range.first) ||
        !absl::SimpleAtoi(ends.back(), &range.last) || range.last < range.first) {
      return absl::InvalidArgumentError(
          absl::StrCat("distance \"", part, "\" is neither a number of blocks nor a range as 4-7"));
    }
    if (!ranges.empty() && range.first <= ranges.back().last) {
      return absl::InvalidArgumentError(absl::StrCat(
          "distance \"", part, "\" does not lie beyond the one before it: give them ascending"));
    }
    ranges.push_back(range);
  }
  return ranges;
}

std::string DistancesText(const std::vector<DistanceRange>& ranges) {
  return absl::StrJoin(ranges, ",", [](std::string* out, const DistanceRange& range) {
    absl::StrAppend(out, RangeText(range));
  });
}

std::string DistanceName(const DistanceRange& range) {
  return range.last == 0 ? "own block" : RangeText(range);
}

absl::Status RecallTaskOptions::Validate() const {
  SB_RETURN_IF_ERROR(Positive("block tokens", block_tokens));
  SB_RETURN_IF_ERROR(Positive("keys", keys));
  SB_RETURN_IF_ERROR(Positive("values", values));
  SB_RETURN_IF_ERROR(Positive("fillers", fillers));
  SB_RETURN_IF_ERROR(Positive("pairs per block", pairs_per_block));
  SB_RETURN_IF_ERROR(Positive("queries per block", queries_per_block));
  if (lengths.empty()) return absl::InvalidArgumentError("there is no length");
  if (distances.empty()) return absl::InvalidArgumentError("there is no distance");
  for (const int64_t length : lengths) SB_RETURN_IF_ERROR(Positive("a length", length));
  if (kPairTokens * pairs_per_block + kQueryTokens * queries_per_block > block_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("a block of ", block_tokens, " tokens has no room for ", pairs_per_block,
                     " pairs and ", queries_per_block, " queries with their answers"));
  }
  if (MaxBlocks() * pairs_per_block > keys) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence of ", MaxBlocks(), " blocks has ", MaxBlocks() * pairs_per_block,
                     " pairs, each with a key of its own, and there are ", keys, " keys"));
  }
  return absl::OkStatus();
}

int64_t RecallTaskOptions::MaxBlocks() const {
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  return (longest + block_tokens - 1) / block_tokens;
}

RecallSequence MakeRecallSequence(const RecallTaskOptions& options, uint64_t index) {
  return Generator(options, index).Make();
}

absl::Status WriteRecallDataset(const RecallTaskOptions& options, uint64_t count,
                                const std::string& prefix, bool overwrite) {
  SB_RETURN_IF_ERROR(options.Validate());
  if (count == 0) return absl::InvalidArgumentError("a data set needs at least one sequence");
  SB_ASSIGN_OR_RETURN(data::IndexedDatasetBuilder builder,
                      data::IndexedDatasetBuilder::Create(
                          prefix, data::TokenTypeForVocabulary(options.VocabularySize()),
                          {.overwrite = overwrite}));
  int64_t queries = 0;
  for (uint64_t index = 0; index < count; ++index) {
    const RecallSequence sequence = MakeRecallSequence(options, index);
    queries += static_cast<int64_t>(sequence.queries.size());
    SB_RETURN_IF_ERROR(builder.Add(sequence.tokens, sequence.mask));
    builder.EndDocument();
  }
  data::DatasetMetadata metadata;
  metadata.tokenizer = "recall";
  metadata.vocabulary_size = options.VocabularySize();
  metadata.counts = {{"sequences", static_cast<int64_t>(count)}, {"queries", queries}};
  metadata.parameters = {{"seed", absl::StrCat(options.seed)},
                         {"block-tokens", absl::StrCat(options.block_tokens)},
                         {"lengths", absl::StrJoin(options.lengths, ",")},
                         {"distances", DistancesText(options.distances)},
                         {"keys", absl::StrCat(options.keys)},
                         {"values", absl::StrCat(options.values)},
                         {"fillers", absl::StrCat(options.fillers)},
                         {"pairs-per-block", absl::StrCat(options.pairs_per_block)},
                         {"queries-per-block", absl::StrCat(options.queries_per_block)}};
  return builder.Finalize(std::move(metadata));
}

}  // namespace sparsebalance::eval
