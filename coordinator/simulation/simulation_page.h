// One self-contained HTML page about a simulation: figures by policy, the schedule of its first
// step drawn as a timeline for each policy, and the distributions of lengths, budgets and coverage.
#pragma once

#include <string>

#include "coordinator/simulation/simulator.h"

namespace sparsebalance::simulation {

// No script and nothing loaded from elsewhere; readable in light and dark mode.
std::string SimulationPage(const SimulationOptions& options, const SimulationResult& result);

}  // namespace sparsebalance::simulation
