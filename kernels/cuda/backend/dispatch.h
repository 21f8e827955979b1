#pragma once

// From element types that are known at run time to those of kernels.

#include "kernels/cuda/device/bf16.h"
#include "kernels/device_buffer.h"

namespace sparsebalance::kernels::cuda {

template <typename T>
struct TypeTag {
  using Type = T;
};

// run(TypeTag<float>()) or run(TypeTag<Bf16>()).
template <typename Run>
auto Dispatch(ElementType type, Run run) {
  return type == ElementType::kFloat32 ? run(TypeTag<float>()) : run(TypeTag<Bf16>());
}

}  // namespace sparsebalance::kernels::cuda
