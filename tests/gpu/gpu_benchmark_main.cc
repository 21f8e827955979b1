// gpu_benchmark FILE: measures the CUDA backend in bf16 on GPU 0, prints a short table and writes
// everything to FILE as JSON. run_on_gpu.sh calls it.
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "kernels/all_backends.h"
#include "kernels/create_backend.h"
#include "kernels/status_macros.h"
#include "tests/gpu/measure.h"

namespace sparsebalance::gpu {
namespace {

absl::Status Run(const std::string& file) {
  SB_ASSIGN_OR_RETURN(
      const std::unique_ptr<kernels::Backend> backend,
      kernels::CreateBackend("cuda", {.activation_type = kernels::ElementType::kBfloat16}));
  const MeasureOptions options;
  std::vector<Measurement> all;
  for (const auto& section : {MeasureCeilings, MeasureBandwidth, MeasureAttention}) {
    SB_ASSIGN_OR_RETURN(std::vector<Measurement> some, section(*backend, options));
    std::move(some.begin(), some.end(), std::back_inserter(all));
  }
  std::ofstream(file) << ToJson(all, backend->device_name());
  std::cout << Summary(all, backend->device_name());
  return absl::OkStatus();
}

}  // namespace
}  // namespace sparsebalance::gpu

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: gpu_benchmark FILE\n";
    return 2;
  }
  sparsebalance::kernels::RegisterAllBackends();
  const absl::Status status = sparsebalance::gpu::Run(argv[1]);
  if (status.ok()) return 0;
  std::cerr << "gpu_benchmark: " << std::string(status.message()) << "\n";
  return 1;
}
