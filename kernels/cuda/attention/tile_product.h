#pragma once

// Products of tiles in shared memory, by a warp. All attention kernels multiply here and nowhere
// else. So an architecture with other matrix instructions (wgmma of sm_90, whose operands TMA
// brings) gets another TileProduct, and its kernels another way to fill tiles (attention_tile.h).
//
// A warp's result has 16 * kRowTiles rows. sums[i][j] are the rows 16 i.. and columns 8 j.. in the
// layout of mma.sync (kernels/cuda/device/matrix.h): with g = lane / 4 and t = lane % 4, [0] and
// [1] are row g, columns 2t and 2t + 1, [2] and [3] row g + 8. The float version has the same
// layout, so that what surrounds the products is written once.
//
// Tiles have rows of kDim elements, kPitch<T, kDim> apart.

#include <cstdint>

#include "kernels/cuda/device/device.h"

namespace sparsebalance::kernels::cuda {

// 16 bytes more than a row has, so that the rows that ldmatrix reads at once lie in different
// banks.
template <typename T, int kDim>
inline constexpr int kPitch = kDim + 16 / static_cast<int>(sizeof(T));

template <typename T, int kDim>
struct TileProduct;

template <int kDim>
struct TileProduct<Bf16, kDim> {
  // Floats of shared memory that a warp needs beside the tiles.
  static constexpr int kWarpFloats = 0;

  // sums += a b^T; a [16 * kRowTiles, kDim], b [8 * kColumnTiles, kDim].
  template <int kRowTiles, int kColumnTiles>
  SB_DEVICE static void AddTransposed(SharedPtr<const Bf16> a, SharedPtr<const Bf16> b,
                                      float (&sums)[kRowTiles][kColumnTiles][4]) {
    static_assert(kColumnTiles % 2 == 0);
    const int lane = LaneId();
    const SharedPtr<const Bf16> a_row = a + (lane % 16 * kPitch<Bf16, kDim> + lane / 16 * 8);
    const SharedPtr<const Bf16> b_row =
        b + ((lane / 16 * 8 + lane % 8) * kPitch<Bf16, kDim> + lane / 8 % 2 * 8);
    SB_UNROLL
    for (int d = 0; d < kDim; d += 16) {
      uint32_t a_parts[kRowTiles][4];
      SB_UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        LdMatrixX4(a_parts[i], a_row + (16 * i * kPitch<Bf16, kDim> + d));
      }
      SB_UNROLL
      for (int j = 0; j < kColumnTiles; j += 2) {
        uint32_t b_parts[4];
        LdMatrixX4(b_parts, b_row + (8 * j * kPitch<Bf16, kDim> + d));
        Multiply(a_parts, b_parts, j, sums);
      }
    }
  }

  // sums += p b; p [16 * kRowTiles, 8 * kDepthTiles] is in registers, laid out as sums are, and is
  // rounded to bf16; b [8 * kDepthTiles, kDim].
  template <int kRowTiles, int kDepthTiles>
  SB_DEVICE static void Add(const float (&p)[kRowTiles][kDepthTiles][4], SharedPtr<const Bf16> b,
                            SharedPtr<float> /*warp_floats*/,
                            float (&sums)[kRowTiles][kDim / 8][4]) {
    static_assert(kDepthTiles % 2 == 0);
    const int lane = LaneId();
    const SharedPtr<const Bf16> b_row = b + (lane % 16 * kPitch<Bf16, kDim> + lane / 16 * 8);
    SB_UNROLL
    for (int step = 0; step < kDepthTiles; step += 2) {
      // Two results side by side hold the elements of one operand.
      uint32_t a_parts[kRowTiles][4];
      SB_UNROLL
      for (int i = 0; i < kRowTiles; ++i) {
        const float(&left)[4] = p[i][step];
        const float(&right)[4] = p[i][step + 1];
        a_parts[i][0] = PackBf16(left[0], left[1]);
        a_parts[i][1] = PackBf16(left[2], left[3]);
        a_parts[i][2] = PackBf16(right[0], right[1]);
        a_parts[i][3] = PackBf16(right[2], right[3]);
      }
      SB_UNROLL
      for (int j = 0; j < kDim / 8; j += 2) {
        uint32_t b_parts[4];
        LdMatrixX4Trans(b_parts, b_row + (8 * step * kPitch<Bf16, kDim> + 8 * j));
        Multiply(a_parts, b_parts, j, sums);
      }
    }
  }

 private:
  // Column tiles j and j + 1.
  template <int kRowTiles, int kColumnTiles>
  SB_DEVICE static void Multiply(const uint32_t (&a)[kRowTiles][4], const uint32_t (&b)[4], int j,
                                 float (&sums)[kRowTiles][kColumnTiles][4]) {
    const uint32_t left[2] = {b[0], b[1]};
    const uint32_t right[2] = {b[2], b[3]};
    SB_UNROLL
    for (int i = 0; i < kRowTiles; ++i) {
      MmaM16N8K16(sums[i][j], a[i], left, sums[i][j]);
      MmaM16N8K16(sums[i][j + 1], a[i], right, sums[i][j + 1]);
    }
  }
};

// For tests and small models: right to fp32, and slow.
template <int kDim>
struct TileProduct<float, kDim> {
  static constexpr int kDepth = 32;  // of Add
  static constexpr int kDepthPitch = kDepth + 4;
  static constexpr int kWarpFloats = 16 * kDepthPitch;

  template <int kColumnTiles>
  SB_DEVICE static void AddTransposed(SharedPtr<const float> a, SharedPtr<const float> b,
                                      float (&sums)[1][kColumnTiles][4]) {
    constexpr int kRow = kPitch<float, kDim>;
    const SharedPtr<const float> a_row = a + LaneId() / 4 * kRow;
    const SharedPtr<const float> b_row = b + LaneId() % 4 * 2 * kRow;
    for (int d = 0; d < kDim; d += 4) {
      const float4 upper = LoadVec<float4>(a_row + d);
      const float4 lower = LoadVec<float4>(a_row + (8 * kRow + d));
      SB_UNROLL
      for (int j = 0; j < kColumnTiles; ++j) {
        const float4 left = LoadVec<float4>(b_row + (8 * j * kRow + d));
        const float4 right = LoadVec<float4>(b_row + ((8 * j + 1) * kRow + d));
        AddDot(upper, left, sums[0][j][0]);
        AddDot(upper, right, sums[0][j][1]);
        AddDot(lower, left, sums[0][j][2]);
        AddDot(lower, right, sums[0][j][3]);
      }
    }
  }

  template <int kDepthTiles>
  SB_DEVICE static void Add(const float (&p)[1][kDepthTiles][4], SharedPtr<const float> b,
                            SharedPtr<float> warp_floats, float (&sums)[1][kDim / 8][4]) {
    static_assert(8 * kDepthTiles == kDepth);
    const int column = LaneId() % 4 * 2;
    const SharedPtr<float> upper = warp_floats + LaneId() / 4 * kDepthPitch;
    const SharedPtr<float> lower = upper + 8 * kDepthPitch;
    SB_UNROLL
    for (int j = 0; j < kDepthTiles; ++j) {
      StoreVec(upper + (8 * j + column), float2{p[0][j][0], p[0][j][1]});
      StoreVec(lower + (8 * j + column), float2{p[0][j][2], p[0][j][3]});
    }
    SyncWarp();
    for (int k = 0; k < kDepth; ++k) {
      const float above = upper[k];
      const float below = lower[k];
      SB_UNROLL
      for (int j = 0; j < kDim / 8; ++j) {
        const float2 two = LoadVec<float2>(b + (k * kPitch<float, kDim> + 8 * j + column));
        sums[0][j][0] += above * two.x;
        sums[0][j][1] += above * two.y;
        sums[0][j][2] += below * two.x;
        sums[0][j][3] += below * two.y;
      }
    }
    SyncWarp();  // The next call writes there again.
  }

 private:
  SB_DEVICE static void AddDot(const float4& a, const float4& b, float& sum) {
    sum += a.x * b.x;
    sum += a.y * b.y;
    sum += a.z * b.z;
    sum += a.w * b.w;
  }
};

}  // namespace sparsebalance::kernels::cuda
