#pragma once

namespace sparsebalance {

// sparsebalance-worker inspect: shows what a model on disk consists of.
int RunInspectVerb(int argc, char** argv);

}  // namespace sparsebalance
