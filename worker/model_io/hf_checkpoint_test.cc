// Folders of models: round trips, and what is refused.
#include "worker/model_io/hf_checkpoint.h"

#include <sys/mount.h>
#include <sys/resource.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <functional>
#include <map>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "worker/data/data_test_util.h"
#include "worker/model/model_test_util.h"
#include "worker/model_io/float_formats.h"
#include "worker/model_io/hf_config.h"

namespace sparsebalance::model_io {
namespace {

using model::ModelConfig;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class HfFolderTest : public ::testing::Test {
 protected:
  static ModelConfig Untied() {
    ModelConfig config = model::TinyConfig();
    config.tie_embeddings = false;
    return config;
  }

  std::string Save(const ModelConfig& config, const SaveOptions& options = {},
                   const std::string& name = "model") {
    const model::TestModel made = model::MakeModel(config);
    const std::string folder = folder_ / name;
    const absl::Status status =
        SaveModel(folder, config,
                  SourceOf(made.backend.get(), made.model->store()->base_parameters()), options);
    EXPECT_TRUE(status.ok()) << status;
    return folder;
  }

  // The values of a fresh model that has read the folder.
  std::map<std::string, std::vector<float>> Load(const std::string& folder,
                                                 const ModelConfig& config) {
    std::map<std::string, std::vector<float>> out;
    const auto weights = HfWeights::Open(folder);
    EXPECT_TRUE(weights.ok()) << weights.status();
    if (!weights.ok()) return out;
    const absl::Status fits = weights->CheckFits(config, Warn());
    EXPECT_TRUE(fits.ok()) << fits;
    const model::TestModel other = model::MakeModel(config, 1, /*seed=*/8);
    const absl::Status loaded = weights->Load(other.backend.get(), other.model->store());
    EXPECT_TRUE(loaded.ok()) << loaded;
    return Values(other);
  }
  static std::map<std::string, std::vector<float>> Values(const model::TestModel& model) {
    std::map<std::string, std::vector<float>> out;
    for (const model::Parameter& p : model.model->parameters()) out[p.name] = model.Host(p.value);
    return out;
  }

  std::function<void(const std::string&)> Warn() {
    return [this](const std::string& line) { warnings_.push_back(line); };
  }

  // A copy of the file with tensors added, replaced or left out by `edit`.
  using Tensors = std::map<std::string, std::pair<TensorInfo, std::vector<float>>>;
  void Rewrite(const std::string& folder, const std::function<void(Tensors&)>& edit) {
    const std::string path = folder + "/model.safetensors";
    Tensors tensors;
    {
      const auto file = SafetensorsFile::Open(path);
      ASSERT_TRUE(file.ok()) << file.status();
      for (const TensorInfo& tensor : file->tensors()) {
        std::vector<float> values(tensor.elements());
        SB_ASSERT_OK(file->Read(tensor, values));
        tensors[tensor.name] = {tensor, values};
      }
    }
    edit(tensors);
    std::vector<TensorInfo> infos;
    for (const auto& [name, tensor] : tensors) {
      infos.push_back(tensor.first);
      infos.back().name = name;
    }
    auto writer = SafetensorsWriter::Create(path, infos, {});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, tensor] : tensors) SB_ASSERT_OK(writer->Add(tensor.second));
    SB_ASSERT_OK(writer->Finish());
  }

  absl::Status Fits(const std::string& folder, const ModelConfig& config) {
    const auto weights = HfWeights::Open(folder);
    return weights.ok() ? weights->CheckFits(config, Warn()) : weights.status();
  }

  std::vector<std::string> Names(const std::string& folder) {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  data_testing::TempFolder folder_;
  std::vector<std::string> warnings_;
};

TEST_F(HfFolderTest, AModelComesBackBitByBitInFloat32) {
  for (const ModelConfig& config : {model::TinyConfig(), Untied()}) {
    const std::string folder = Save(config);
    EXPECT_EQ(Load(folder, config), Values(model::MakeModel(config)));
    EXPECT_THAT(Names(folder), ElementsAre("config.json", "model.safetensors"));
  }
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(HfFolderTest, SixteenBitTypesRoundEveryValueOnce) {
  const ModelConfig config = Untied();
  const auto exact = Values(model::MakeModel(config));
  for (const ElementType type : {ElementType::kBF16, ElementType::kF16}) {
    auto rounded = exact;
    for (auto& [name, values] : rounded) {
      for (float& v : values) {
        v = type == ElementType::kF16 ? FromHalf(ToHalf(v)) : FromBfloat16(ToBfloat16(v));
      }
    }
    const std::string folder = Save(config, {.type = type});
    EXPECT_EQ(Load(folder, config), rounded);
    EXPECT_NE(rounded, exact);
  }
}

TEST_F(HfFolderTest, ALargeModelIsCutIntoFilesUnderAnIndex) {
  const ModelConfig config = Untied();
  for (const uint64_t most : {uint64_t{1}, uint64_t{4000}, uint64_t{20000}}) {
    const std::string folder = Save(config, {.max_shard_bytes = most});
    EXPECT_EQ(Load(folder, config), Values(model::MakeModel(config)));
    const auto index =
        nlohmann::json::parse(data_testing::ReadFile(folder + "/model.safetensors.index.json"));
    uint64_t bytes = 0;
    const auto weights = HfWeights::Open(folder);
    ASSERT_TRUE(weights.ok());
    EXPECT_GT(weights->files().size(), 1u);
    for (const SafetensorsFile& file : weights->files()) {
      uint64_t in_file = 0;
      for (const TensorInfo& tensor : file.tensors()) in_file += tensor.bytes();
      EXPECT_TRUE(in_file <= most || file.tensors().size() == 1) << in_file;
      bytes += in_file;
    }
    EXPECT_EQ(index.at("metadata").at("total_size"), bytes);
    EXPECT_EQ(index.at("weight_map").size(), model::ParameterShapes(config).size());
    EXPECT_FALSE(std::filesystem::exists(folder + "/model.safetensors"));
  }
}

TEST_F(HfFolderTest, SavingAgainReplacesTheWholeModel) {
  const std::string folder = Save(Untied(), {.max_shard_bytes = 4000});
  Save(model::TinyConfig());
  EXPECT_THAT(Names(folder), ElementsAre("config.json", "model.safetensors"));
  EXPECT_EQ(folder_.entries(), 1u) << "leaves something beside the model";
}

TEST_F(HfFolderTest, AFolderWithOtherFilesIsNotReplaced) {
  const std::string folder = folder_ / "precious";
  std::filesystem::create_directory(folder);
  data_testing::WriteFile(folder + "/tokenizer.json", "{}");
  const model::TestModel made = model::MakeModel(Untied());
  const absl::Status status = SaveModel(
      folder, Untied(), SourceOf(made.backend.get(), made.model->store()->base_parameters()), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), HasSubstr("holds tokenizer.json"));
  EXPECT_THAT(Names(folder), ElementsAre("tokenizer.json"));
  data_testing::WriteFile(folder_ / "file", "");
  EXPECT_THAT(CheckSaveFolder(folder_ / "file").message(), HasSubstr("is not a folder"));
  EXPECT_TRUE(CheckSaveFolder(folder_ / "new").ok());
}

TEST_F(HfFolderTest, AMissingTensorIsNamed) {
  const std::string folder = Save(Untied());
  Rewrite(folder, [](Tensors& t) { t.erase("model.layers.1.mlp.up_proj.weight"); });
  const absl::Status status = Fits(folder, Untied());
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("no tensor model.layers.1.mlp.up_proj.weight"),
                                      HasSubstr("[20, 24]"), HasSubstr(folder)));
}

TEST_F(HfFolderTest, AMisshapenTensorIsNamedWithBothShapes) {
  const std::string folder = Save(Untied());
  Rewrite(folder, [](Tensors& t) { t["lm_head.weight"].first.shape = {24, 23}; });
  const absl::Status status = Fits(folder, Untied());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(),
              HasSubstr("lm_head.weight has shape [24, 23], the model needs [23, 24]"));
}

TEST_F(HfFolderTest, ATensorThatTheModelDoesNotHaveIsNamed) {
  const std::string folder = Save(Untied());
  Rewrite(folder, [](Tensors& t) {
    t["model.layers.0.self_attn.q_norm.weight"] = {{.shape = {2}}, {1, 1}};
  });
  const absl::Status status = Fits(folder, Untied());
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("model.layers.0.self_attn.q_norm.weight"),
                                      HasSubstr("not part of this model")));
}

TEST_F(HfFolderTest, RotaryBuffersArePassedOver) {
  const std::string folder = Save(Untied());
  Rewrite(folder, [](Tensors& t) {
    t["model.layers.0.self_attn.rotary_emb.inv_freq"] = {{.shape = {1}}, {1}};
  });
  EXPECT_TRUE(Fits(folder, Untied()).ok());
  EXPECT_THAT(warnings_, IsEmpty());
}

TEST_F(HfFolderTest, AnOutputMatrixBesideTiedEmbeddingsIsIgnoredAndSaidSoWhereItDiffers) {
  const ModelConfig config = model::TinyConfig();
  const std::string folder = Save(config);
  Rewrite(folder, [](Tensors& t) { t["lm_head.weight"] = t["model.embed_tokens.weight"]; });
  EXPECT_TRUE(Fits(folder, config).ok());
  EXPECT_THAT(warnings_, IsEmpty());
  Rewrite(folder, [](Tensors& t) { t["lm_head.weight"].second[0] += 1; });
  EXPECT_TRUE(Fits(folder, config).ok());
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("lm_head.weight is ignored")));
  EXPECT_EQ(Load(folder, config), Values(model::MakeModel(config)));
}

TEST_F(HfFolderTest, AParameterOfATypeThatIsNotReadIsNamed) {
  const std::string folder = Save(Untied());
  std::string bytes = data_testing::ReadFile(folder + "/model.safetensors");
  const size_t at = bytes.find(R"("F32")");
  bytes.replace(at, 5, R"("I32")");
  data_testing::WriteFile(folder + "/model.safetensors", bytes);
  const absl::Status status = Fits(folder, Untied());
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(status.message(),
              HasSubstr("tensor model.embed_tokens.weight has type I32; F32, BF16 and F16"));
}

TEST_F(HfFolderTest, AFolderWithoutAModelIsNamed) {
  EXPECT_EQ(HfWeights::Open(folder_.path()).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadHfConfig(folder_.path()).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(HfFolderTest, AnIndexThatDoesNotMatchItsFilesIsRefused) {
  const std::string folder = Save(Untied(), {.max_shard_bytes = 4000});
  const std::string path = folder + "/model.safetensors.index.json";
  const auto whole = nlohmann::json::parse(data_testing::ReadFile(path));
  const auto refused = [&](const std::function<void(nlohmann::json&)>& edit) {
    nlohmann::json index = whole;
    edit(index);
    data_testing::WriteFile(path, index.dump());
    return HfWeights::Open(folder).status();
  };
  EXPECT_TRUE(refused([](auto&) {}).ok());
  EXPECT_THAT(refused([](auto& i) { i["weight_map"].erase("model.norm.weight"); }).message(),
              HasSubstr("has the tensor model.norm.weight, which"));
  const absl::Status extra =
      refused([](auto& i) { i["weight_map"]["more"] = i["weight_map"]["lm_head.weight"]; });
  EXPECT_EQ(extra.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(extra.message(), HasSubstr("has no tensor more"));
  const absl::Status outside =
      refused([](auto& i) { i["weight_map"]["more"] = "../model/other.safetensors"; });
  EXPECT_EQ(outside.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(outside.message(), HasSubstr("not a name in the same folder"));
  EXPECT_EQ(refused([](auto& i) { i["weight_map"]["more"] = "gone.safetensors"; }).code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(refused([](auto& i) { i["weight_map"]["more"] = 3; }).code(),
            absl::StatusCode::kDataLoss);
  EXPECT_EQ(refused([](auto& i) { i.erase("weight_map"); }).code(), absl::StatusCode::kDataLoss);
}

// A limit on the size of files stands for a full disk: writes fail halfway.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    before_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    rlimit limit = old_;
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, before_);
  }

 private:
  rlimit old_ = {};
  void (*before_)(int) = nullptr;
};

TEST_F(HfFolderTest, AWriteThatFailsLeavesTheOldModelAndNothingElse) {
  const ModelConfig config = Untied();
  const std::string folder = Save(config);
  const std::string before = data_testing::ReadFile(folder + "/model.safetensors");
  const model::TestModel other = model::MakeModel(config, 1, 9);
  absl::Status status;
  {
    const FileSizeLimit limit(4096);
    status = SaveModel(folder, config,
                       SourceOf(other.backend.get(), other.model->store()->base_parameters()), {});
  }
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), AllOf(HasSubstr(folder), HasSubstr("File too large")));
  EXPECT_EQ(data_testing::ReadFile(folder + "/model.safetensors"), before);
  EXPECT_EQ(folder_.entries(), 1u);
}

// A file system of 64 KiB, where this process may mount one.
class SmallDisk {
 public:
  explicit SmallDisk(std::string folder) : folder_(std::move(folder)) {
    std::filesystem::create_directory(folder_);
    mounted_ = mount("none", folder_.c_str(), "tmpfs", 0, "size=64k") == 0;
  }
  ~SmallDisk() {
    if (mounted_) umount2(folder_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }

 private:
  std::string folder_;
  bool mounted_ = false;
};

TEST_F(HfFolderTest, AFullDiskIsResourceExhaustedAndNamesTheFile) {
  const SmallDisk disk(folder_ / "disk");
  if (!disk.mounted()) GTEST_SKIP() << "this process may not mount a file system";
  ModelConfig config = Untied();
  config.vocab_size = 2000;
  const model::TestModel made = model::MakeModel(config);
  const absl::Status status =
      SaveModel(folder_ / "disk/model", config,
                SourceOf(made.backend.get(), made.model->store()->base_parameters()), {});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("disk/model"), HasSubstr("No space left on device")));
  EXPECT_THAT(Names(folder_ / "disk"), IsEmpty());
}

TEST_F(HfFolderTest, TokenizerFilesGoWithTheModelAndOthersAreNotReplaced) {
  const ModelConfig config = Untied();
  const std::string from = Save(config);
  data_testing::WriteFile(from + "/tokenizer.json", "{}");
  data_testing::WriteFile(from + "/merges.txt", "a b");
  data_testing::WriteFile(from + "/notes.txt", "not for others");
  const SaveOptions with = {.companions_from = from};
  const std::string to = Save(config, with, "copy");
  EXPECT_EQ(data_testing::ReadFile(to + "/tokenizer.json"), "{}");
  EXPECT_EQ(data_testing::ReadFile(to + "/merges.txt"), "a b");
  EXPECT_FALSE(std::filesystem::exists(to + "/notes.txt"));
  // Again, with what was copied in its place.
  EXPECT_TRUE(CheckSaveFolder(to, from).ok());
  EXPECT_EQ(Save(config, with, "copy"), to);
  EXPECT_EQ(data_testing::ReadFile(to + "/merges.txt"), "a b");
  // A tokenizer that would be lost stands in the way.
  data_testing::WriteFile(to + "/vocab.json", "{}");
  EXPECT_THAT(std::string(CheckSaveFolder(to, from).message()), HasSubstr("vocab.json"));
  EXPECT_THAT(std::string(CheckSaveFolder(to).message()), HasSubstr("is not part of"));
}

}  // namespace
}  // namespace sparsebalance::model_io
