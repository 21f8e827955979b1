// Registers of ldmatrix and mma.sync lie where the PTX ISA says, also where one side of a product
// comes from ldmatrix and the other does not.

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cuda/device/device.h"
#include "kernels/cuda/device/launch.h"
#include "kernels/emulation/test_util.h"

namespace sparsebalance::kernels::emulation {
namespace {

using cuda::Bf16;
using cuda::DevicePtr;
using cuda::LaneId;
using cuda::Launch;

uint32_t Pair(Bf16 low, Bf16 high) { return low.bits | (uint32_t{high.bits} << 16); }

// c [16, 8] = a [16, 16] b [16, 8].
template <bool kLoadA, bool kLoadB>
void Product(DevicePtr<const Bf16> a, DevicePtr<const Bf16> b, DevicePtr<float> c) {
  SB_SHARED_ARRAY(Bf16, a_tile, 256);
  SB_SHARED_ARRAY(Bf16, b_tile, 128);
  const int lane = LaneId();
  for (int i = lane; i < 256; i += 32) a_tile[i] = a[i];
  for (int i = lane; i < 128; i += 32) b_tile[i] = b[i];
  cuda::SyncWarp();
  uint32_t a_registers[4];
  uint32_t b_registers[2];
  const int group = lane >> 2;
  const int in_group = lane % 4;
  if constexpr (kLoadA) {
    cuda::LdMatrixX4(a_registers, a_tile + lane % 16 * 16 + lane / 16 * 8);
  } else {
    // Element i of the fragment, two a register: "Matrix Fragments for mma.m16n8k16".
    for (int i = 0; i < 8; i += 2) {
      const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
      const int column = in_group * 2 + (i >= 4 ? 8 : 0);
      a_registers[i / 2] = Pair(a[row * 16 + column], a[row * 16 + column + 1]);
    }
  }
  if constexpr (kLoadB) {
    cuda::LdMatrixX2Trans(b_registers, b_tile + lane % 16 * 8);
  } else {
    for (int i = 0; i < 4; i += 2) {
      const int row = in_group * 2 + (i >= 2 ? 8 : 0);
      b_registers[i / 2] = Pair(b[row * 8 + group], b[(row + 1) * 8 + group]);
    }
  }
  float sums[4] = {};
  cuda::MmaM16N8K16(sums, a_registers, b_registers, sums);
  for (int i = 0; i < 4; ++i) {
    c[(i < 2 ? group : group + 8) * 8 + in_group * 2 + i % 2] = sums[i];
  }
}

TEST(MatrixTest, FragmentsLieWhereThePtxIsaSays) {
  Device device;
  const std::vector<Bf16> a = RandomBf16(256, 11);
  const std::vector<Bf16> b = RandomBf16(128, 12);
  const auto a_device = Upload(device, a, "a");
  const auto b_device = Upload(device, b, "b");
  const auto c_device = device.Allocate<float>(128, "c").value();
  for (auto* kernel : {&Product<false, false>, &Product<true, false>, &Product<false, true>,
                       &Product<true, true>}) {
    ASSERT_EQ(Launch(kernel, {.block = {32}}, &device, a_device, b_device, c_device),
              absl::OkStatus());
    const std::vector<float> c = Download(device, c_device, 128);
    for (int row = 0; row < 16; ++row) {
      for (int column = 0; column < 8; ++column) {
        double expected = 0;
        for (int k = 0; k < 16; ++k) {
          expected += double{static_cast<float>(a[row * 16 + k])} *
                      double{static_cast<float>(b[k * 8 + column])};
        }
        EXPECT_NEAR(c[row * 8 + column], expected, 1e-5) << row << ", " << column;
      }
    }
  }
}

// What each lane gets of four matrices whose elements are numbers: 64 matrix + 8 row + column.
template <bool kTransposed>
void Registers(DevicePtr<uint32_t> out) {
  SB_SHARED_ARRAY(uint16_t, matrices, 256);
  const int lane = LaneId();
  for (int i = lane; i < 256; i += 32) matrices[i] = static_cast<uint16_t>(i);
  cuda::SyncWarp();
  uint32_t registers[4];
  if constexpr (kTransposed) {
    cuda::LdMatrixX4Trans(registers, matrices + 8 * lane);
  } else {
    cuda::LdMatrixX4(registers, matrices + 8 * lane);
  }
  for (int m = 0; m < 4; ++m) out[lane * 4 + m] = registers[m];
}

TEST(MatrixTest, LdMatrixGivesEachLaneTwoNeighboursOfARowOrOfAColumn) {
  Device device;
  const auto out = device.Allocate<uint32_t>(128, "out").value();
  for (const bool transposed : {false, true}) {
    ASSERT_EQ(
        Launch(transposed ? Registers<true> : Registers<false>, {.block = {32}}, &device, out),
        absl::OkStatus());
    const std::vector<uint32_t> got = Download(device, out, 128);
    for (uint32_t lane = 0; lane < 32; ++lane) {
      for (uint32_t m = 0; m < 4; ++m) {
        const uint32_t major = lane / 4;
        const uint32_t minor = lane % 4 * 2;
        const uint32_t first = 64 * m + (transposed ? 8 * minor + major : 8 * major + minor);
        EXPECT_EQ(got[lane * 4 + m], first | ((first + (transposed ? 8 : 1)) << 16));
      }
    }
  }
}

}  // namespace
}  // namespace sparsebalance::kernels::emulation
