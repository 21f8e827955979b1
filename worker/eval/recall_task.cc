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

struct OpenPair {
  int64_t key, value;
  int64_t position;
};

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
      AddBlock(std::min(options_.block_tokens, length - begin));
    }
    return std::move(out_);
  }

 private:
  enum class Item { kPair, kQuery };

  // Items in random order at random places.
  void AddBlock(int64_t tokens) {
    std::vector<Item> items(static_cast<size_t>(options_.pairs_per_block), Item::kPair);
    items.insert(items.end(), static_cast<size_t>(options_.queries_per_block), Item::kQuery);
    random_.Shuffle(items);
    int64_t filler = tokens;
    for (const Item item : items) filler -= Tokens(item);
    for (; filler < 0; items.pop_back()) filler += Tokens(items.back());  // a short last block
    while (!items.empty() || filler > 0) {
      const int64_t place = random_.Below(static_cast<int64_t>(items.size()) + filler);
      if (place < filler) {
        AddFiller();
        --filler;
        continue;
      }
      const Item item = items.back();
      items.pop_back();
      if (item == Item::kPair) {
        AddPair();
      } else {
        AddQuery();
      }
    }
  }

  static int64_t Tokens(Item item) { return item == Item::kPair ? kPairTokens : kQueryTokens; }
  int64_t position() const { return static_cast<int64_t>(out_.tokens.size()); }

  void Add(int64_t token, bool supervised = false) {
    out_.tokens.push_back(static_cast<int32_t>(token));
    out_.mask.push_back(supervised ? 1 : 0);
  }
  void AddFiller() { Add(random_.Below(options_.fillers)); }

  void AddPair() {
    const int64_t key = keys_.back();
    keys_.pop_back();
    const int64_t value = random_.Below(options_.values);
    open_.push_back({key, value, position()});
    Add(options_.Pair(key, value));
  }

  int64_t Distance(const OpenPair& pair) const {
    return position() / options_.block_tokens - pair.position / options_.block_tokens;
  }

  // Filler where no pair is left at any wanted distance.
  void AddQuery() {
    std::vector<std::vector<size_t>> choices;
    for (const DistanceRange& range : options_.distances) {
      std::vector<size_t> inside;
      for (size_t i = 0; i < open_.size(); ++i) {
        const int64_t distance = Distance(open_[i]);
        if (distance >= range.first && distance <= range.last) inside.push_back(i);
      }
      if (!inside.empty()) choices.push_back(std::move(inside));
    }
    if (choices.empty()) {
      AddFiller();
      AddFiller();
      return;
    }
    const std::vector<size_t>& inside =
        choices[static_cast<size_t>(random_.Below(static_cast<int64_t>(choices.size())))];
    const size_t chosen =
        inside[static_cast<size_t>(random_.Below(static_cast<int64_t>(inside.size())))];
    const OpenPair pair = open_[chosen];
    out_.queries.push_back({position(), pair.position, Distance(pair)});
    open_.erase(open_.begin() + static_cast<int64_t>(chosen));
    Add(options_.Query(pair.key));
    Add(options_.Value(pair.value), /*supervised=*/true);
  }

  const RecallTaskOptions& options_;
  Random random_;
  std::vector<int64_t> keys_;   // not yet paired
  std::vector<OpenPair> open_;  // not yet queried
  RecallSequence out_;
};

absl::Status Positive(const std::string& name, int64_t value) {
  if (value >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(name, " is ", value, ", it must be at least 1"));
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

std::string DistanceName(const DistanceRange& range) {
  if (range.last == 0) return "own block";
  if (range.first == range.last) return absl::StrCat(range.first);
  return absl::StrCat(range.first, "-", range.last);
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
  const int64_t longest = *std::max_element(lengths.begin(), lengths.end());
  const int64_t blocks = (longest + block_tokens - 1) / block_tokens;
  if (blocks * pairs_per_block > keys) {
    return absl::InvalidArgumentError(
        absl::StrCat("a sequence of ", longest, " tokens has up to ", blocks * pairs_per_block,
                     " pairs, each with a key of its own, and there are ", keys, " keys"));
  }
  return absl::OkStatus();
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
  const auto range_text = [](std::string* out, const DistanceRange& range) {
    absl::StrAppend(out, range.first, "-", range.last);
  };
  metadata.parameters = {{"seed", absl::StrCat(options.seed)},
                         {"block-tokens", absl::StrCat(options.block_tokens)},
                         {"lengths", absl::StrJoin(options.lengths, ",")},
                         {"distances", absl::StrJoin(options.distances, ",", range_text)},
                         {"keys", absl::StrCat(options.keys)},
                         {"values", absl::StrCat(options.values)},
                         {"fillers", absl::StrCat(options.fillers)},
                         {"pairs-per-block", absl::StrCat(options.pairs_per_block)},
                         {"queries-per-block", absl::StrCat(options.queries_per_block)}};
  return builder.Finalize(std::move(metadata));
}

}  // namespace sparsebalance::eval
