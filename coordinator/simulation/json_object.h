// Reads a JSON object field by field with errors that a person can act on: which field, which
// value, what was expected; and which fields nobody asked for.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::simulation {

class JsonObject {
 public:
  // `path` is how errors name the object, empty for the outermost. `json` must outlive this.
  JsonObject(const nlohmann::json& json, std::string path);

  bool Has(const std::string& key) const { return json_.is_object() && json_.contains(key); }
  // The path of one of its fields.
  std::string PathOf(const std::string& key) const;

  // Each leaves `out` alone where the field is absent and not required. After a first error nothing
  // more is read.
  void Uint32(const std::string& key, uint32_t& out);
  // A number or a string of digits.
  void Uint64(const std::string& key, uint64_t& out, bool required = false);
  void Number(const std::string& key, double& out, bool required = false);
  void Bool(const std::string& key, bool& out);
  void String(const std::string& key, std::string& out, bool required = false);
  // nullptr where absent.
  const nlohmann::json* Value(const std::string& key);
  const nlohmann::json* Array(const std::string& key, bool required = false);
  const nlohmann::json* Object(const std::string& key, bool required = false);

  void Fail(const std::string& key, const std::string& expected);

  // The first error, else one that names fields that were never read.
  absl::Status Finish() const;
  absl::Status status() const { return status_; }

 private:
  // The field, if it is there and nothing has failed yet.
  const nlohmann::json* Find(const std::string& key, bool required);

  const nlohmann::json& json_;
  std::string path_;
  std::set<std::string> read_;
  absl::Status status_;
};

// A document; INVALID_ARGUMENT with column, and line after the first, where it is malformed.
absl::Status ParseJson(std::string_view text, nlohmann::json& out);

}  // namespace sparsebalance::simulation
