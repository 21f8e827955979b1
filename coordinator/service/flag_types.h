// Options of the command line that are durations, bytes or counts.
#pragma once

#include <CLI/CLI.hpp>
#include <cctype>
#include <limits>
#include <string>

#include "absl/time/time.h"
#include "coordinator/config/config_values.h"

namespace sparsebalance {

// Sets the environment variable that belongs to the flag.
inline CLI::Option* WithEnvironment(CLI::Option* option) {
  std::string name = "SPARSEBALANCE_COORDINATOR_";
  for (const char c : option->get_single_name()) {
    name += c == '-' ? '_' : static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  }
  return option->envname(name);
}

// An option whose text `parse` turns into a value, or refuses in words.
template <typename T, typename Parse>
CLI::Option* AddParsed(CLI::App& app, const std::string& name, T* value, const std::string& help,
                       const std::string& type, const std::string& default_text, Parse parse) {
  CLI::Option* option =
      app.add_option_function<std::string>(
             name,
             [name, value, parse](const std::string& text) {
               const auto parsed = parse(text);
               if (!parsed.ok()) {
                 throw CLI::ValidationError(name, std::string(parsed.status().message()));
               }
               using Parsed = std::decay_t<decltype(*parsed)>;
               if constexpr (std::is_integral_v<T>) {
                 if (*parsed > static_cast<Parsed>(std::numeric_limits<T>::max())) {
                   throw CLI::ValidationError(name, "'" + text + "' is too much");
                 }
               }
               *value = static_cast<T>(*parsed);
             },
             help)
          ->type_name(type)
          ->default_str(default_text);
  return WithEnvironment(option);
}

inline CLI::Option* AddDuration(CLI::App& app, const std::string& name, absl::Duration* value,
                                const std::string& help) {
  return AddParsed(app, name, value, help, "DURATION", absl::FormatDuration(*value),
                   [](const std::string& text) { return ParseDurationText(text); });
}

template <typename T>
CLI::Option* AddBytes(CLI::App& app, const std::string& name, T* value, const std::string& help) {
  return AddParsed(app, name, value, help, "BYTES", std::to_string(*value),
                   [](const std::string& text) { return ParseBytesText(text); });
}

template <typename T>
CLI::Option* AddCount(CLI::App& app, const std::string& name, T* value, const std::string& help) {
  return AddParsed(app, name, value, help, "COUNT", std::to_string(*value),
                   [](const std::string& text) { return ParseCountText(text); });
}

}  // namespace sparsebalance
