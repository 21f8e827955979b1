// The name of a job inside the coordinator: both parts filled in, an empty namespace read as
// `default`.
#pragma once

#include <compare>
#include <string>
#include <utility>

#include "sparsebalance/v1/types.pb.h"

namespace sparsebalance {

struct JobId {
  std::string ns;
  std::string name;

  static JobId From(const v1::JobKey& key) {
    return {key.namespace_().empty() ? "default" : key.namespace_(), key.name()};
  }

  v1::JobKey ToProto() const {
    v1::JobKey key;
    key.set_namespace_(ns);
    key.set_name(name);
    return key;
  }

  std::string ToString() const { return ns + "/" + name; }

  friend auto operator<=>(const JobId&, const JobId&) = default;

  template <typename H>
  friend H AbslHashValue(H state, const JobId& id) {
    return H::combine(std::move(state), id.ns, id.name);
  }
};

}  // namespace sparsebalance
