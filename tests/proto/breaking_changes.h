// What of a wire contract an older program would no longer understand.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/descriptor.pb.h"

namespace sparsebalance {

// Sentences, one for each change that breaks programs built from `before` when they talk to
// programs built from `after`, in either direction: messages, fields, enum values, services or RPCs
// that are gone or mean something else, and numbers or names that are used again. A field or enum
// value may go where both its number and its name are reserved. Comments and options count for
// nothing.
std::vector<std::string> BreakingChanges(const google::protobuf::FileDescriptorSet& before,
                                         const google::protobuf::FileDescriptorSet& after);

}  // namespace sparsebalance
