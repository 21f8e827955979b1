#include "worker/verbs/profile_verb.h"

#include <google/protobuf/util/json_util.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/latency_model.h"
#include "kernels/status_macros.h"
#include "worker/client/coordinator_client.h"
#include "worker/data/indexed_dataset.h"
#include "worker/train/device_choice.h"
#include "worker/train/file_util.h"
#include "worker/train/startup_profile.h"
#include "worker/train/worker_flags.h"
#include "worker/verbs/verb_main.h"

namespace sparsebalance {
namespace {

struct ProfileFlags {
  WorkerFlags worker;
  std::string output = "profile.json";
  uint64_t longest_tokens = 0;
  double seconds = 30;
  const CLI::Option* coordinator = nullptr;  // the profile goes there where it was given
};

// Length of the longest sequence to measure: given, else the data set's longest, else the cap.
absl::StatusOr<uint64_t> LongestTokens(const ProfileFlags& flags, TrainOptions& train) {
  if (!train.dataset_prefix.empty()) {
    SB_ASSIGN_OR_RETURN(const data::IndexedDataset dataset,
                        data::IndexedDataset::Open(train.dataset_prefix));
    if (train.model.vocab_size == 0 && dataset.metadata().has_value()) {
      train.model.vocab_size = static_cast<int>(dataset.metadata()->vocabulary_size);
    }
    if (flags.longest_tokens == 0 && dataset.size() > 0) {
      return static_cast<uint64_t>(
          *std::max_element(dataset.lengths().begin(), dataset.lengths().end()));
    }
  }
  if (train.model.vocab_size == 0) {
    return absl::InvalidArgumentError(
        "the vocabulary is not known; give --vocabulary-size, or --dataset that states it");
  }
  return flags.longest_tokens > 0 ? flags.longest_tokens : train.plan.max_tokens_per_micro_batch();
}

void PrintFit(const v1::LatencyProfile& profile, uint32_t block_tokens) {
  const planner::LatencyPredictor predictor(profile.model(), block_tokens);
  absl::PrintF("%10s %8s %12s %12s %12s %8s\n", "tokens", "budget", "forward ms", "backward ms",
               "fitted ms", "error");
  for (const v1::ProfilePoint& point : profile.points()) {
    const auto blocks = static_cast<int64_t>(planner::BlocksOf(point.tokens(), block_tokens));
    const double measured = point.forward_ms() + point.backward_ms();
    const double fitted =
        static_cast<double>(predictor.constant_ns() +
                            predictor.SequenceNs(static_cast<int64_t>(point.tokens()), blocks,
                                                 point.budget_blocks())) /
        1e6;
    absl::PrintF("%10d %8d %12.3f %12.3f %12.3f %+7.1f%%\n", point.tokens(), point.budget_blocks(),
                 point.forward_ms(), point.backward_ms(), fitted, 100 * (fitted / measured - 1));
  }
  absl::PrintF("mean error of the fit %.2f %% over %d points\n",
               100 * profile.mean_relative_error(), profile.points_size());
}

absl::Status Write(const v1::LatencyProfile& profile, const std::string& path) {
  google::protobuf::util::JsonPrintOptions format;
  format.add_whitespace = true;
  format.preserve_proto_field_names = true;
  std::string json;
  if (const auto status = google::protobuf::util::MessageToJsonString(profile, &json, format);
      !status.ok()) {
    return absl::InternalError(std::string(status.message()));
  }
  return WriteFile(path, json);
}

absl::Status Run(ProfileFlags& flags) {
  SB_RETURN_IF_ERROR(FinishWorkerFlags(flags.worker));
  TrainOptions& train = flags.worker.node.train;
  SB_ASSIGN_OR_RETURN(const uint64_t longest, LongestTokens(flags, train));
  SB_RETURN_IF_ERROR(train.model.Validate());
  SB_RETURN_IF_ERROR(ChooseDevice(train, /*ranks=*/1, [](const std::string& /*line*/) {}));
  SB_ASSIGN_OR_RETURN(
      v1::LatencyProfile profile,
      MeasureProfile(train, {.longest_tokens = longest, .seconds = flags.seconds, .wide = true}));
  v1::ProfileKey& key = *profile.mutable_key();
  key.set_namespace_(train.job.namespace_());
  key.set_device_class(DeviceClass(train));
  key.set_model_class(ProfileClass(train.model));

  absl::PrintF("device  %s\nmodel   %s\n\n", key.device_class(), key.model_class());
  PrintFit(profile, train.plan.block_tokens());
  SB_RETURN_IF_ERROR(Write(profile, flags.output));
  absl::PrintF("written to %s; sbctl simulate --profile %s plans by it\n", flags.output,
               flags.output);
  const std::string& address = flags.worker.node.coordinator;
  if (flags.coordinator->count() == 0 || address.empty()) return absl::OkStatus();

  SB_ASSIGN_OR_RETURN(
      const std::shared_ptr<ClientTls> tls,
      LoadChannelSecurity(address, flags.worker.node.security, flags.worker.node.insecure));
  CoordinatorClient client(address, tls);
  v1::PutProfileRequest request;
  *request.mutable_profile() = std::move(profile);
  // A busy coordinator may miss the first attempts, which are short; what was measured is worth
  // more of them.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  absl::StatusOr<v1::PutProfileResponse> response = client.PutProfile(request, absl::Seconds(10));
  while (absl::IsUnavailable(response.status()) && absl::Now() < deadline) {
    absl::SleepFor(absl::Milliseconds(200));
    response = client.PutProfile(request, absl::Seconds(10));
  }
  if (!response.ok()) {
    return absl::Status(response.status().code(),
                        absl::StrCat("the coordinator at ", address,
                                     " did not take the profile: ", response.status().message()));
  }
  absl::PrintF("given to the coordinator at %s%s\n", address,
               response->replaced() ? ", in place of an earlier one" : "");
  return absl::OkStatus();
}

}  // namespace

int RunProfileVerb(int argc, char** argv) {
  ProfileFlags flags;
  CLI::App app(
      "Measures the latency of single sequences by length and budget on this machine's backend, "
      "fits the latency model, and writes the profile. Takes the flags of training that describe "
      "model, blocks and machine; with --coordinator the profile is given to it.",
      "sparsebalance-worker profile");
  AddWorkerFlags(app, flags.worker);
  app.get_option("--dataset")->required(false);
  flags.coordinator = app.get_option("--coordinator");
  app.add_option("--profile-output", flags.output, "file to write, JSON")->capture_default_str();
  app.add_option("--longest-tokens", flags.longest_tokens,
                 "0: of the data set's longest sequence, else --max-tokens-per-micro-batch")
      ->capture_default_str();
  app.add_option("--seconds", flags.seconds, "to measure, about")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  return RunVerb(app, argc, argv, [&flags] { return Run(flags); });
}

}  // namespace sparsebalance
