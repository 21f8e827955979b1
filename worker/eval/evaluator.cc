#include "worker/eval/evaluator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace sparsebalance::eval {
namespace {

// Fills micro-batches, scores each once it is full, and hands every sequence its own scores.
class BatchScorer {
 public:
  // Positions are relative to the sequence's first token.
  using Sink = std::function<void(uint64_t sequence, const std::vector<model::TokenScore>&)>;

  BatchScorer(const Scorer& scorer, int64_t block_tokens, const EvalOptions& options, Sink sink)
      : scorer_(scorer), block_tokens_(block_tokens), options_(options), sink_(std::move(sink)) {}

  absl::Status Add(uint64_t sequence, const data::TrainingExample& example) {
    const auto length = static_cast<int64_t>(example.tokens.size());
    const auto filled = static_cast<int64_t>(batch_.tokens.size());
    if (filled > 0 && filled + length > options_.max_tokens_per_micro_batch) {
      SB_RETURN_IF_ERROR(Flush());
    }
    if (batch_.cu_seqlens.empty()) batch_.cu_seqlens.push_back(0);
    batch_.tokens.insert(batch_.tokens.end(), example.tokens.begin(), example.tokens.end());
    batch_.targets.insert(batch_.targets.end(), example.targets.begin(), example.targets.end());
    batch_.loss_weights.insert(batch_.loss_weights.end(), example.loss_weights.begin(),
                               example.loss_weights.end());
    batch_.cu_seqlens.push_back(static_cast<int64_t>(batch_.tokens.size()));
    const int64_t blocks = (length + block_tokens_ - 1) / block_tokens_;
    const int64_t budget =
        options_.budget_blocks == 0 ? blocks : std::min(blocks, options_.budget_blocks);
    batch_.budgets.push_back(static_cast<int32_t>(budget));
    batch_.base_budgets.push_back(static_cast<int32_t>(budget));
    sequences_.push_back(sequence);
    return absl::OkStatus();
  }

  absl::Status Flush() {
    if (sequences_.empty()) return absl::OkStatus();
    SB_ASSIGN_OR_RETURN(const std::vector<model::TokenScore> scores, scorer_(batch_));
    auto next = scores.begin();
    for (size_t s = 0; s < sequences_.size(); ++s) {
      std::vector<model::TokenScore> own;
      for (; next != scores.end() && next->position < batch_.cu_seqlens[s + 1]; ++next) {
        own.push_back(*next);
        own.back().position -= batch_.cu_seqlens[s];
      }
      sink_(sequences_[s], own);
    }
    batch_ = {};
    sequences_.clear();
    return absl::OkStatus();
  }

 private:
  const Scorer& scorer_;
  const int64_t block_tokens_;
  const EvalOptions& options_;
  const Sink sink_;
  model::MicroBatch batch_;
  std::vector<uint64_t> sequences_;
};

// One sequence's tokens in one bucket.
struct Sums {
  int64_t tokens = 0;
  double loss = 0;
  int64_t correct = 0;

  void Add(const model::TokenScore& score) {
    ++tokens;
    loss += score.loss;
    correct += score.correct ? 1 : 0;
  }
  void AddTo(Tally& tally) const { tally.AddSequence(tokens, loss, correct); }
};

absl::Status Validate(const EvalOptions& options) {
  if (options.budget_blocks < 0 || options.budget_blocks > INT32_MAX) {
    return absl::InvalidArgumentError(absl::StrCat("a budget of ", options.budget_blocks,
                                                   " blocks is not between 0 and 2^31 - 1"));
  }
  for (size_t i = 0; i < options.length_edges.size(); ++i) {
    if (options.length_edges[i] <= (i == 0 ? 0 : options.length_edges[i - 1])) {
      return absl::InvalidArgumentError(absl::StrCat("length edge ", options.length_edges[i],
                                                     " is not above the one before it, or 0"));
    }
  }
  return absl::OkStatus();
}

std::vector<Bucket> LengthBuckets(const std::vector<int64_t>& edges) {
  std::vector<Bucket> buckets;
  int64_t begin = 1;
  for (const int64_t edge : edges) {
    buckets.push_back({absl::StrCat(begin, "-", edge - 1), {}});
    begin = edge;
  }
  buckets.push_back({absl::StrCat(begin, " and more"), {}});
  return buckets;
}

data::TrainingExample ExampleOf(const RecallSequence& sequence) {
  data::TrainingExample example;
  example.tokens = sequence.tokens;
  example.targets.assign(sequence.tokens.begin() + 1, sequence.tokens.end());
  example.targets.push_back(0);
  example.loss_weights.assign(sequence.mask.begin() + 1, sequence.mask.end());
  example.loss_weights.push_back(0);
  return example;
}

}  // namespace

Scorer ScoreBy(model::Transformer& model) {
  return [&model](const model::MicroBatch& batch) { return model.Scores(batch, 0.0); };
}

absl::StatusOr<EvalResult> EvaluateDataset(const Scorer& scorer,
                                           const data::IndexedDataset& dataset,
                                           int64_t block_tokens, const EvalOptions& options) {
  SB_RETURN_IF_ERROR(Validate(options));
  EvalResult result;
  result.buckets = LengthBuckets(options.length_edges);
  const auto sink = [&](uint64_t id, const std::vector<model::TokenScore>& scores) {
    Sums sums;
    for (const model::TokenScore& score : scores) sums.Add(score);
    const auto edge = std::upper_bound(options.length_edges.begin(), options.length_edges.end(),
                                       dataset.lengths()[id]);
    sums.AddTo(result.buckets[static_cast<size_t>(edge - options.length_edges.begin())].tally);
    sums.AddTo(result.total);
  };
  BatchScorer batches(scorer, block_tokens, options, sink);
  const uint64_t count =
      options.max_sequences == 0 ? dataset.size() : std::min(dataset.size(), options.max_sequences);
  for (uint64_t id = 0; id < count; ++id) {
    SB_ASSIGN_OR_RETURN(const data::TrainingExample example, dataset.MakeTrainingExample(id));
    if (!example.tokens.empty()) SB_RETURN_IF_ERROR(batches.Add(id, example));
  }
  SB_RETURN_IF_ERROR(batches.Flush());
  if (result.total.tokens() == 0) {
    return absl::InvalidArgumentError("the data set has no supervised token: nothing to evaluate");
  }
  return result;
}

absl::StatusOr<RecallResult> EvaluateRecall(const Scorer& scorer, const RecallTaskOptions& task,
                                            uint64_t sequences, const EvalOptions& options) {
  SB_RETURN_IF_ERROR(Validate(options));
  SB_RETURN_IF_ERROR(task.Validate());
  RecallResult result;
  for (const DistanceRange& range : task.distances) {
    result.buckets.push_back({DistanceName(range), {}});
  }
  std::vector<std::vector<RecallQuery>> queries;
  const auto sink = [&](uint64_t index, const std::vector<model::TokenScore>& scores) {
    std::vector<Sums> by_range(task.distances.size());
    Sums all;
    Sums beyond;
    // Answers are all that is supervised: the n-th score is that of the n-th query.
    for (size_t q = 0; q < scores.size(); ++q) {
      const int64_t distance = queries[index][q].distance_blocks;
      const auto range =
          std::find_if(task.distances.begin(), task.distances.end(),
                       [&](const DistanceRange& candidate) { return distance <= candidate.last; });
      by_range[static_cast<size_t>(range - task.distances.begin())].Add(scores[q]);
      all.Add(scores[q]);
      if (distance > 0) beyond.Add(scores[q]);
    }
    for (size_t r = 0; r < by_range.size(); ++r) by_range[r].AddTo(result.buckets[r].tally);
    all.AddTo(result.total);
    beyond.AddTo(result.beyond_own_block);
  };
  BatchScorer batches(scorer, task.block_tokens, options, sink);
  for (uint64_t index = 0; index < sequences; ++index) {
    RecallSequence sequence = MakeRecallSequence(task, index);
    queries.push_back(std::move(sequence.queries));
    SB_RETURN_IF_ERROR(batches.Add(index, ExampleOf(sequence)));
  }
  SB_RETURN_IF_ERROR(batches.Flush());
  if (result.total.tokens() == 0) {
    return absl::InvalidArgumentError(
        "no query at these distances fits into sequences of these lengths");
  }
  return result;
}

}  // namespace sparsebalance::eval
