#pragma once

namespace sparsebalance {

// sparsebalance-worker convert: writes a model as a Hugging Face folder.
int RunConvertVerb(int argc, char** argv);

}  // namespace sparsebalance
