#include "coordinator/service/batch_digest.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>

namespace sparsebalance {
namespace {

void AppendLittleEndian(std::string& bytes, uint64_t value) {
  for (int shift = 0; shift < 64; shift += 8) {
    bytes.push_back(static_cast<char>((value >> shift) & 0xff));
  }
}

bool UsesLookahead(const v1::GlobalBatch& batch) {
  return !batch.following().empty() ||
         std::any_of(batch.sequences().begin(), batch.sequences().end(),
                     [](const v1::BatchSequence& s) { return s.deferred_steps() != 0; });
}

}  // namespace

uint64_t BatchDigest(const v1::GlobalBatch& batch) {
  std::string bytes;
  bytes.reserve(16 + 24 * static_cast<size_t>(batch.sequences_size()));
  AppendLittleEndian(bytes, batch.step());
  AppendLittleEndian(bytes, batch.epoch());
  for (const v1::BatchSequence& sequence : batch.sequences()) {
    AppendLittleEndian(bytes, sequence.id());
    AppendLittleEndian(bytes, sequence.tokens());
    AppendLittleEndian(bytes, sequence.supervised_tokens());
  }
  if (UsesLookahead(batch)) {
    AppendLittleEndian(bytes, static_cast<uint64_t>(batch.sequences_size()));
    for (const v1::BatchSequence& sequence : batch.sequences()) {
      AppendLittleEndian(bytes, sequence.deferred_steps());
    }
    for (const v1::FollowingBatch& following : batch.following()) {
      AppendLittleEndian(bytes, following.step());
      AppendLittleEndian(bytes, static_cast<uint64_t>(following.sequences_size()));
      for (const v1::BatchSequence& sequence : following.sequences()) {
        AppendLittleEndian(bytes, sequence.id());
        AppendLittleEndian(bytes, sequence.tokens());
        AppendLittleEndian(bytes, sequence.supervised_tokens());
        AppendLittleEndian(bytes, sequence.deferred_steps());
      }
    }
  }
  std::array<unsigned char, SHA256_DIGEST_LENGTH> hash;
  SHA256(reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), hash.data());
  uint64_t digest = 0;
  for (size_t i = 0; i < 8; ++i) digest = digest << 8 | hash[i];
  return digest;
}

}  // namespace sparsebalance
