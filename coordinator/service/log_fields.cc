#include "coordinator/service/log_fields.h"

#include "absl/strings/str_cat.h"

namespace sparsebalance {
namespace {

// Sinks format on the thread that logs, so that they see its fields.
thread_local const LogFields* current = nullptr;

}  // namespace

std::string LogFields::ToString() const {
  std::string text = absl::StrCat("job ", job);
  if (generation != 0) absl::StrAppend(&text, ", generation ", generation);
  if (step) absl::StrAppend(&text, ", step ", *step);
  if (!node.empty()) absl::StrAppend(&text, ", node ", node);
  return text;
}

const LogFields* CurrentLogFields() { return current; }

ScopedLogFields::ScopedLogFields(const LogFields& fields) { current = &fields; }
ScopedLogFields::~ScopedLogFields() { current = nullptr; }

}  // namespace sparsebalance
