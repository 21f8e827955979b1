#include "tests/gpu/measure.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "kernels/status_macros.h"
#include "tests/gpu/noise.h"

namespace sparsebalance::gpu {
namespace {

using kernels::Backend;
using kernels::DeviceArray;
using kernels::DeviceTensor;

// Collects the measurements of one section.
class Section {
 public:
  Section(Backend& backend, const MeasureOptions& options, std::string name)
      : backend_(backend), options_(options), name_(std::move(name)) {}

  absl::Status Add(std::string name, int64_t tokens, double bytes, double flops,
                   const std::function<absl::Status()>& body) {
    SB_ASSIGN_OR_RETURN(const double seconds, TimeOf(backend_, options_.seconds, body));
    out_.push_back({name_, std::move(name), tokens, seconds, bytes, flops});
    return absl::OkStatus();
  }
  std::vector<Measurement> Take() { return std::move(out_); }

 private:
  Backend& backend_;
  const MeasureOptions& options_;
  const std::string name_;
  std::vector<Measurement> out_;
};

}  // namespace

absl::StatusOr<double> TimeOf(Backend& backend, double seconds,
                              const std::function<absl::Status()>& body) {
  for (int i = 0; i < 2; ++i) SB_RETURN_IF_ERROR(body());
  for (int64_t runs = 1;; runs *= 2) {
    SB_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Event> begin, backend.RecordEvent());
    for (int64_t i = 0; i < runs; ++i) SB_RETURN_IF_ERROR(body());
    SB_ASSIGN_OR_RETURN(const std::unique_ptr<kernels::Event> end, backend.RecordEvent());
    SB_ASSIGN_OR_RETURN(const kernels::EventInterval interval, backend.Elapsed(*begin, *end));
    if (interval.seconds >= seconds) return interval.seconds / static_cast<double>(runs);
  }
}

absl::StatusOr<std::vector<Measurement>> MeasureCeilings(Backend& backend,
                                                         const MeasureOptions& options) {
  Section section(backend, options, "ceiling");
  const auto element = static_cast<double>(kernels::ElementBytes(backend.activation_type()));
  {
    SB_ASSIGN_OR_RETURN(const DeviceTensor from,
                        backend.AllocateActivations(options.copy_elements));
    SB_ASSIGN_OR_RETURN(const DeviceTensor to, backend.AllocateActivations(options.copy_elements));
    SB_RETURN_IF_ERROR(backend.Fill(from.span(), 1.0F));
    SB_RETURN_IF_ERROR(
        section.Add("device copy", 0, 2 * element * static_cast<double>(options.copy_elements), 0,
                    [&] { return backend.CopyDeviceToDevice(from.span(), to.span()); }));
  }
  const int64_t n = options.product;
  SB_ASSIGN_OR_RETURN(const DeviceTensor a, backend.AllocateActivations(n * n));
  SB_ASSIGN_OR_RETURN(const DeviceTensor b, backend.AllocateActivations(n * n));
  SB_ASSIGN_OR_RETURN(const DeviceTensor c, backend.AllocateActivations(n * n));
  SB_RETURN_IF_ERROR(FillWithNoise(backend, a.span()));
  SB_RETURN_IF_ERROR(FillWithNoise(backend, b.span()));
  const auto size = static_cast<double>(n);
  SB_RETURN_IF_ERROR(
      section.Add("matrix product", 0, 3 * element * size * size, 2 * size * size * size, [&] {
        return backend.Matmul({.m = n, .n = n, .k = n, .transpose_b = true}, a.span(), b.span(), {},
                              c.span());
      }));
  return section.Take();
}

absl::StatusOr<std::vector<Measurement>> MeasureBandwidth(Backend& backend,
                                                          const MeasureOptions& options) {
  Section section(backend, options, "bandwidth");
  const auto element = static_cast<double>(kernels::ElementBytes(backend.activation_type()));
  const int64_t hidden = options.hidden;
  const int64_t rows = std::max<int64_t>(1, options.copy_elements / 4 / hidden);
  const int64_t count = rows * hidden;
  const auto size = static_cast<double>(count);
  SB_ASSIGN_OR_RETURN(const DeviceTensor x, backend.AllocateActivations(count));
  SB_ASSIGN_OR_RETURN(const DeviceTensor y, backend.AllocateActivations(count));
  SB_ASSIGN_OR_RETURN(const DeviceTensor z, backend.AllocateActivations(count));
  SB_RETURN_IF_ERROR(FillWithNoise(backend, x.span()));
  SB_RETURN_IF_ERROR(FillWithNoise(backend, y.span()));
  SB_RETURN_IF_ERROR(backend.Fill(z.span(), 0.0F));
  SB_ASSIGN_OR_RETURN(const DeviceArray<float> weight, backend.Allocate<float>(hidden));
  SB_ASSIGN_OR_RETURN(const DeviceArray<float> weight_grad, backend.Allocate<float>(hidden));
  SB_ASSIGN_OR_RETURN(const DeviceArray<float> inverse_rms, backend.Allocate<float>(rows));
  SB_RETURN_IF_ERROR(backend.Fill(weight.span(), 1.0F));
  SB_RETURN_IF_ERROR(backend.Fill(weight_grad.span(), 0.0F));

  SB_RETURN_IF_ERROR(section.Add("add", 0, 3 * element * size, size,
                                 [&] { return backend.Add(x.span(), y.span(), z.span()); }));
  SB_RETURN_IF_ERROR(section.Add("scale", 0, 2 * element * size, size,
                                 [&] { return backend.Scale(1.0F, x.span()); }));
  const kernels::NormShape norm{rows, hidden, 1e-6F};
  SB_RETURN_IF_ERROR(section.Add("rms norm forward", rows, 2 * element * size, 4 * size, [&] {
    return backend.RmsNormForward(norm, x.span(), weight.span(), y.span(), inverse_rms.span());
  }));
  SB_RETURN_IF_ERROR(section.Add("rms norm backward", rows, 4 * element * size, 10 * size, [&] {
    return backend.RmsNormBackward(norm, x.span(), weight.span(), inverse_rms.span(), y.span(),
                                   z.span(), weight_grad.span());
  }));
  SB_RETURN_IF_ERROR(section.Add("column sums", rows, element * size, size, [&] {
    return backend.AddColumnSums(rows, hidden, x.span(), weight_grad.span());
  }));
  {
    const int heads = static_cast<int>(hidden / options.head_dim);
    std::vector<int32_t> host(static_cast<size_t>(rows));
    for (int64_t i = 0; i < rows; ++i) host[i] = static_cast<int32_t>(i);
    SB_ASSIGN_OR_RETURN(const DeviceArray<int32_t> positions, backend.Allocate<int32_t>(rows));
    SB_ASSIGN_OR_RETURN(const DeviceArray<float> table,
                        backend.Allocate<float>(rows * options.head_dim));
    SB_RETURN_IF_ERROR(backend.CopyToDevice(host, positions.span()));
    SB_RETURN_IF_ERROR(backend.RopeTable(options.head_dim, 1e6, positions.span(), table.span()));
    SB_RETURN_IF_ERROR(section.Add("rope", rows, 2 * element * size, 3 * size, [&] {
      return backend.Rope({rows, heads, options.head_dim, hidden}, table.span(), false, x.span());
    }));
  }
  {
    SB_ASSIGN_OR_RETURN(const DeviceTensor wide, backend.AllocateActivations(2 * count));
    SB_RETURN_IF_ERROR(FillWithNoise(backend, wide.span()));
    SB_RETURN_IF_ERROR(section.Add("swiglu forward", rows, 3 * element * size, 5 * size, [&] {
      return backend.SwiGluForward(rows, hidden, wide.span(), y.span());
    }));
    SB_RETURN_IF_ERROR(section.Add("swiglu backward", rows, 5 * element * size, 12 * size, [&] {
      return backend.SwiGluBackward(rows, hidden, wide.span(), y.span(), wide.span());
    }));
  }
  {
    const int64_t classes = options.vocabulary;
    const int64_t some = std::max<int64_t>(1, count / classes);
    const double logits_size = static_cast<double>(some) * static_cast<double>(classes);
    SB_ASSIGN_OR_RETURN(const DeviceTensor logits, backend.AllocateActivations(some * classes));
    SB_ASSIGN_OR_RETURN(const DeviceArray<int32_t> targets, backend.Allocate<int32_t>(some));
    SB_ASSIGN_OR_RETURN(const DeviceArray<float> weights, backend.Allocate<float>(some));
    SB_ASSIGN_OR_RETURN(const DeviceArray<double> loss, backend.Allocate<double>(1));
    SB_RETURN_IF_ERROR(FillWithNoise(backend, logits.span()));
    SB_RETURN_IF_ERROR(
        backend.CopyToDevice(std::vector<int32_t>(static_cast<size_t>(some), 7), targets.span()));
    SB_RETURN_IF_ERROR(backend.Fill(weights.span(), 1.0F));
    SB_RETURN_IF_ERROR(backend.FillZero(loss.span()));
    SB_RETURN_IF_ERROR(
        section.Add("cross entropy", some, 2 * element * logits_size, 6 * logits_size, [&] {
          return backend.CrossEntropy({some, classes, 1.0}, logits.span(), targets.span(),
                                      weights.span(), logits.span(), loss.span());
        }));
  }
  {
    SB_ASSIGN_OR_RETURN(const DeviceArray<float> grad, backend.Allocate<float>(count));
    SB_ASSIGN_OR_RETURN(const DeviceArray<float> value, backend.Allocate<float>(count));
    SB_ASSIGN_OR_RETURN(const DeviceArray<float> m, backend.Allocate<float>(count));
    SB_ASSIGN_OR_RETURN(const DeviceArray<float> v, backend.Allocate<float>(count));
    SB_ASSIGN_OR_RETURN(const DeviceArray<double> norm_sum, backend.Allocate<double>(1));
    for (const DeviceArray<float>* array : {&grad, &value, &m, &v}) {
      SB_RETURN_IF_ERROR(backend.Fill(array->span(), 0.5F));
    }
    SB_RETURN_IF_ERROR(backend.FillZero(norm_sum.span()));
    kernels::AdamWArgs args;
    args.learning_rate = 1e-4F;
    SB_RETURN_IF_ERROR(section.Add("adamw", 0, (7 * 4 + element) * size, 12 * size, [&] {
      return backend.AdamW(args, grad.span(), value.span(), m.span(), v.span(), y.span());
    }));
    SB_RETURN_IF_ERROR(section.Add("gradient norm", 0, 4 * size, 2 * size, [&] {
      return backend.AddSquaredNorm(grad.span(), norm_sum.span());
    }));
  }
  return section.Take();
}

}  // namespace sparsebalance::gpu
