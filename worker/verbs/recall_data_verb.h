#pragma once

namespace sparsebalance {

// `sparsebalance-worker recall-data`: writes the recall task as a data set to train on.
int RunRecallDataVerb(int argc, char** argv);

}  // namespace sparsebalance
