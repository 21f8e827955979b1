#include "coordinator/cli/plan_requests.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "coordinator/cli/table.h"
#include "coordinator/planner/explain.h"
#include "coordinator/planner/planner.h"
#include "coordinator/planner/settings_text.h"
#include "coordinator/simulation/request_file.h"
#include "google/protobuf/util/json_util.h"

namespace sparsebalance {
namespace {

std::string OneLineJson(const v1::Plan& plan) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  (void)google::protobuf::util::MessageToJsonString(plan, &text, options);
  return text;
}

}  // namespace

absl::Status PlanRequests(const PlanRequestsOptions& options, std::ostream& out) {
  absl::StatusOr<std::vector<v1::PlanRequest>> requests =
      simulation::ReadPlanRequests(options.path);
  if (!requests.ok()) return requests.status();
  Table table({{"REQUEST", Align::kRight},
               {"STEP", Align::kRight},
               {"POLICY"},
               {"SEQUENCES", Align::kRight},
               {"STEP MS", Align::kRight},
               {"BOUND MS", Align::kRight},
               {"GAP %", Align::kRight},
               {"LENGTH MS", Align::kRight},
               {"COVERAGE", Align::kRight},
               {"AT BASE", Align::kRight},
               {"FALLBACK"}});
  std::string explanations;
  for (size_t i = 0; i < requests->size(); ++i) {
    v1::PlanRequest& request = (*requests)[i];
    if (!options.policy.empty()) request.mutable_settings()->set_policy(options.policy);
    if (!options.effort.empty()) {
      const absl::Status status = planner::Named(
          "--effort", planner::ParseSearchEffort(options.effort, *request.mutable_settings()));
      if (!status.ok()) return status;
    }
    const absl::StatusOr<v1::Plan> plan = planner::MakePlan(request);
    if (!plan.ok()) {
      return absl::Status(plan.status().code(), absl::StrCat(options.path, ": request ", i + 1,
                                                             ": ", plan.status().message()));
    }
    if (options.json) {
      out << OneLineJson(*plan) << "\n";
      continue;
    }
    const double bound = plan->lower_bound_ms();
    const double gap = bound > 0 ? 100 * (plan->predicted_step_ms() / bound - 1) : 0;
    table.AddRow({absl::StrCat(i + 1), absl::StrCat(plan->step()), plan->policy(),
                  absl::StrCat(request.sequences_size()),
                  absl::StrFormat("%.2f", plan->predicted_step_ms()),
                  absl::StrFormat("%.2f", bound), absl::StrFormat("%.2f", gap),
                  absl::StrFormat("%.2f", plan->length_policy_step_ms()),
                  absl::StrFormat("%.4f", plan->mean_coverage()),
                  absl::StrFormat("%.4f", plan->baseline_mean_coverage()),
                  plan->fallback() == v1::FALLBACK_REASON_NONE ? "" : plan->fallback_detail()});
    if (!options.explain) continue;
    absl::StrAppend(&explanations, "\nRequest ", i + 1, ":\n");
    for (const std::string& sentence : planner::Explain(request, *plan)) {
      absl::StrAppend(&explanations, "  ", sentence, "\n");
    }
  }
  if (!options.json) out << table.ToString() << explanations;
  return absl::OkStatus();
}

}  // namespace sparsebalance
