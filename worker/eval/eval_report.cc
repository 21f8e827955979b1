#include "worker/eval/eval_report.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::eval {
namespace {

constexpr char kErrorsNote[] =
    "+-: one standard error, over sequences (tokens of one sequence are not independent)\n";

std::string PerplexityRow(std::string_view name, const Tally& tally) {
  if (tally.tokens() == 0) return absl::StrFormat("%-16s %10d %10d\n", name, 0, 0);
  return absl::StrFormat("%-16s %10d %10d %12.4f %9.4f %9.4f %9.4f %9.2f %7.2f\n", name,
                         tally.sequences(), tally.tokens(), tally.perplexity(),
                         tally.perplexity_error(), tally.mean_loss(), tally.mean_loss_error(),
                         tally.accuracy() * 100, tally.accuracy_error() * 100);
}

std::string RecallRow(std::string_view name, const Tally& tally) {
  if (tally.tokens() == 0) return absl::StrFormat("%-16s %10d\n", name, 0);
  return absl::StrFormat("%-16s %10d %11.2f %7.2f %9.4f\n", name, tally.tokens(),
                         tally.accuracy() * 100, tally.accuracy_error() * 100, tally.mean_loss());
}

nlohmann::ordered_json TallyJson(const Tally& tally) {
  return {{"sequences", tally.sequences()},   {"tokens", tally.tokens()},
          {"mean_loss", tally.mean_loss()},   {"mean_loss_error", tally.mean_loss_error()},
          {"perplexity", tally.perplexity()}, {"perplexity_error", tally.perplexity_error()},
          {"accuracy", tally.accuracy()},     {"accuracy_error", tally.accuracy_error()}};
}

nlohmann::ordered_json BucketsJson(const std::vector<Bucket>& buckets) {
  nlohmann::ordered_json out = nlohmann::ordered_json::array();
  for (const Bucket& bucket : buckets) {
    nlohmann::ordered_json one = {{"name", bucket.name}};
    one.update(TallyJson(bucket.tally));
    out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

std::string FormatTables(const EvalReport& report) {
  std::string out = absl::StrCat(report.model, ": ");
  if (report.step.has_value()) absl::StrAppend(&out, "step ", *report.step, ", ");
  absl::StrAppend(&out, "budget ", report.budget, "\n");
  if (report.perplexity.has_value()) {
    absl::StrAppend(
        &out, "\nPerplexity by length in tokens\n",
        absl::StrFormat("%-16s %10s %10s %12s %9s %9s %9s %9s %7s\n", "length", "sequences",
                        "tokens", "perplexity", "+-", "loss", "+-", "correct %", "+-"));
    for (const Bucket& bucket : report.perplexity->buckets) {
      absl::StrAppend(&out, PerplexityRow(bucket.name, bucket.tally));
    }
    absl::StrAppend(&out, PerplexityRow("all", report.perplexity->total));
  }
  if (report.recall.has_value()) {
    absl::StrAppend(&out, "\nRecall by distance in blocks\n",
                    absl::StrFormat("%-16s %10s %11s %7s %9s\n", "distance", "queries",
                                    "accuracy %", "+-", "loss"));
    for (const Bucket& bucket : report.recall->buckets) {
      absl::StrAppend(&out, RecallRow(bucket.name, bucket.tally));
    }
    absl::StrAppend(&out, RecallRow("all", report.recall->total));
    absl::StrAppend(&out, RecallRow("beyond own", report.recall->beyond_own_block));
  }
  absl::StrAppend(&out, kErrorsNote);
  return out;
}

std::string FormatJson(const EvalReport& report) {
  nlohmann::ordered_json out;
  out["model"] = report.model;
  if (report.step.has_value()) out["step"] = *report.step;
  out["budget"] = report.budget;
  if (report.perplexity.has_value()) {
    out["perplexity"] = {{"buckets", BucketsJson(report.perplexity->buckets)},
                         {"total", TallyJson(report.perplexity->total)}};
  }
  if (report.recall.has_value()) {
    out["recall"] = {{"buckets", BucketsJson(report.recall->buckets)},
                     {"total", TallyJson(report.recall->total)},
                     {"beyond_own_block", TallyJson(report.recall->beyond_own_block)}};
  }
  return out.dump(2) + "\n";
}

}  // namespace sparsebalance::eval
