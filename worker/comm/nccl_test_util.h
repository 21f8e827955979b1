// A buffer on a FakeGpu with a stream of its own, for tests.
#pragma once

#include <cstring>
#include <vector>

#include "worker/comm/communicator.h"
#include "worker/comm/fake_nccl.h"

namespace sparsebalance::comm_testing {

class DeviceFloats {
 public:
  DeviceFloats(FakeGpu& gpu, const std::vector<float>& values) : gpu_(gpu), size_(values.size()) {
    (void)gpu_.CreateStream(&stream_);
    (void)gpu_.AllocateDevice(&data_, size_ * sizeof(float));
    if (size_ > 0) std::memcpy(data_, values.data(), size_ * sizeof(float));
  }
  ~DeviceFloats() { (void)gpu_.FreeDevice(data_); }
  DeviceFloats(const DeviceFloats&) = delete;
  DeviceFloats& operator=(const DeviceFloats&) = delete;

  void* stream() const { return stream_; }
  FloatBuffer buffer() const { return buffer_on(stream_); }
  FloatBuffer buffer_on(void* stream) const {
    return FloatBuffer::Device(static_cast<float*>(data_), size_, stream);
  }
  // Without any wait: for when nothing can be under way.
  std::vector<float> Read() const {
    std::vector<float> values(size_);
    if (size_ > 0) std::memcpy(values.data(), data_, size_ * sizeof(float));
    return values;
  }

 private:
  FakeGpu& gpu_;
  const size_t size_;
  void* stream_ = nullptr;
  void* data_ = nullptr;
};

}  // namespace sparsebalance::comm_testing
