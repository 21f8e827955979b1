#include "coordinator/planner/digest.h"

#include <openssl/sha.h>

#include "google/protobuf/io/coded_stream.h"
#include "google/protobuf/io/zero_copy_stream_impl_lite.h"

namespace sparsebalance::planner {

std::string SerializeDeterministically(const google::protobuf::MessageLite& message) {
  std::string bytes;
  {
    google::protobuf::io::StringOutputStream stream(&bytes);
    google::protobuf::io::CodedOutputStream coded(&stream);
    coded.SetSerializationDeterministic(true);
    message.SerializePartialToCodedStream(&coded);
  }
  return bytes;
}

uint64_t Digest(const google::protobuf::MessageLite& message) {
  const std::string bytes = SerializeDeterministically(message);
  unsigned char hash[SHA256_DIGEST_LENGTH];
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash);
  uint64_t digest = 0;
  for (int i = 0; i < 8; ++i) digest = digest << 8 | hash[i];
  return digest;
}

}  // namespace sparsebalance::planner
