#pragma once

namespace sparsebalance {

// `sparsebalance-worker eval`: how well a checkpoint predicts.
int RunEvalVerb(int argc, char** argv);

}  // namespace sparsebalance
