// The one version of all programs: PROJECT_VERSION of the top CMakeLists.txt.
#pragma once

#include <string>

namespace sparsebalance {

inline constexpr char kVersion[] = SPARSEBALANCE_VERSION;

// What --version prints, and what a program calls itself to others: "sbctl 0.1.0".
inline std::string VersionText(const std::string& program) { return program + " " + kVersion; }

}  // namespace sparsebalance
