#pragma once

// Does this machine have the instructions that the CPU kernels were compiled for?

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"

namespace sparsebalance::kernels::cpu {

// One bit for each of CpuFeatureNames(), set where the kernels may use it. A constant: reading it
// runs no code that was compiled for more than this CPU has.
extern const uint32_t kCompiledFeatures;

// By bit: "avx2", "fma" and so on, as /proc/cpuinfo names them. Empty where the architecture has
// none that are optional.
const std::vector<std::string>& CpuFeatureNames();

// The same bits for this machine.
uint32_t MachineFeatures();

// UNIMPLEMENTED that names what is missing and what to do, rather than the signal SIGILL
// later.
absl::Status CheckCpuFeatures(uint32_t compiled, uint32_t machine);

}  // namespace sparsebalance::kernels::cpu
