#include "coordinator/service/logging.h"

#include <grpc/support/log.h>
#include <spdlog/formatter.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/service/log_fields.h"

namespace sparsebalance {
namespace {

// One line a message that starts with what it is about.
class TextFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& destination) override {
    const spdlog::string_view_t level = spdlog::level::to_short_c_str(message.level);
    std::string line = absl::FormatTime("%Y-%m-%d %H:%M:%E3S ", absl::FromChrono(message.time),
                                        absl::LocalTimeZone());
    line.append(level.data(), level.size());
    line += ' ';
    if (const LogFields* fields = CurrentLogFields()) line += fields->ToString() + ": ";
    line.append(message.payload.data(), message.payload.size());
    line += '\n';
    destination.append(line.data(), line.data() + line.size());
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<TextFormatter>();
  }
};

class JsonFormatter : public spdlog::formatter {
 public:
  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& destination) override {
    nlohmann::ordered_json line = {
        {"time", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", absl::FromChrono(message.time),
                                  absl::UTCTimeZone())},
        {"level", std::string(spdlog::level::to_string_view(message.level).data(),
                              spdlog::level::to_string_view(message.level).size())}};
    if (const LogFields* fields = CurrentLogFields()) {
      line["job"] = fields->job;
      if (fields->generation != 0) line["generation"] = fields->generation;
      if (fields->step) line["step"] = *fields->step;
      if (!fields->node.empty()) line["node"] = fields->node;
    }
    line["message"] = std::string(message.payload.data(), message.payload.size());
    // Bytes that are no UTF-8 are replaced: a line of the log must always parse.
    const std::string text = line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    destination.append(text.data(), text.data() + text.size());
    destination.push_back('\n');
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<JsonFormatter>();
  }
};

void LogFromGrpc(gpr_log_func_args* args) { spdlog::debug("grpc: {}", args->message); }

}  // namespace

absl::Status SetUpLogging(const std::string& format, const std::string& level) {
  auto logger = std::make_shared<spdlog::logger>("coordinator",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  if (format == "json") {
    logger->set_formatter(std::make_unique<JsonFormatter>());
  } else if (format == "text") {
    logger->set_formatter(std::make_unique<TextFormatter>());
  } else {
    return absl::InvalidArgumentError(
        absl::StrCat("log format '", format, "' is not one of text, json"));
  }
  const spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  // from_str reads what it does not know as "off".
  if (parsed == spdlog::level::off && level != "off") {
    return absl::InvalidArgumentError(
        absl::StrCat("log level '", level, "' is not one of trace, debug, info, warn, error, off"));
  }
  logger->set_level(parsed);
  logger->flush_on(spdlog::level::trace);
  spdlog::set_default_logger(std::move(logger));
  gpr_set_log_function(&LogFromGrpc);
  return absl::OkStatus();
}

}  // namespace sparsebalance
