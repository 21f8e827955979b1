// Log lines that say what they are about in fields, so that they can be searched by job, generation
// and step:
//
//   LogWarn({.job = id.ToString(), .generation = 3, .step = 17}, "cannot be planned: {}", why);
//
// as text "job default/a, generation 3, step 17: cannot be planned: ..."; in JSON the fields stand
// beside the message.
#pragma once

#include <spdlog/spdlog.h>

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

namespace sparsebalance {

struct LogFields {
  std::string job;                 // NAMESPACE/NAME
  uint64_t generation = 0;         // 0: left out
  std::optional<uint64_t> step{};  // left out where empty
  std::string node{};              // the same

  // "job default/a, generation 3, step 17".
  std::string ToString() const;
};

// Of the line that this thread is writing; null outside of one.
const LogFields* CurrentLogFields();

class ScopedLogFields {
 public:
  explicit ScopedLogFields(const LogFields& fields);
  ~ScopedLogFields();
  ScopedLogFields(const ScopedLogFields&) = delete;
  ScopedLogFields& operator=(const ScopedLogFields&) = delete;
};

template <typename... Args>
void LogInfo(const LogFields& fields, spdlog::format_string_t<Args...> format, Args&&... args) {
  const ScopedLogFields scope(fields);
  spdlog::info(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogWarn(const LogFields& fields, spdlog::format_string_t<Args...> format, Args&&... args) {
  const ScopedLogFields scope(fields);
  spdlog::warn(format, std::forward<Args>(args)...);
}
template <typename... Args>
void LogError(const LogFields& fields, spdlog::format_string_t<Args...> format, Args&&... args) {
  const ScopedLogFields scope(fields);
  spdlog::error(format, std::forward<Args>(args)...);
}

}  // namespace sparsebalance
