#include "worker/verbs/recall_flags.h"

#include "absl/strings/str_cat.h"
#include "kernels/status_macros.h"

namespace sparsebalance {

void AddRecallFlags(CLI::App& app, RecallFlags& flags) {
  eval::RecallTaskOptions& task = flags.task;
  auto* group = app.add_option_group("Recall task");
  group->add_option("--recall-seed", task.seed, "of the sequences")->capture_default_str();
  group
      ->add_option("--lengths", task.lengths,
                   "tokens of a sequence, drawn evenly; repeat one to have more of it")
      ->delimiter(',')
      ->capture_default_str();
  group
      ->add_option("--distances", flags.distances,
                   "blocks between a query and its pair, as 0,1,2-3; 0 is the query's own block")
      ->capture_default_str();
  group->add_option("--keys", task.keys, "different keys")->capture_default_str();
  group->add_option("--values", task.values, "different values; guessing gets one in so many right")
      ->capture_default_str();
  group->add_option("--fillers", task.fillers, "different filler tokens")->capture_default_str();
  group->add_option("--pairs-per-block", task.pairs_per_block, "key-value pairs in a block")
      ->capture_default_str();
  group->add_option("--queries-per-block", task.queries_per_block, "queries in a block, at most")
      ->capture_default_str();
}

absl::Status FinishRecallFlags(RecallFlags& flags) {
  absl::StatusOr<std::vector<eval::DistanceRange>> distances =
      eval::ParseDistances(flags.distances);
  if (!distances.ok()) {
    return absl::InvalidArgumentError(absl::StrCat("--distances: ", distances.status().message()));
  }
  flags.task.distances = *std::move(distances);
  SB_RETURN_IF_ERROR(flags.task.Validate());
  return absl::OkStatus();
}

}  // namespace sparsebalance
