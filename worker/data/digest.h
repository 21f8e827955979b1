// Digests that ranks, files and services compare: SHA-256, of which the first 8 bytes are taken as
// a little-endian number where 64 bits do.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

namespace sparsebalance::data {

class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(std::span<const std::byte> bytes);
  void Add(std::string_view text);
  void AddU64(uint64_t value);  // 8 bytes, little-endian

  // Ends the digest; call one of them, once.
  std::string Hex();
  uint64_t Truncated64();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace sparsebalance::data
