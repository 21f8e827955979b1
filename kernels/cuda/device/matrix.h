#pragma once

// ldmatrix and mma.sync: products of small bf16 matrices whose elements are spread over a warp.
// With g = lane / 4 and t = lane % 4, a register holds two neighbours (low half first):
//
//   a[0..3]  (16 x 16) rows g, g+8, g, g+8; columns 2t, 2t+1, of a[2] and a[3] 8 further
//   b[0..1]  (16 x 8)  rows 2t, 2t+1, of b[1] 8 further; column g
//   c, d     (16 x 8)  [0], [1]: row g, columns 2t, 2t+1; [2], [3]: row g + 8
//
// LdMatrix loads 8 x 8 matrices: lane l of the first 8, 16 or 32 lanes (X1, X2, X4) points at the
// 16 bytes of row l % 8 of matrix l / 8, and gets row g, columns 2t and 2t + 1 of each matrix in a
// register. So a row-major A needs X4 with the upper left, lower left, upper right and lower right
// matrix; a B that is stored as [n, k] needs X2, one that is stored as [k, n] X2Trans.

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/memory.h"

namespace sparsebalance::kernels::cuda {

namespace internal {

#if defined(__CUDACC__)

template <typename T>
SB_DEVICE inline unsigned SharedAddress(const T* pointer) {
  static_assert(sizeof(T) == 2);
  return static_cast<unsigned>(__cvta_generic_to_shared(pointer));
}

#else

template <typename T>
void LdMatrix(uint32_t* registers, int count, bool transposed, SharedPtr<T> row,
              const emulation::CallSite& site) {
  static_assert(sizeof(T) == 2);
  const bool used = emulation::current_thread->linear % emulation::kWarpSize < 8 * count;
  emulation::LoadMatrices(registers, count, transposed, used ? row.Check(0, 16, 16) : nullptr,
                          site);
}

#endif

}  // namespace internal

#if defined(__CUDACC__)

template <typename T>
SB_DEVICE inline void LdMatrixX1(uint32_t (&registers)[1], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];\n"
               : "=r"(registers[0])
               : "r"(internal::SharedAddress(row))
               : "memory");
}
template <typename T>
SB_DEVICE inline void LdMatrixX1Trans(uint32_t (&registers)[1], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];\n"
               : "=r"(registers[0])
               : "r"(internal::SharedAddress(row))
               : "memory");
}
template <typename T>
SB_DEVICE inline void LdMatrixX2(uint32_t (&registers)[2], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(internal::SharedAddress(row))
               : "memory");
}
template <typename T>
SB_DEVICE inline void LdMatrixX2Trans(uint32_t (&registers)[2], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(registers[0]), "=r"(registers[1])
               : "r"(internal::SharedAddress(row))
               : "memory");
}
template <typename T>
SB_DEVICE inline void LdMatrixX4(uint32_t (&registers)[4], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(internal::SharedAddress(row))
               : "memory");
}
template <typename T>
SB_DEVICE inline void LdMatrixX4Trans(uint32_t (&registers)[4], const T* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(registers[0]), "=r"(registers[1]), "=r"(registers[2]), "=r"(registers[3])
               : "r"(internal::SharedAddress(row))
               : "memory");
}

// d = a b + c; d may be c.
SB_DEVICE inline void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                  const float (&c)[4]) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};\n"
      : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "f"(c[0]), "f"(c[1]),
        "f"(c[2]), "f"(c[3]));
}

#else

template <typename T>
void LdMatrixX1(uint32_t (&registers)[1], SharedPtr<T> row SB_LAST_CALL_SITE) {
  internal::LdMatrix(registers, 1, /*transposed=*/false, row, {file, line});
}
template <typename T>
void LdMatrixX1Trans(uint32_t (&registers)[1], SharedPtr<T> row SB_LAST_CALL_SITE) {
  internal::LdMatrix(registers, 1, /*transposed=*/true, row, {file, line});
}
template <typename T>
void LdMatrixX2(uint32_t (&registers)[2], SharedPtr<T> row SB_LAST_CALL_SITE) {
  internal::LdMatrix(registers, 2, /*transposed=*/false, row, {file, line});
}
template <typename T>
void LdMatrixX2Trans(uint32_t (&registers)[2], SharedPtr<T> row SB_LAST_CALL_SITE) {
  internal::LdMatrix(registers, 2, /*transposed=*/true, row, {file, line});
}
template <typename T>
void LdMatrixX4(uint32_t (&registers)[4], SharedPtr<T> row SB_LAST_CALL_SITE) {
  internal::LdMatrix(registers, 4, /*transposed=*/false, row, {file, line});
}
template <typename T>
void LdMatrixX4Trans(uint32_t (&registers)[4], SharedPtr<T> row SB_LAST_CALL_SITE) {
  internal::LdMatrix(registers, 4, /*transposed=*/true, row, {file, line});
}

inline void MmaM16N8K16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                        const float (&c)[4] SB_LAST_CALL_SITE) {
  emulation::MultiplyMatrices(d, a, b, c, {file, line});
}

#endif

}  // namespace sparsebalance::kernels::cuda
