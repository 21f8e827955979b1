#include "kernels/cuda/backend/cuda_backend.h"
#include "kernels/cuda/backend/dispatch.h"
#include "kernels/cuda/dense/adamw.h"
#include "kernels/cuda/dense/cross_entropy.h"
#include "kernels/cuda/dense/elementwise.h"
#include "kernels/cuda/dense/embedding.h"
#include "kernels/cuda/dense/norm.h"
#include "kernels/cuda/dense/reduce.h"
#include "kernels/cuda/dense/rope.h"
#include "kernels/cuda/dense/swiglu.h"
#include "kernels/op_checks.h"
#include "kernels/status_macros.h"

namespace sparsebalance::kernels::cuda {

absl::Status CudaBackend::EmbeddingForward(int64_t columns, DeviceSpan<const int32_t> ids,
                                           ConstDeviceBuffer table, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::EmbeddingForward(columns, ids.size(), table, out));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const EmbeddingShape shape{ids.size(), columns, table.size() / columns};
  ids_unchecked_ = true;
  return Dispatch(out.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchEmbeddingForward<T, T>(stream, shape, At(ids), At<T>(table), At<T>(out),
                                        At(bad_ids_.span()));
  });
}

absl::Status CudaBackend::EmbeddingBackward(int64_t columns, DeviceSpan<const int32_t> ids,
                                            ConstDeviceBuffer out_grad, DeviceBuffer table_grad) {
  SB_RETURN_IF_ERROR(op_checks::EmbeddingBackward(columns, ids.size(), out_grad, table_grad));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const EmbeddingShape shape{ids.size(), columns, table_grad.size() / columns};
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(EmbeddingBackwardScratch(shape)));
  ids_unchecked_ = true;
  return Dispatch(out_grad.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchEmbeddingBackward<T>(stream, shape, At(ids), At<T>(out_grad),
                                      At<float>(table_grad), At(bad_ids_.span()),
                                      PtrCast<int32_t>(At(scratch.span())));
  });
}

absl::Status CudaBackend::Matmul(const MatmulShape& shape, ConstDeviceBuffer a, ConstDeviceBuffer b,
                                 ConstDeviceBuffer bias, DeviceBuffer c) {
  SB_RETURN_IF_ERROR(op_checks::Matmul(shape, a, b, bias, c));
  SB_RETURN_IF_ERROR(platform_->Activate());
  return platform_->Matmul(op_checks::WithStrides(shape),
                           {.input_type = a.type(),
                            .output_type = c.type(),
                            .a = DeviceAccess::Data(a),
                            .b = DeviceAccess::Data(b),
                            .bias = bias.empty() ? nullptr : DeviceAccess::Data(bias),
                            .c = DeviceAccess::Data(c)});
}

absl::Status CudaBackend::AddColumnSums(int64_t rows, int64_t columns, ConstDeviceBuffer x,
                                        DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::AddColumnSums(rows, columns, x, out));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(AddColumnSumsScratch(rows, columns)));
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchAddColumnSums<T>(stream, rows, columns, At<T>(x), At<float>(out),
                                  PtrCast<float>(At(scratch.span())));
  });
}

absl::Status CudaBackend::RmsNormForward(const NormShape& shape, ConstDeviceBuffer x,
                                         ConstDeviceBuffer weight, DeviceBuffer y,
                                         DeviceBuffer inverse_rms) {
  SB_RETURN_IF_ERROR(op_checks::RmsNormForward(shape, x, weight, y, inverse_rms));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchRmsNormForward<T, float>(stream, shape, At<T>(x), At<float>(weight), At<T>(y),
                                          At<float>(inverse_rms));
  });
}

absl::Status CudaBackend::RmsNormBackward(const NormShape& shape, ConstDeviceBuffer x,
                                          ConstDeviceBuffer weight, ConstDeviceBuffer inverse_rms,
                                          ConstDeviceBuffer y_grad, DeviceBuffer x_grad,
                                          DeviceBuffer weight_grad) {
  SB_RETURN_IF_ERROR(
      op_checks::RmsNormBackward(shape, x, weight, inverse_rms, y_grad, x_grad, weight_grad));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(weight_grad.empty() ? 0 : RmsNormBackwardScratch(shape)));
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchRmsNormBackward<T, float>(
        stream, shape, At<T>(x), At<float>(weight), At<float>(inverse_rms), At<T>(y_grad),
        At<T>(x_grad), weight_grad.empty() ? DevicePtr<float>(nullptr) : At<float>(weight_grad),
        PtrCast<float>(At(scratch.span())));
  });
}

absl::Status CudaBackend::RopeTable(int head_dim, double theta, DeviceSpan<const int32_t> positions,
                                    DeviceBuffer table) {
  SB_RETURN_IF_ERROR(op_checks::RopeTable(head_dim, positions.size(), table));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return LaunchRopeTable(stream, positions.size(), head_dim, theta, At(positions),
                         At<float>(table));
}

absl::Status CudaBackend::Rope(const RopeShape& shape, ConstDeviceBuffer table, bool inverse,
                               DeviceBuffer x) {
  SB_RETURN_IF_ERROR(op_checks::Rope(shape, table, x));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchRope<T>(stream, shape, At<float>(table), inverse, At<T>(x));
  });
}

absl::Status CudaBackend::SwiGluForward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                        DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::SwiGluForward(rows, columns, gate_up, out));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(out.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchSwiGluForward<T>(stream, rows, columns, At<T>(gate_up), At<T>(out));
  });
}

absl::Status CudaBackend::SwiGluBackward(int64_t rows, int64_t columns, ConstDeviceBuffer gate_up,
                                         ConstDeviceBuffer out_grad, DeviceBuffer gate_up_grad) {
  SB_RETURN_IF_ERROR(op_checks::SwiGluBackward(rows, columns, gate_up, out_grad, gate_up_grad));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(out_grad.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchSwiGluBackward<T>(stream, rows, columns, At<T>(gate_up), At<T>(out_grad),
                                   At<T>(gate_up_grad));
  });
}

absl::Status CudaBackend::Add(ConstDeviceBuffer a, ConstDeviceBuffer b, DeviceBuffer out) {
  SB_RETURN_IF_ERROR(op_checks::Add(a, b, out));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(out.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchAdd<T>(stream, out.size(), At<T>(a), At<T>(b), At<T>(out));
  });
}

absl::Status CudaBackend::Scale(float factor, DeviceBuffer x) {
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchScale<T>(stream, x.size(), factor, At<T>(x));
  });
}

absl::Status CudaBackend::Dropout(const DropoutShape& shape, DeviceSpan<const uint64_t> keys,
                                  ConstDeviceBuffer x, DeviceBuffer y) {
  SB_RETURN_IF_ERROR(op_checks::Dropout(shape, keys.size(), x, y));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchDropout<T>(stream, shape, At(keys), At<T>(x), At<T>(y));
  });
}

absl::Status CudaBackend::CrossEntropy(const CrossEntropyShape& shape, ConstDeviceBuffer logits,
                                       DeviceSpan<const int32_t> targets, ConstDeviceBuffer weights,
                                       DeviceBuffer logits_grad, DeviceSpan<double> loss_sum) {
  SB_RETURN_IF_ERROR(op_checks::CrossEntropy(shape, logits, targets.size(), weights, logits_grad,
                                             loss_sum.size()));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch, Scratch(CrossEntropyScratch(shape)));
  ids_unchecked_ = true;
  return Dispatch(logits.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchCrossEntropy<T>(stream, shape, At<T>(logits), At(targets), At<float>(weights),
                                 logits_grad.empty() ? DevicePtr<T>(nullptr) : At<T>(logits_grad),
                                 At(loss_sum), At(bad_ids_.span()),
                                 PtrCast<double>(At(scratch.span())));
  });
}

absl::Status CudaBackend::AdamW(const AdamWArgs& args, ConstDeviceBuffer grad, DeviceBuffer value,
                                DeviceBuffer m, DeviceBuffer v, DeviceBuffer copy) {
  SB_RETURN_IF_ERROR(op_checks::AdamW(args, grad, value, m, v, copy));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  const bool rounds = !copy.empty() && copy.type() == ElementType::kBfloat16;
  SB_RETURN_IF_ERROR(LaunchAdamW<float>(stream, value.size(), args, At<float>(grad),
                                        At<float>(value), At<float>(m), At<float>(v),
                                        rounds ? At<Bf16>(copy) : DevicePtr<Bf16>(nullptr)));
  if (copy.empty() || rounds) return absl::OkStatus();
  return CopyDeviceToDevice(value, copy.Slice(0, value.size()));
}

absl::Status CudaBackend::AddSquaredNorm(ConstDeviceBuffer x, DeviceSpan<double> out) {
  SB_RETURN_IF_ERROR(op_checks::AddSquaredNorm(out.size()));
  SB_ASSIGN_OR_RETURN(const StreamHandle stream, ActivateStream());
  SB_ASSIGN_OR_RETURN(const DeviceArray<std::byte> scratch,
                      Scratch(AddSquaredNormScratch(x.size())));
  return Dispatch(x.type(), [&]<typename Tag>(Tag) {
    using T = typename Tag::Type;
    return LaunchAddSquaredNorm<T>(stream, x.size(), At<T>(x), At(out),
                                   PtrCast<double>(At(scratch.span())));
  });
}

}  // namespace sparsebalance::kernels::cuda
