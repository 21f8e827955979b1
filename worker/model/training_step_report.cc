// What docs/worker.md claims of a training step's speed and memory, as ratios taken in one run: the
// cases alternate, round by round, on the same threads.
//   training_step_report [--threads 2] [--rounds 3] [--torch "COMMAND"] [--long]
// COMMAND prints the seconds of a step of the same model in another implementation, one a line; the
// fastest counts. --long adds 32,768 tokens, dense and sparse.
#include <dnnl.h>
#include <omp.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <limits>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "kernels/backend.h"
#include "kernels/create_backend.h"
#include "worker/model/adamw.h"
#include "worker/model/transformer.h"
#include "worker/model/useful_flops.h"

namespace sparsebalance::model {
namespace {

constexpr int32_t kDense = 1 << 20;

template <typename F>
double Seconds(const F& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

[[noreturn]] void Fail(const std::string& what) {
  std::cerr << "training_step_report: " << what << std::endl;
  std::exit(1);  // NOLINT(concurrency-mt-unsafe): one thread
}

// 4 layers of width 256, 4 heads, FFN 704, vocabulary 256, blocks of 128.
ModelConfig Config() {
  ModelConfig config;
  config.hidden_size = 256;
  config.intermediate_size = 704;
  config.block_tokens = 128;
  return config;
}

class Case {
 public:
  Case(std::string name, ModelConfig config, int threads, int64_t tokens, int32_t budget)
      : name_(std::move(name)), config_(config) {
    backend_ = *kernels::CreateBackend("cpu", {.threads = threads});
    model_ = *Transformer::Create(config, backend_.get(), 1);
    optimizer_ = *AdamW::Create({}, model_->store(), backend_.get());
    for (int64_t t = 0; t < tokens; ++t) {
      batch_.tokens.push_back(static_cast<int32_t>(t * 7919 % config.vocab_size));
      batch_.targets.push_back(static_cast<int32_t>((t + 1) * 7919 % config.vocab_size));
      batch_.loss_weights.push_back(1.0F);
    }
    batch_.cu_seqlens = {0, tokens};
    batch_.budgets = {budget};
    batch_.base_budgets = {budget};
  }

  void Step() {
    const double seconds = Seconds([&] {
      const auto tokens = static_cast<double>(batch_.tokens.size());
      const absl::Status zeroed = model_->ZeroGrads();
      const auto report = model_->ForwardBackward(batch_, 1 / tokens, 0.1);
      if (!report.ok()) Fail(std::string(report.status().message()));
      if (!zeroed.ok() || !optimizer_->Step(1e-3, 1.0).ok()) Fail("a step failed");
      flops_ = UsefulFlops(config_, tokens, report->attended_pairs);
    });
    best_ = std::min(best_, seconds);
  }
  const std::string& name() const { return name_; }
  double best() const { return best_; }
  double gflops() const { return flops_ / best_ / 1e9; }
  double peak_mib() const { return static_cast<double>(backend_->memory().peak_bytes) / 1048576.0; }

 private:
  std::string name_;
  ModelConfig config_;
  std::unique_ptr<kernels::Backend> backend_;
  std::unique_ptr<Transformer> model_;
  std::unique_ptr<AdamW> optimizer_;
  MicroBatch batch_;
  double flops_ = 0;
  double best_ = std::numeric_limits<double>::infinity();
};

// GFLOP/s of oneDNN's own sgemm on a square product.
double Sgemm(int threads) {
  constexpr int64_t kSize = 2048;
  static const std::vector<float> a(kSize * kSize, 0.5F);
  static const std::vector<float> b(kSize * kSize, 0.25F);
  static std::vector<float> c(kSize * kSize);
  omp_set_num_threads(threads);
  const double seconds = Seconds([] {
    if (dnnl_sgemm('N', 'N', kSize, kSize, kSize, 1.0F, a.data(), kSize, b.data(), kSize, 0.0F,
                   c.data(), kSize) != dnnl_success) {
      Fail("oneDNN's sgemm failed");
    }
  });
  return 2.0 * kSize * kSize * kSize / seconds / 1e9;
}

// Fastest of the lines that the command prints.
double Other(const std::string& command) {
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) Fail("cannot run " + command);
  double best = std::numeric_limits<double>::infinity();
  std::array<char, 256> line;
  while (fgets(line.data(), line.size(), pipe) != nullptr) {
    best = std::min(best, std::strtod(line.data(), nullptr));
  }
  if (pclose(pipe) != 0) Fail("failed: " + command);
  return best;
}

int Main(int argc, char** argv) {
  int threads = 2;
  int rounds = 3;
  bool with_long = false;
  std::string torch;
  CLI::App app("Speed and memory of a training step, as ratios in one run.");
  app.add_option("--threads", threads)->check(CLI::Range(1, 1024))->capture_default_str();
  app.add_option("--rounds", rounds)->check(CLI::Range(1, 1000))->capture_default_str();
  app.add_option("--torch", torch, "command that prints seconds of a dense step");
  app.add_flag("--long", with_long, "32,768 tokens too");
  CLI11_PARSE(app, argc, argv);

  ModelConfig blind = Config();
  blind.coverage_sample_stride = 1 << 30;  // the last query only
  Case dense("dense, 8192 tokens", Config(), threads, 8192, kDense);
  Case sparse("MoBA k=8, 8192 tokens", Config(), threads, 8192, 8);
  Case unmeasured("the same without coverage", blind, threads, 8192, 8);
  double sgemm = 0;
  double other = std::numeric_limits<double>::infinity();
  for (int r = 0; r < rounds; ++r) {
    if (!torch.empty()) other = std::min(other, Other(torch));
    for (Case* c : {&dense, &sparse, &unmeasured}) c->Step();
    for (int i = 0; i < 3; ++i) {
      sparse.Step();
      unmeasured.Step();
      sgemm = std::max(sgemm, Sgemm(threads));
    }
  }
  absl::PrintF("%d threads, best of %d rounds\n\n", threads, rounds);
  absl::PrintF("%-28s %8s %9s %9s\n", "step", "seconds", "GFLOP/s", "peak MiB");
  const auto print = [](const Case& c) {
    absl::PrintF("%-28s %8.3f %9.1f %9.0f\n", c.name(), c.best(), c.gflops(), c.peak_mib());
  };
  for (const Case* c : {&dense, &sparse, &unmeasured}) print(*c);
  if (!torch.empty()) absl::PrintF("%-28s %8.3f\n", "PyTorch dense, 8192 tokens", other);
  absl::PrintF("%-28s %8s %9.1f\n\n", "oneDNN sgemm, 2048^3", "", sgemm);
  if (!torch.empty()) {
    absl::PrintF("PyTorch / ours, dense:              %6.1fx\n", other / dense.best());
    absl::PrintF("PyTorch / ours, MoBA k=8:           %6.1fx\n", other / sparse.best());
  }
  absl::PrintF("dense / MoBA k=8, 8192 tokens:      %6.2fx\n", dense.best() / sparse.best());
  absl::PrintF("MoBA step over sgemm's rate:        %6.1f %%\n", 100 * sparse.gflops() / sgemm);
  absl::PrintF("coverage curves' share of a step:   %6.1f %%\n",
               100 * (1 - unmeasured.best() / sparse.best()));

  double before = sparse.peak_mib();
  for (const int64_t tokens : {int64_t{16384}, int64_t{32768}}) {
    if (tokens > 16384 && !with_long) break;
    Case longer(absl::StrFormat("MoBA k=8, %d tokens", tokens), Config(), threads, tokens, 8);
    longer.Step();
    longer.Step();
    print(longer);
    absl::PrintF("peak memory over half the tokens:   %6.2fx\n", longer.peak_mib() / before);
    before = longer.peak_mib();
    if (tokens < 32768) continue;
    Case all("dense, 32768 tokens", Config(), threads, tokens, kDense);
    all.Step();
    print(all);
    absl::PrintF("dense / MoBA k=8, 32768 tokens:     %6.2fx\n", all.best() / longer.best());
  }
  return 0;
}

}  // namespace
}  // namespace sparsebalance::model

int main(int argc, char** argv) { return sparsebalance::model::Main(argc, argv); }
