// Typed details of errors, carried as absl::Status payloads.
//
// A payload's type URL is "type.googleapis.com/<full name>", its value the serialized message, so
// that an RPC layer can pack it into a google.protobuf.Any without looking inside.
#pragma once

#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"

namespace sparsebalance::planner {

template <class M>
std::string DetailTypeUrl() {
  return absl::StrCat("type.googleapis.com/", M::descriptor()->full_name());
}

// A status holds one detail of a type; a second one replaces the first. No effect on an OK status.
template <class M>
void AttachDetail(absl::Status& status, const M& detail) {
  status.SetPayload(DetailTypeUrl<M>(), absl::Cord(detail.SerializeAsString()));
}

// Nothing where the status has no such detail or its bytes do not parse.
template <class M>
std::optional<M> GetDetail(const absl::Status& status) {
  const auto payload = status.GetPayload(DetailTypeUrl<M>());
  if (!payload.has_value()) return std::nullopt;
  M detail;
  if (!detail.ParseFromString(std::string(*payload))) return std::nullopt;
  return detail;
}

}  // namespace sparsebalance::planner
