// What nodes have recorded of a run, and what must hold of it whatever went wrong meanwhile.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "sparsebalance/v1/plan.pb.h"

namespace sparsebalance::chaos {

// The plan records of one node in the order in which it wrote them, over all its lives.
struct NodeHistory {
  std::string node;
  std::vector<v1::PlanRecord> records;
};

// Reads one file a node from a folder of plan records. Lines that a kill has cut off are the last
// of a life and are passed over.
std::vector<NodeHistory> ReadHistories(const std::string& folder);

struct RunFacts {
  uint64_t steps = 0;
  uint64_t sequences = 0;  // of the data set
  uint64_t batch = 0;      // sequences a step
};

// What is wrong with the run, in words; empty where nothing is:
//  - every step was run by every node, and in its last run all nodes used one plan;
//  - in these last runs each sequence was trained as often as the epochs that the run is long;
//  - within a life leader epochs and generations never fall, and a step is never planned twice.
std::vector<std::string> Objections(const std::vector<NodeHistory>& nodes, const RunFacts& run);

}  // namespace sparsebalance::chaos
