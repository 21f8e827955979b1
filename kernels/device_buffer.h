#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>
#include <utility>

namespace sparsebalance::kernels {

class Backend;
class ConstDeviceBuffer;
class DeviceBuffer;
class DeviceTensor;

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
  friend class DeviceBuffer;
  friend class ConstDeviceBuffer;
  friend class DeviceTensor;
  friend struct DeviceAccess;

  DeviceSpan(T* data, int64_t size) : data_(data), size_(size) {}

  T* data_ = nullptr;
  int64_t size_ = 0;
};

// What activations and weights are kept as. Sums and statistics are float32 everywhere.
enum class ElementType : uint8_t { kFloat32, kBfloat16 };

inline int64_t ElementBytes(ElementType type) { return type == ElementType::kFloat32 ? 4 : 2; }
inline std::string_view ElementTypeName(ElementType type) {
  return type == ElementType::kFloat32 ? "fp32" : "bf16";
}

// A view of `size` elements whose type is known at run time: what ops take, so that a model is
// written once for all types. A span of floats is such a view.
class DeviceBuffer {
 public:
  DeviceBuffer() = default;
  DeviceBuffer(DeviceSpan<float> span)  // NOLINT(google-explicit-constructor)
      : data_(span.data_), size_(span.size_) {}

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ElementType type() const { return type_; }

  // As those of DeviceSpan.
  DeviceBuffer Slice(int64_t begin, int64_t count) const {
    return {static_cast<std::byte*>(data_) + begin * ElementBytes(type_), count, type_};
  }
  DeviceBuffer Slice(int64_t begin) const { return Slice(begin, size_ - begin); }

 private:
  friend class ConstDeviceBuffer;
  friend class DeviceTensor;
  friend struct DeviceAccess;

  DeviceBuffer(void* data, int64_t size, ElementType type)
      : data_(data), size_(size), type_(type) {}

  void* data_ = nullptr;
  int64_t size_ = 0;
  ElementType type_ = ElementType::kFloat32;
};

// The same of elements that are only read.
class ConstDeviceBuffer {
 public:
  ConstDeviceBuffer() = default;
  ConstDeviceBuffer(const DeviceBuffer& other)  // NOLINT(google-explicit-constructor)
      : data_(other.data_), size_(other.size_), type_(other.type_) {}
  ConstDeviceBuffer(DeviceSpan<const float> span)  // NOLINT(google-explicit-constructor)
      : data_(span.data_), size_(span.size_) {}
  ConstDeviceBuffer(DeviceSpan<float> span)  // NOLINT(google-explicit-constructor)
      : data_(span.data_), size_(span.size_) {}

  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  ElementType type() const { return type_; }

  ConstDeviceBuffer Slice(int64_t begin, int64_t count) const {
    return {static_cast<const std::byte*>(data_) + begin * ElementBytes(type_), count, type_};
  }
  ConstDeviceBuffer Slice(int64_t begin) const { return Slice(begin, size_ - begin); }

 private:
  friend struct DeviceAccess;

  ConstDeviceBuffer(const void* data, int64_t size, ElementType type)
      : data_(data), size_(size), type_(type) {}

  const void* data_ = nullptr;
  int64_t size_ = 0;
  ElementType type_ = ElementType::kFloat32;
};

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

// Owns elements of a type that is known at run time.
class DeviceTensor {
 public:
  DeviceTensor() = default;

  DeviceBuffer span() const { return {bytes_.span().data_, size_, type_}; }
  int64_t size() const { return size_; }
  ElementType type() const { return type_; }

 private:
  friend class Backend;

  DeviceTensor(DeviceArray<std::byte> bytes, int64_t size, ElementType type)
      : bytes_(std::move(bytes)), size_(size), type_(type) {}

  DeviceArray<std::byte> bytes_;
  int64_t size_ = 0;
  ElementType type_ = ElementType::kFloat32;
};

// For implementations of Backend only.
struct DeviceAccess {
  static void* Data(DeviceBuffer buffer) { return buffer.data_; }
  static const void* Data(ConstDeviceBuffer buffer) { return buffer.data_; }
  // Of float32 buffers.
  static float* Floats(DeviceBuffer buffer) { return static_cast<float*>(buffer.data_); }
  static const float* Floats(ConstDeviceBuffer buffer) {
    return static_cast<const float*>(buffer.data_);
  }
  template <typename T>
  static T* Data(DeviceSpan<T> span) {
    return span.data_;
  }
};

}  // namespace sparsebalance::kernels
