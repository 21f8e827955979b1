#include "kernels/backend.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/coverage_guard.h"
#include "kernels/cuda/device/bf16.h"
#include "kernels/op_checks.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels {

namespace {

absl::Status SizesDiffer(const char* op, int64_t from, int64_t to) {
  return absl::InvalidArgumentError(absl::StrCat(op, ": ", from, " elements for a view of ", to));
}

}  // namespace

absl::StatusOr<Routing> Backend::Route(const AttentionShape& shape, const AttentionLayout& layout,
                                       ConstDeviceBuffer q, ConstDeviceBuffer means,
                                       const RoutingRequest& request) {
  class Known final : public PendingRouting {
   public:
    explicit Known(RoutingFacts facts) : facts_(std::move(facts)) {}
    absl::StatusOr<RoutingFacts> Read() override { return std::move(facts_); }

   private:
    RoutingFacts facts_;
  };
  const PackedBlocks& blocks = layout.blocks();
  SB_RETURN_IF_ERROR(op_checks::Route(blocks, request));
  RoutingFacts facts;
  SB_ASSIGN_OR_RETURN(facts.coverage,
                      CoverageCurves(shape, layout, q, means, request.sample_stride));
  for (int64_t s = 0; s < blocks.sequences(); ++s) {
    facts.realized_budgets.push_back(RealizedBudget(blocks.SequenceBlocks(s), facts.coverage[s],
                                                    request.planned[s], request.base[s],
                                                    request.coverage_guard));
  }
  Routing out;
  SB_ASSIGN_OR_RETURN(out.lists, SelectBlocks(shape, layout, q, means, facts.realized_budgets));
  out.facts = std::make_unique<Known>(std::move(facts));
  return out;
}

absl::StatusOr<DeviceTensor> Backend::AllocateTensor(int64_t count, ElementType type,
                                                     MemoryPurpose purpose) {
  SB_ASSIGN_OR_RETURN(DeviceArray<std::byte> bytes,
                      Allocate<std::byte>(count * ElementBytes(type), purpose));
  return DeviceTensor(std::move(bytes), count, type);
}

absl::Status Backend::CopyToDevice(const std::vector<float>& from, DeviceBuffer to) {
  const auto count = static_cast<int64_t>(from.size());
  if (count != to.size()) return SizesDiffer("CopyToDevice", count, to.size());
  return CopyToDevice(from.data(), to);
}

absl::Status Backend::CopyToDevice(const float* from, DeviceBuffer to) {
  const int64_t bytes = to.size() * ElementBytes(to.type());
  if (to.type() == ElementType::kFloat32) {
    return CopyBytes(from, DeviceAccess::Data(to), bytes, CopyKind::kToDevice);
  }
  const std::vector<cuda::Bf16> rounded(from, from + to.size());
  return CopyBytes(rounded.data(), DeviceAccess::Data(to), bytes, CopyKind::kToDevice);
}

absl::Status Backend::CopyToHost(ConstDeviceBuffer from, float* to) {
  const int64_t bytes = from.size() * ElementBytes(from.type());
  if (from.type() == ElementType::kFloat32) {
    return CopyBytes(DeviceAccess::Data(from), to, bytes, CopyKind::kToHost);
  }
  std::vector<cuda::Bf16> rounded(static_cast<size_t>(from.size()));
  SB_RETURN_IF_ERROR(CopyBytes(DeviceAccess::Data(from), rounded.data(), bytes, CopyKind::kToHost));
  std::transform(rounded.begin(), rounded.end(), to,
                 [](cuda::Bf16 x) { return static_cast<float>(x); });
  return absl::OkStatus();
}

absl::Status Backend::CopyDeviceToDevice(ConstDeviceBuffer from, DeviceBuffer to) {
  if (from.size() != to.size()) {
    return SizesDiffer("CopyDeviceToDevice", from.size(), to.size());
  }
  if (from.type() != to.type()) return Convert(from, to);
  return CopyBytes(DeviceAccess::Data(from), DeviceAccess::Data(to),
                   from.size() * ElementBytes(from.type()), CopyKind::kDeviceToDevice);
}

}  // namespace sparsebalance::kernels
