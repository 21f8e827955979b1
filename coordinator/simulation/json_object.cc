#include "coordinator/simulation/json_object.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace sparsebalance::simulation {
namespace {

// A value as it stood in the file, short enough for a message.
std::string Shown(const nlohmann::json& value) {
  constexpr size_t kLongest = 40;
  std::string text = value.dump();
  if (text.size() > kLongest) text = text.substr(0, kLongest) + "...";
  return text;
}

}  // namespace

JsonObject::JsonObject(const nlohmann::json& json, std::string path)
    : json_(json), path_(std::move(path)) {
  if (!json_.is_object()) {
    status_ = absl::InvalidArgumentError(absl::StrCat(path_.empty() ? "the line" : path_, " is ",
                                                      Shown(json_), ": expected an object"));
  }
}

std::string JsonObject::PathOf(const std::string& key) const {
  return path_.empty() ? key : absl::StrCat(path_, ".", key);
}

const nlohmann::json* JsonObject::Find(const std::string& key, bool required) {
  if (!status_.ok()) return nullptr;
  read_.insert(key);
  const auto it = json_.find(key);
  if (it != json_.end()) return &*it;
  if (required) status_ = absl::InvalidArgumentError(absl::StrCat(PathOf(key), " is missing"));
  return nullptr;
}

void JsonObject::Fail(const std::string& key, const std::string& expected) {
  if (!status_.ok()) return;
  const auto it = json_.find(key);
  status_ = absl::InvalidArgumentError(absl::StrCat(
      PathOf(key), " is ", it == json_.end() ? "missing" : Shown(*it), ": expected ", expected));
}

void JsonObject::Uint32(const std::string& key, uint32_t& out) {
  uint64_t wide = out;
  Uint64(key, wide);
  if (wide > std::numeric_limits<uint32_t>::max()) {
    Fail(key, "a whole number below 2^32");
    return;
  }
  out = static_cast<uint32_t>(wide);
}

void JsonObject::Uint64(const std::string& key, uint64_t& out, bool required) {
  const nlohmann::json* value = Find(key, required);
  if (value == nullptr) return;
  if (value->is_number_unsigned()) {
    out = value->get<uint64_t>();
  } else if (!value->is_string() || !absl::SimpleAtoi(value->get<std::string>(), &out)) {
    Fail(key, "a whole number, not negative");
  }
}

void JsonObject::Number(const std::string& key, double& out, bool required) {
  const nlohmann::json* value = Find(key, required);
  if (value == nullptr) return;
  if (value->is_number()) {
    out = value->get<double>();
  } else {
    Fail(key, "a number");
  }
}

void JsonObject::Bool(const std::string& key, bool& out) {
  const nlohmann::json* value = Find(key, false);
  if (value == nullptr) return;
  if (value->is_boolean()) {
    out = value->get<bool>();
  } else {
    Fail(key, "true or false");
  }
}

void JsonObject::String(const std::string& key, std::string& out, bool required) {
  const nlohmann::json* value = Find(key, required);
  if (value == nullptr) return;
  if (value->is_string()) {
    out = value->get<std::string>();
  } else {
    Fail(key, "a string");
  }
}

const nlohmann::json* JsonObject::Value(const std::string& key) { return Find(key, false); }

const nlohmann::json* JsonObject::Array(const std::string& key, bool required) {
  const nlohmann::json* value = Find(key, required);
  if (value == nullptr || value->is_array()) return value;
  Fail(key, "an array");
  return nullptr;
}

const nlohmann::json* JsonObject::Object(const std::string& key, bool required) {
  const nlohmann::json* value = Find(key, required);
  if (value == nullptr || value->is_object()) return value;
  Fail(key, "an object");
  return nullptr;
}

absl::Status JsonObject::Finish() const {
  if (!status_.ok()) return status_;
  std::vector<std::string> unknown;
  for (const auto& [key, value] : json_.items()) {
    if (read_.count(key) == 0) unknown.push_back(PathOf(key));
  }
  if (unknown.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(absl::StrJoin(unknown, ", "), unknown.size() == 1 ? " is not" : " are not",
                   " known here; known are ", absl::StrJoin(read_, ", ")));
}

absl::Status ParseJson(std::string_view text, nlohmann::json& out) {
  try {
    out = nlohmann::json::parse(text);
    return absl::OkStatus();
  } catch (const nlohmann::json::parse_error& e) {
    // The library counts bytes from 1 and may point past the end.
    const std::string_view before = text.substr(0, std::min(e.byte, text.size()));
    const size_t newline = before.rfind('\n');
    const size_t column = newline == std::string_view::npos ? e.byte : e.byte - newline - 1;
    const auto lines = static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const std::string line = lines == 0 ? "" : absl::StrCat("line ", lines + 1, ", ");
    std::string why = e.what();
    // "[json.exception.parse_error.101] parse error at line 1, column 9: syntax error while ...".
    const size_t colon = why.find(": ");
    if (colon != std::string::npos) why = why.substr(colon + 2);
    return absl::InvalidArgumentError(
        absl::StrCat("malformed JSON at ", line, "column ", column, ": ", why));
  }
}

}  // namespace sparsebalance::simulation
