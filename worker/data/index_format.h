// The byte layout of PREFIX.idx (Megatron's indexed dataset, version 1) and PREFIX.mask (ours).
// All integers are little-endian.
//
// PREFIX.idx:  "MMIDIDX\0\0" | u64 version = 1 | u8 dtype code | u64 sequences | u64 documents |
//              i32 size[sequences], in tokens | i64 pointer[sequences], byte offset in PREFIX.bin |
//              i64 document[documents], first sequence of each document; from 0 to `sequences`
//
// PREFIX.mask: "SBLMASK\0" | u64 version = 1 | u64 sequences | u64 tokens | bits
//              One bit a token, the lowest bit of a byte first, sequences by id without gaps;
//              unused bits of the last byte are 0. A bit and not a byte, because tokens mostly take
//              two bytes: a byte a token would make a dataset half as large again, a bit a
//              sixteenth.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>

namespace sparsebalance::data {

static_assert(std::endian::native == std::endian::little, "files are read in host order");

inline constexpr std::string_view kIndexMagic("MMIDIDX\0\0", 9);
inline constexpr uint64_t kIndexVersion = 1;
inline constexpr size_t kIndexHeaderBytes = 9 + 8 + 1 + 8 + 8;

inline constexpr std::string_view kMaskMagic("SBLMASK\0", 8);
inline constexpr uint64_t kMaskVersion = 1;
inline constexpr size_t kMaskHeaderBytes = 8 + 8 + 8 + 8;

// Unaligned: the index has an odd header. `offset` must be in bounds.
template <typename T>
T LoadAt(std::span<const std::byte> bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof(value));
  return value;
}

}  // namespace sparsebalance::data
