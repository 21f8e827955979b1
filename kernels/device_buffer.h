#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

namespace sparsebalance::kernels {

class Backend;

// A view of `size` elements in a backend's memory. Copyable, owns nothing. Only backends can
// get at the address: everything else moves data with Backend::CopyToHost and CopyToDevice.
template <typename T>
class DeviceSpan {
 public:
  DeviceSpan() = default;

  // A view of mutable elements is also a view of constant ones.
  template <typename U, typename = std::enable_if_t<std::is_same_v<const U, T>>>
  DeviceSpan(const DeviceSpan<U>& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data_), size_(other.size_) {}

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Elements [begin, begin + count). Requires 0 <= begin and begin + count <= size().
  DeviceSpan Slice(int64_t begin, int64_t count) const { return DeviceSpan(data_ + begin, count); }
  DeviceSpan Slice(int64_t begin) const { return Slice(begin, size_ - begin); }

 private:
  template <typename U>
  friend class DeviceSpan;
  template <typename U>
  friend class DeviceArray;
  friend struct DeviceAccess;

  DeviceSpan(T* data, int64_t size) : data_(data), size_(size) {}

  T* data_ = nullptr;
  int64_t size_ = 0;
};

using DeviceBuffer = DeviceSpan<float>;
using ConstDeviceBuffer = DeviceSpan<const float>;

// Owns memory of one backend and gives it back on destruction. Movable. The backend must outlive
// it.
template <typename T>
class DeviceArray {
 public:
  DeviceArray() = default;
  DeviceArray(DeviceArray&& other) noexcept
      : backend_(std::exchange(other.backend_, nullptr)),
        span_(std::exchange(other.span_, DeviceSpan<T>())) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    if (this != &other) {
      Release();
      backend_ = std::exchange(other.backend_, nullptr);
      span_ = std::exchange(other.span_, DeviceSpan<T>());
    }
    return *this;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { Release(); }

  DeviceSpan<T> span() const { return span_; }
  int64_t size() const { return span_.size(); }

 private:
  friend class Backend;

  DeviceArray(Backend* backend, T* data, int64_t size) : backend_(backend), span_(data, size) {}
  void Release();

  Backend* backend_ = nullptr;
  DeviceSpan<T> span_;
};

// For implementations of Backend only.
struct DeviceAccess {
  template <typename T>
  static T* Data(DeviceSpan<T> span) {
    return span.data_;
  }
};

}  // namespace sparsebalance::kernels
