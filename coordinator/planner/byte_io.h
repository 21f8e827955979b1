// Little-endian bytes for what a store keeps.
#pragma once

#include <bit>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

namespace sparsebalance::planner {

class ByteWriter {
 public:
  template <class T>
  void Integer(T value) {
    auto bits = static_cast<uint64_t>(value);
    for (size_t i = 0; i < sizeof(T); ++i, bits >>= 8) bytes_.push_back(static_cast<char>(bits));
  }
  void Double(double value) { Integer(std::bit_cast<uint64_t>(value)); }
  std::string Take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Reads zeros past the end; `ok` tells.
class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}

  template <class T>
  T Integer() {
    if (bytes_.size() < sizeof(T)) {
      ok_ = false;
      bytes_ = {};
      return T{0};
    }
    uint64_t bits = 0;
    for (size_t i = 0; i < sizeof(T); ++i) {
      bits |= uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    }
    bytes_.remove_prefix(sizeof(T));
    return static_cast<T>(bits);
  }
  double Double() { return std::bit_cast<double>(Integer<uint64_t>()); }

  bool ok() const { return ok_; }
  bool AtEnd() const { return bytes_.empty(); }
  size_t left() const { return bytes_.size(); }

 private:
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace sparsebalance::planner
