#include "worker/verbs/verb_main.h"

#include <iostream>
#include <string>

#include "worker/train/exit_codes.h"

namespace sparsebalance {

int RunVerb(CLI::App& app, int argc, char** argv, const std::function<absl::Status()>& run) {
  try {
    app.parse(argc, argv);
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
