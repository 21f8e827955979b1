#include "worker/verbs/verb_main.h"

#include <iostream>
#include <memory>
#include <string>
#include <utility>

#include "coordinator/config/arguments.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"
#include "worker/train/exit_codes.h"

namespace sparsebalance {

int RunVerb(CLI::App& app, int argc, char** argv, const std::function<absl::Status()>& run) {
  // What a verb prints is its answer: of the log only warnings, beside it.
  auto logger =
      std::make_shared<spdlog::logger>("verb", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%v");
  logger->set_level(spdlog::level::warn);
  spdlog::set_default_logger(std::move(logger));
  try {
    app.parse(ReversedArguments(app, argc, argv));
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : kExitUsage;
  }
  const absl::Status status = run();
  if (status.ok()) return 0;
  std::cerr << app.get_name() << ": " << std::string(status.message()) << std::endl;
  switch (status.code()) {
    case absl::StatusCode::kResourceExhausted:
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kPermissionDenied:
    case absl::StatusCode::kAlreadyExists:
      return kExitUsage;
    default:
      return ExitCodeOf(status);
  }
}

}  // namespace sparsebalance
