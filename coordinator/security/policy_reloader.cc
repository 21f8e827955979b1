#include "coordinator/security/policy_reloader.h"

#include <spdlog/spdlog.h>

#include <utility>

namespace sparsebalance::security {

PolicyReloader::PolicyReloader(std::string path, std::string text, Policy policy,
                               Authorizer::Options options, absl::Duration interval)
    : path_(std::move(path)),
      authorizer_(std::move(policy), std::move(options)),
      text_(std::move(text)),
      task_(std::make_unique<PeriodicTask>(interval, [this] { CheckNow(); })) {}

absl::StatusOr<std::unique_ptr<PolicyReloader>> PolicyReloader::Start(
    std::string path, Authorizer::Options authorizer_options, absl::Duration interval) {
  auto text = Policy::ReadFile(path);
  if (!text.ok()) return text.status();
  auto policy = Policy::Parse(*text, path);
  if (!policy.ok()) return policy.status();
  spdlog::info("authorization file {}: {} rules", path, policy->rules());
  return std::unique_ptr<PolicyReloader>(
      new PolicyReloader(std::move(path), *std::move(text), *std::move(policy),
                         std::move(authorizer_options), interval));
}

void PolicyReloader::CheckNow() {
  absl::MutexLock lock(&mutex_);
  absl::Status status;
  if (auto text = Policy::ReadFile(path_); !text.ok()) {
    status = text.status();
  } else if (*text == text_) {
    seen_problem_.clear();
    told_problem_.clear();
    return;
  } else if (auto policy = Policy::Parse(*text, path_); !policy.ok()) {
    status = policy.status();
  } else {
    spdlog::info("authorization file {} changed: {} rules", path_, policy->rules());
    authorizer_.Replace(*std::move(policy));
    text_ = *std::move(text);
    seen_problem_.clear();
    told_problem_.clear();
    ++reloads_;
    return;
  }
  const std::string problem(status.message());
  if (problem == told_problem_) return;
  if (problem != seen_problem_) {
    // The file may be in the middle of being written; what is still so at the next look is a
    // mistake.
    seen_problem_ = problem;
    return;
  }
  told_problem_ = problem;
  ++failures_;
  spdlog::error("not taken up, the rules before it stay in force: {}", problem);
}

}  // namespace sparsebalance::security
