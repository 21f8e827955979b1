// Stable bytes and digests of messages, the same on any machine and in any process.
#pragma once

#include <cstdint>
#include <string>

#include "google/protobuf/message_lite.h"

namespace sparsebalance::planner {

// Field order and map order are fixed. Messages that are digested hold no maps all the same.
std::string SerializeDeterministically(const google::protobuf::MessageLite& message);

// First eight bytes of SHA-256 over the bytes above, read as a big-endian integer.
uint64_t Digest(const google::protobuf::MessageLite& message);

}  // namespace sparsebalance::planner
