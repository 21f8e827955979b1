#include "coordinator/planner/planner.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/lookahead.h"
#include "coordinator/planner/plan_builder.h"
#include "coordinator/planner/plan_slice.h"
#include "coordinator/planner/policies/registry.h"
#include "coordinator/planner/problem.h"
#include "coordinator/planner/solution.h"
#include "coordinator/planner/status_payload.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance::planner {
namespace {

// An InfeasiblePlan is made where the step is not known.
absl::Status WithStep(absl::Status status, uint64_t step) {
  if (auto detail = GetDetail<v1::InfeasiblePlan>(status)) {
    detail->set_step(step);
    AttachDetail(status, *detail);
  }
  return status;
}

absl::Status MakeValidated(const v1::PlanRequest& request, const Policy& policy, v1::Plan& plan) {
  absl::StatusOr<Problem> problem = Problem::Create(request);
  if (!problem.ok()) return problem.status();
  const absl::StatusOr<LengthPlan> length = MakeLengthPlan(*problem);
  if (!length.ok()) return WithStep(length.status(), request.step());
  const absl::StatusOr<Solution> solution = policy.solve(*problem, *length);
  if (!solution.ok()) return WithStep(solution.status(), request.step());

  plan.Clear();
  BuildPlan(*problem, *solution, plan);
  plan.set_step(request.step());
  plan.set_policy(std::string(policy.name));
  plan.set_length_policy_step_ms(
      MsFromNs(length->step_ns + problem->predictor().step_constant_ns()));
  return CheckPlan(*problem, plan);
}

absl::Status MakeWithLookahead(const v1::PlanRequest& request, const Policy& policy,
                               v1::Plan& plan) {
  absl::StatusOr<Lookahead> lookahead = ChooseExchanges(request);
  if (!lookahead.ok()) return WithStep(lookahead.status(), request.step());
  google::protobuf::RepeatedPtrField<v1::SequenceExchange> exchanges(lookahead->exchanges.begin(),
                                                                     lookahead->exchanges.end());
  absl::StatusOr<v1::PlanRequest> trained = AfterExchanges(request, exchanges);
  if (!trained.ok()) return absl::InternalError(trained.status().message());
  if (absl::Status made = MakeValidated(*trained, policy, plan); !made.ok()) return made;
  plan.set_max_displacement_steps(MaxDisplacement(request, exchanges));
  plan.set_lookahead_saved_ms(MsFromNs(lookahead->saved_ns));
  *plan.mutable_exchanges() = std::move(exchanges);
  return absl::OkStatus();
}

}  // namespace

absl::Status MakePlan(const v1::PlanRequest& request, v1::Plan& plan) {
  if (absl::Status status = ValidateRequest(request); !status.ok()) return status;
  const Policy& policy = *FindPolicy(request.settings().policy());
  if (policy.name == kDefaultPolicy && !request.upcoming().empty()) {
    return MakeWithLookahead(request, policy, plan);
  }
  return MakeValidated(request, policy, plan);
}

absl::StatusOr<v1::Plan> MakePlan(const v1::PlanRequest& request) {
  v1::Plan plan;
  if (absl::Status made = MakePlan(request, plan); !made.ok()) return made;
  return plan;
}

absl::StatusOr<v1::Plan> MakeFallbackPlan(const v1::PlanRequest& request) {
  v1::PlanRequest known;
  *known.mutable_settings() = request.settings();
  known.mutable_settings()->set_policy("length");
  known.set_step(request.step());
  // Zero coefficients: no time is predicted, rather than one from a model nobody measured.
  known.mutable_latency()->set_forward_fraction(0.5);
  for (const v1::Sequence& s : request.sequences()) {
    v1::Sequence& copy = *known.add_sequences();
    copy.set_id(s.id());
    copy.set_tokens(s.tokens());
    copy.set_supervised_tokens(s.supervised_tokens());
  }
  if (absl::Status status = ValidateRequest(known); !status.ok()) return status;
  v1::Plan plan;
  if (absl::Status made = MakeValidated(known, *FindPolicy("length"), plan); !made.ok()) {
    return made;
  }
  plan.set_fallback(v1::FALLBACK_REASON_NO_PLAN);
  plan.set_fallback_detail("made without a coordinator's plan, from token counts alone");
  return plan;
}

std::vector<std::string> PolicyNames() {
  std::vector<std::string> names;
  names.reserve(Policies().size());
  for (const Policy& policy : Policies()) names.emplace_back(policy.name);
  return names;
}

}  // namespace sparsebalance::planner
