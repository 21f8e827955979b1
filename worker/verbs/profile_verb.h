// sparsebalance-worker profile: measures this machine's latency by length and budget, fits the
// latency model, says how well it fits, writes the profile and gives it to the coordinator.
#pragma once

namespace sparsebalance {

int RunProfileVerb(int argc, char** argv);

}  // namespace sparsebalance
