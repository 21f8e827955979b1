// Fields of JSON that others write, with errors that name the source, the field and the value.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace sparsebalance::model_io {

// Of one object. Missing and null are the same, as transformers writes null for unset.
class JsonFields {
 public:
  using Json = nlohmann::json;

  // Keeps a reference to the object.
  JsonFields(const Json& json, std::string source) : json_(json), source_(std::move(source)) {}

  // nullptr where the field is missing or null.
  const Json* Find(const char* name) const {
    const auto found = json_.find(name);
    return found == json_.end() || found->is_null() ? nullptr : &*found;
  }
  absl::Status Missing(const char* name) const {
    return absl::InvalidArgumentError(absl::StrCat(source_, ": ", name, " is missing"));
  }
  absl::Status Bad(const char* name, const Json& value, const char* wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat(source_, ": ", name, " is ", Text(value), ", must be ", wanted));
  }
  absl::Status Unsupported(const char* name, const Json& value, const char* supported) const {
    return absl::UnimplementedError(
        absl::StrCat(source_, ": ", name, " is ", Text(value), "; supported is ", supported));
  }

  absl::Status Integer(const char* name, bool required, int* out) const {
    const Json* value = Find(name);
    if (value == nullptr) return required ? Missing(name) : absl::OkStatus();
    if (!value->is_number_unsigned() || value->get<uint64_t>() < 1 ||
        value->get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int>::max())) {
      return Bad(name, *value, "a whole number above 0");
    }
    *out = value->get<int>();
    return absl::OkStatus();
  }
  absl::Status Float(const char* name, bool required, float* out) const {
    const Json* value = Find(name);
    if (value == nullptr) return required ? Missing(name) : absl::OkStatus();
    const double number = value->is_number() ? value->get<double>() : 0.0;
    // Beyond the largest float32 a conversion is undefined; below the smallest it is 0.
    if (!(number <= std::numeric_limits<float>::max()) || !(static_cast<float>(number) > 0)) {
      return Bad(name, *value, "a number above 0 that a float32 holds");
    }
    *out = static_cast<float>(number);
    return absl::OkStatus();
  }
  absl::Status Bool(const char* name, bool required, bool* out) const {
    const Json* value = Find(name);
    if (value == nullptr) return required ? Missing(name) : absl::OkStatus();
    if (!value->is_boolean()) return Bad(name, *value, "true or false");
    *out = value->get<bool>();
    return absl::OkStatus();
  }

  static std::string Text(const Json& value) {
    constexpr size_t kMost = 200;
    std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
    return text.size() <= kMost ? text : text.substr(0, kMost) + "...";
  }

 private:
  const Json& json_;
  const std::string source_;
};

}  // namespace sparsebalance::model_io
