// ldmatrix and mma.sync, computed once for the whole warp by its last lane. Fragments are laid out
// as kernels/cuda/device/matrix.h says.

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "kernels/emulation/executor.h"

namespace sparsebalance::kernels::emulation {
namespace {

constexpr uint32_t kFullWarp = ~uint32_t{0};

void RequireFullWarp(const Thread& thread, Operation operation) {
  if (thread.executor->lanes_of_warp(thread) != kFullWarp) {
    Fail(absl::StrCat(Name(operation), " in a warp of fewer than 32 threads"));
  }
}

struct LdMatrixOperand {
  uint32_t* registers;
  int count;
  bool transposed;
  const std::byte* row;
};

void CompleteLdMatrix(const WarpOperation& operation) {
  const auto operand = [&operation](int lane) -> const LdMatrixOperand& {
    return *static_cast<const LdMatrixOperand*>(operation.operands[lane]);
  };
  const LdMatrixOperand first = operand(0);
  for (int m = 0; m < first.count; ++m) {
    std::array<std::array<uint16_t, 8>, 8> matrix;
    for (int row = 0; row < 8; ++row) {
      std::memcpy(matrix[row].data(), operand(8 * m + row).row, 16);
    }
    for (int lane = 0; lane < kWarpSize; ++lane) {
      const int g = lane / 4;
      const int t = lane % 4;
      const uint32_t low = first.transposed ? matrix[2 * t][g] : matrix[g][2 * t];
      const uint32_t high = first.transposed ? matrix[2 * t + 1][g] : matrix[g][2 * t + 1];
      operand(lane).registers[m] = low | (high << 16);
    }
  }
}

struct MmaOperand {
  float* d;
  const uint32_t* a;
  const uint32_t* b;
  const float* c;
};

float LowBf16(uint32_t pair) { return std::bit_cast<float>(pair << 16); }
float HighBf16(uint32_t pair) { return std::bit_cast<float>(pair & 0xFFFF0000U); }

void CompleteMma(const WarpOperation& operation) {
  alignas(64) float a[16][16];
  alignas(64) float b[16][8];
  alignas(64) float d[16][8];
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const MmaOperand& operand = *static_cast<const MmaOperand*>(operation.operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      a[g][t + 8 * half] = LowBf16(operand.a[2 * half]);
      a[g][t + 8 * half + 1] = HighBf16(operand.a[2 * half]);
      a[g + 8][t + 8 * half] = LowBf16(operand.a[2 * half + 1]);
      a[g + 8][t + 8 * half + 1] = HighBf16(operand.a[2 * half + 1]);
      b[t + 8 * half][g] = LowBf16(operand.b[half]);
      b[t + 8 * half + 1][g] = HighBf16(operand.b[half]);
      d[g + 8 * half][t] = operand.c[2 * half];
      d[g + 8 * half][t + 1] = operand.c[2 * half + 1];
    }
  }
  // A device adds the products of an element in an order, and with a rounding, of its own.
  for (int i = 0; i < 16; ++i) {
    float row[8];
    std::memcpy(row, d[i], sizeof(row));
    for (int k = 0; k < 16; ++k) {
      const float factor = a[i][k];
      for (int j = 0; j < 8; ++j) row[j] += factor * b[k][j];
    }
    std::memcpy(d[i], row, sizeof(row));
  }
  for (int lane = 0; lane < kWarpSize; ++lane) {
    const MmaOperand& operand = *static_cast<const MmaOperand*>(operation.operands[lane]);
    const int g = lane / 4;
    const int t = lane % 4 * 2;
    for (int half = 0; half < 2; ++half) {
      operand.d[2 * half] = d[g + 8 * half][t];
      operand.d[2 * half + 1] = d[g + 8 * half][t + 1];
    }
  }
}

}  // namespace

void LoadMatrices(uint32_t* registers, int count, bool transposed, const std::byte* row,
                  const CallSite& site) {
  Thread& thread = CurrentThread();
  RequireFullWarp(thread, Operation::kLdMatrix);
  LdMatrixOperand operand{registers, count, transposed, row};
  thread.executor->Gather(thread, Operation::kLdMatrix, kFullWarp, site, &operand,
                          &CompleteLdMatrix);
}

void MultiplyMatrices(float* d, const uint32_t* a, const uint32_t* b, const float* c,
                      const CallSite& site) {
  Thread& thread = CurrentThread();
  RequireFullWarp(thread, Operation::kMma);
  MmaOperand operand{d, a, b, c};
  thread.executor->Gather(thread, Operation::kMma, kFullWarp, site, &operand, &CompleteMma);
}

}  // namespace sparsebalance::kernels::emulation
