// Our model against an independent one in PyTorch (qwen2_reference.py), over Hugging Face folders:
// what one writes the other reads. Always against results of the script that are kept in golden/,
// and against the script itself where the system's Python has torch (Debian: python3-torch).
//
// After a change of the cases, make new results:
//   SPARSEBALANCE_PARITY_CASES=/tmp/cases sb_parity_test --gtest_filter='*Kept*'
//   /usr/bin/python3 tests/parity/qwen2_reference.py golden /tmp/cases tests/parity/golden
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/support/child_process.h"
#include "worker/data/data_test_util.h"
#include "worker/model/adamw.h"
#include "worker/model/model_test_util.h"
#include "worker/model/random.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/model_io/hf_config.h"
#include "worker/model_io/peft_adapter.h"

namespace sparsebalance {
namespace {

using model::MicroBatch;
using model::ModelConfig;
using model::RelativeDistance;
using model_io::ElementType;
using model_io::SafetensorsFile;

constexpr char kPython[] = "/usr/bin/python3";
constexpr double kGuard = 1.0;  // budgets are used as given
constexpr int kSteps = 10;
constexpr double kLearningRate = 0.01;
constexpr int32_t kDense = 1000;  // more blocks than any sequence has

struct Case {
  const char* name;
  int kv_heads;
  bool tied;
  float rope_theta;
  std::vector<int32_t> budgets;
  ElementType type;
  const char* adapters = "";  // projections that have one; then these alone are trained
};

void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>{
      {"dense_tied_fp32", 4, true, 10000.0F, {kDense, kDense, kDense}, ElementType::kF32},
      {"moba_gqa_untied_fp32", 2, false, 1000000.0F, {3, 2, 1}, ElementType::kF32},
      {"moba_gqa_tied_bf16", 1, true, 10000.0F, {2, 3, 2}, ElementType::kBF16},
      {"moba_gqa_lora_all", 2, true, 10000.0F, {3, 2, 2}, ElementType::kF32, "all"},
      {"dense_lora_q_v",
       4,
       true,
       10000.0F,
       {kDense, kDense, kDense},
       ElementType::kF32,
       "q_proj,v_proj"},
  };
  return *cases;
}

ModelConfig ConfigOf(const Case& c) {
  ModelConfig config;
  config.vocab_size = 19;
  config.hidden_size = 12;
  config.num_layers = 2;
  config.num_heads = 4;
  config.num_kv_heads = c.kv_heads;
  config.head_dim = 4;
  config.intermediate_size = 16;
  config.rope_theta = c.rope_theta;
  config.initializer_range = 0.3F;  // large, so that attention is far from uniform
  config.tie_embeddings = c.tied;
  config.block_tokens = 4;
  if (*c.adapters != 0) {
    config.lora.rank = 3;
    config.lora.alpha = 5;
    config.lora.targets = *model::ParseProjections(c.adapters);
  }
  return config;
}

MicroBatch BatchOf(const Case& c, const ModelConfig& config) {
  MicroBatch batch = model::RandomBatch(config, {13, 22, 6}, 1, 3);
  batch.budgets = c.budgets;
  batch.base_budgets = c.budgets;
  return batch;
}

std::string SourceFolder() {
  const char* folder = std::getenv("SPARSEBALANCE_SOURCE_DIR");  // NOLINT(concurrency-mt-unsafe)
  return absl::StrCat(folder == nullptr ? "." : folder, "/tests/parity");
}

// folder/model and, where the case has adapters, folder/adapter. With random biases and norm
// weights too: freshly made ones are all 0 and 1.
void WriteModel(const Case& c, const std::string& folder) {
  const ModelConfig config = ConfigOf(c);
  const model::TestModel made = model::MakeModel(config, 1, 11);
  for (const model::Parameter& p : made.model->parameters()) {
    // So are the B of adapters.
    if (p.is_matrix() && !p.name.ends_with("lora_B.weight")) continue;
    const model::RandomStream noise(12, p.name);
    std::vector<float> values = made.Host(p.value);
    for (size_t i = 0; i < values.size(); ++i) values[i] += 0.2F * static_cast<float>(noise.At(i));
    SB_ASSERT_OK(made.model->store()->Write(p, values));
  }
  if (config.lora.enabled()) {
    SB_ASSERT_OK(model_io::SaveAdapter(
        folder + "/adapter", {config.lora, folder + "/model"},
        model_io::SourceOf(made.backend.get(), made.model->store()->adapter_parameters()), {}));
  }
  SB_ASSERT_OK(model_io::SaveModel(
      folder + "/model", config,
      model_io::SourceOf(made.backend.get(), made.model->store()->base_parameters()),
      {.type = c.type}));
}

void WriteBatch(const MicroBatch& batch, const ModelConfig& config, const std::string& path) {
  nlohmann::json json;
  json["tokens"] = batch.tokens;
  json["targets"] = batch.targets;
  json["loss_weights"] = batch.loss_weights;
  json["cu_seqlens"] = batch.cu_seqlens;
  json["budgets"] = batch.budgets;
  json["block_tokens"] = config.block_tokens;
  const model::AdamWOptions adamw;
  json["adamw"] = {{"steps", kSteps}, {"learning_rate", kLearningRate}, {"beta1", 0.9},
                   {"beta2", 0.95},   {"epsilon", adamw.epsilon},       {"weight_decay", 0.1}};
  std::ofstream(path) << json.dump();
}

model::TestModel LoadModel(const std::string& folder) {
  model::TestModel out;
  const auto config = model_io::ReadHfConfig(folder);
  EXPECT_TRUE(config.ok()) << config.status();
  const auto weights = model_io::HfWeights::Open(folder);
  EXPECT_TRUE(weights.ok()) << weights.status();
  if (!config.ok() || !weights.ok()) return out;
  const absl::Status fits =
      weights->CheckFits(*config, [](const std::string& warning) { ADD_FAILURE() << warning; });
  EXPECT_TRUE(fits.ok()) << fits;
  ModelConfig used = *config;
  const std::string adapter = folder.substr(0, folder.rfind('/')) + "/adapter";
  const bool adapted = model_io::IsAdapterFolder(adapter);
  if (adapted) {
    const auto lora = model_io::ReadAdapterConfig(adapter);
    EXPECT_TRUE(lora.ok()) << lora.status();
    used.lora = lora->lora;
  }
  used.block_tokens = 4;                         // models of others do not state it
  out = model::MakeModel(used, 1, /*seed=*/99);  // other values than those that are loaded
  const absl::Status loaded = weights->Load(out.backend.get(), out.model->store());
  EXPECT_TRUE(loaded.ok()) << loaded;
  if (adapted) {
    const auto file = model_io::HfWeights::OpenFile(adapter + "/adapter_model.safetensors");
    EXPECT_TRUE(file.ok()) << file.status();
    const auto source = model_io::AdapterSourceOf(*file, used, model_io::kPeftPrefix);
    EXPECT_TRUE(source.ok()) << source.status();
    EXPECT_TRUE(model_io::LoadAdapters(*source, out.backend.get(), out.model->store()).ok());
  }
  return out;
}

// Results of the script beside which ours are laid.
class Expected {
 public:
  explicit Expected(SafetensorsFile file) : file_(std::move(file)) {
    losses_ = nlohmann::json::parse(file_.metadata().at("losses")).get<std::vector<double>>();
  }
  const std::vector<double>& losses() const { return losses_; }
  std::vector<float> Values(const std::string& name) const {
    const model_io::TensorInfo* tensor = file_.Find(name);
    EXPECT_NE(tensor, nullptr) << name;
    if (tensor == nullptr) return {};
    std::vector<float> out(tensor->elements());
    EXPECT_TRUE(file_.Read(*tensor, out).ok());
    return out;
  }
  int NearTies() const { return std::stoi(file_.metadata().at("near_ties")); }
  std::string Routing() const {
    return absl::StrCat(file_.metadata().at("near_ties"), " near ties among ",
                        file_.metadata().at("routed_queries"), " routed queries, least margin ",
                        file_.metadata().at("least_margin"));
  }

 private:
  SafetensorsFile file_;
  std::vector<double> losses_;
};

// Largest differences seen, for the log.
struct Figures {
  double logits = 0, loss = 0, grads = 0, after = 0;
  std::string Text() const {
    return absl::StrFormat("logits %.1e, loss %.1e, gradients %.1e, parameters after %d steps %.1e",
                           logits, loss, grads, kSteps, after);
  }
};

void CompareForward(const model::TestModel& ours, const MicroBatch& batch, const Expected& expected,
                    Figures* figures) {
  const auto logits = ours.model->Logits(batch, kGuard);
  ASSERT_TRUE(logits.ok()) << logits.status();
  const std::vector<float> wanted = expected.Values("logits");
  ASSERT_EQ(logits->size(), wanted.size());
  for (size_t i = 0; i < wanted.size(); ++i) {
    figures->logits = std::max<double>(figures->logits, std::fabs((*logits)[i] - wanted[i]));
  }
  EXPECT_LT(figures->logits, 1e-4);
  const auto report = ours.model->Loss(batch, kGuard);
  ASSERT_TRUE(report.ok()) << report.status();
  const double loss = report->loss_sum / report->supervised_tokens;
  figures->loss = std::fabs(loss / expected.losses().front() - 1);
  EXPECT_LT(figures->loss, 1e-5) << loss;
}

void CompareTraining(const model::TestModel& ours, const MicroBatch& batch,
                     const Expected& expected, Figures* figures) {
  model::Transformer& model = *ours.model;
  const auto optimizer = model::AdamW::Create({}, model.store(), ours.backend.get());
  ASSERT_TRUE(optimizer.ok());
  double supervised = 0;
  for (const float w : batch.loss_weights) supervised += w;
  ASSERT_EQ(expected.losses().size(), static_cast<size_t>(kSteps));
  for (int step = 0; step < kSteps; ++step) {
    SB_ASSERT_OK(model.ZeroGrads());
    const auto report = model.ForwardBackward(batch, 1 / supervised, kGuard);
    ASSERT_TRUE(report.ok()) << report.status();
    EXPECT_NEAR(report->loss_sum / supervised / expected.losses()[step], 1, 1e-4) << step;
    for (const model::Parameter& p : model.parameters()) {
      if (step > 0) break;
      if (!p.trainable()) continue;
      const double distance =
          RelativeDistance(ours.Host(p.grad), expected.Values("grad." + p.name));
      figures->grads = std::max(figures->grads, distance);
      EXPECT_LT(distance, 1e-3) << "gradient of " << p.name;
    }
    SB_ASSERT_OK((*optimizer)->Step(kLearningRate, 1));
  }
  for (const model::Parameter& p : model.parameters()) {
    if (!p.trainable()) continue;
    const double distance =
        RelativeDistance(ours.Host(p.value), expected.Values("after." + p.name));
    figures->after = std::max(figures->after, distance);
    EXPECT_LT(distance, 1e-3) << p.name << " after " << kSteps << " steps";
  }
}

void Compare(const std::string& model_folder, const MicroBatch& batch, bool trains,
             const std::string& result) {
  auto file = SafetensorsFile::Open(result);
  ASSERT_TRUE(file.ok()) << file.status();
  const Expected expected(*std::move(file));
  // Else float32 and float64 may choose other blocks, and differences below would say nothing.
  EXPECT_EQ(expected.NearTies(), 0) << expected.Routing();
  const model::TestModel ours = LoadModel(model_folder);
  ASSERT_NE(ours.model, nullptr);
  Figures figures;
  CompareForward(ours, batch, expected, &figures);
  if (trains) CompareTraining(ours, batch, expected, &figures);
  std::printf("  %s; %s\n", figures.Text().c_str(), expected.Routing().c_str());
}

bool HasTorch() {
  static const bool has = [] {
    if (!std::filesystem::exists(kPython)) return false;
    testing_support::ChildProcess child({kPython, "-c", "import torch, numpy"});
    return child.Wait() == 0;
  }();
  return has;
}

#define SKIP_WITHOUT_TORCH() \
  if (!HasTorch())           \
  GTEST_SKIP() << kPython << " has no torch (Debian: apt-get install python3-torch)"

void RunScript(const std::string& mode, const std::string& folder) {
  testing_support::ChildProcess child(
      {kPython, SourceFolder() + "/qwen2_reference.py", mode, folder});
  ASSERT_EQ(child.Wait(absl::Seconds(240)), 0) << child.Output();
}

MicroBatch ReadBatch(const std::string& path) {
  std::ifstream in(path);
  const auto json = nlohmann::json::parse(in);
  MicroBatch batch;
  batch.tokens = json.at("tokens").get<std::vector<int32_t>>();
  batch.targets = json.at("targets").get<std::vector<int32_t>>();
  batch.loss_weights = json.at("loss_weights").get<std::vector<float>>();
  batch.cu_seqlens = json.at("cu_seqlens").get<std::vector<int64_t>>();
  batch.budgets = json.at("budgets").get<std::vector<int32_t>>();
  batch.base_budgets = batch.budgets;
  return batch;
}

class ParityTest : public ::testing::TestWithParam<Case> {
 protected:
  // The case as files, for the script.
  void WriteCase(const std::string& folder) {
    std::filesystem::create_directories(folder);
    WriteModel(GetParam(), folder);
    WriteBatch(Batch(), ConfigOf(GetParam()), folder + "/batch.json");
  }
  static MicroBatch Batch() { return BatchOf(GetParam(), ConfigOf(GetParam())); }

  data_testing::TempFolder folder_;
};

TEST_P(ParityTest, AModelThatWeWriteTrainsAsInTheKeptResults) {
  WriteCase(folder_ / "case");
  // NOLINTNEXTLINE(concurrency-mt-unsafe)
  if (const char* keep = std::getenv("SPARSEBALANCE_PARITY_CASES"); keep != nullptr) {
    WriteCase(absl::StrCat(keep, "/", GetParam().name));
  }
  Compare(folder_ / "case/model", Batch(), true,
          absl::StrCat(SourceFolder(), "/golden/", GetParam().name, ".safetensors"));
}

TEST_P(ParityTest, AModelThatWeWriteTrainsAsInPyTorch) {
  SKIP_WITHOUT_TORCH();
  WriteCase(folder_ / "case");
  ASSERT_NO_FATAL_FAILURE(RunScript("run", folder_ / "case"));
  Compare(folder_ / "case/model", Batch(), true, folder_ / "case/result.safetensors");
}

TEST_P(ParityTest, OtherBudgetsGiveOtherLogitsSoThatTheComparisonCanFail) {
  if (GetParam().budgets.front() == kDense) GTEST_SKIP() << "dense";
  WriteModel(GetParam(), folder_.path());
  const model::TestModel ours = LoadModel(folder_ / "model");
  MicroBatch dense = Batch();
  dense.budgets.assign(dense.budgets.size(), kDense);
  const auto sparse_logits = ours.model->Logits(Batch(), kGuard);
  const auto dense_logits = ours.model->Logits(dense, kGuard);
  ASSERT_TRUE(sparse_logits.ok() && dense_logits.ok());
  EXPECT_GT(RelativeDistance(*sparse_logits, *dense_logits), 1e-2);
}

INSTANTIATE_TEST_SUITE_P(Models, ParityTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return std::string(test.param.name); });

TEST(ForeignModelTest, AShardedModelWrittenElsewhereComputesTheKeptLogits) {
  const std::string folder = SourceFolder() + "/golden/made_elsewhere";
  Compare(folder + "/model", ReadBatch(folder + "/batch.json"), false,
          folder + "/result.safetensors");
}

TEST(ForeignModelTest, AShardedModelWrittenByPyTorchComputesItsLogits) {
  SKIP_WITHOUT_TORCH();
  const data_testing::TempFolder folder;
  ASSERT_NO_FATAL_FAILURE(RunScript("make", folder.path()));
  Compare(folder / "model", ReadBatch(folder / "batch.json"), false, folder / "result.safetensors");
}

}  // namespace
}  // namespace sparsebalance
