// Adapters, dropout and weight decay groups through the training loop: checkpoints, resuming,
// ranks.
#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/create_backend.h"
#include "worker/model_io/hf_checkpoint.h"
#include "worker/train/checkpoint_manifest.h"
#include "worker/train/train_test_util.h"
#include "worker/train/trainer.h"

namespace sparsebalance {
namespace {

using ::testing::AllOf;
using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Key;
using train_testing::kLengths;
using train_testing::RankResult;
using train_testing::RunRanks;
using train_testing::RunSetup;
using train_testing::TinyOptions;
using train_testing::WriteDataset;

class FineTuningTest : public ::testing::Test {
 protected:
  void SetUp() override { WriteDataset(prefix_, kLengths, 1, /*masked=*/true); }

  // A model on disk, drawn from a seed.
  std::string WriteBase(const std::string& name, uint64_t seed) {
    const auto backend = kernels::CreateBackend("cpu");
    const auto made =
        model::Transformer::Create(TinyOptions(prefix_, 1).model, backend->get(), seed);
    EXPECT_TRUE(made.ok()) << made.status();
    const absl::Status saved = model_io::SaveModel(
        folder_ / name, (*made)->config(),
        model_io::SourceOf(backend->get(), (*made)->store()->base_parameters()), {});
    EXPECT_TRUE(saved.ok()) << saved;
    return folder_ / name;
  }

  RunSetup Setup(uint32_t ranks, const std::string& checkpoints) {
    RunSetup setup;
    setup.options.assign(ranks, TinyOptions(prefix_, ranks));
    for (TrainOptions& options : setup.options) options.checkpoint_dir = checkpoints;
    return setup;
  }
  RunSetup LoraSetup(uint32_t ranks, const std::string& checkpoints, const std::string& base) {
    RunSetup setup = Setup(ranks, checkpoints);
    for (TrainOptions& options : setup.options) {
      options.init_from = base;
      options.model.dropout = 0.1F;
      options.model.lora.rank = 2;
      options.model.lora.dropout = 0.1F;
      options.model.lora.targets = *model::ParseProjections("q_proj,v_proj,up_proj");
    }
    return setup;
  }

  static void ExpectOk(const std::vector<RankResult>& results) {
    for (const RankResult& result : results) ASSERT_TRUE(result.status.ok()) << result.status;
  }

  data_testing::TempFolder folder_;
  const std::string prefix_ = folder_ / "data";
};

TEST_F(FineTuningTest, DropoutDropsTheSameOnAnyNumberOfRanks) {
  const auto losses = [&](uint32_t ranks, float dropout) {
    RunSetup setup = Setup(ranks, "");
    for (TrainOptions& options : setup.options) options.model.dropout = dropout;
    const std::vector<RankResult> results = RunRanks(setup);
    ExpectOk(results);
    std::vector<double> out;
    for (const StepRecord& record : results[0].records) out.push_back(record.loss());
    return out;
  };
  const std::vector<double> one = losses(1, 0.2F);
  const std::vector<double> three = losses(3, 0.2F);
  const std::vector<double> none = losses(1, 0);
  ASSERT_EQ(one.size(), 10u);
  ASSERT_EQ(three.size(), 10u);
  double from_none = 0;
  for (size_t i = 0; i < one.size(); ++i) {
    EXPECT_NEAR(three[i], one[i], 1e-4 * one[i]) << i;
    from_none = std::max(from_none, std::abs(one[i] - none[i]) / none[i]);
  }
  EXPECT_GT(from_none, 1e-3);
}

TEST_F(FineTuningTest, AdaptersResumeToTheSameBitsFromACheckpointThatHoldsOnlyThem) {
  const std::string base = WriteBase("base", 3);
  const std::vector<RankResult> whole = RunRanks(LoraSetup(2, folder_ / "whole", base));
  ExpectOk(whole);
  EXPECT_EQ(whole[0].parameters.size(), 3u * 2u * 2u);
  EXPECT_THAT(whole[0].parameters, Contains(Key("model.layers.1.mlp.up_proj.lora_B.weight")));
  EXPECT_NE(whole[0].records.back().loss(), whole[0].records.front().loss());

  RunSetup first = LoraSetup(2, folder_ / "parts", base);
  first.stop_before_step = 5;
  ExpectOk(RunRanks(first));
  const std::string checkpoint = folder_ / "parts/step-00000005";
  EXPECT_LT(std::filesystem::file_size(checkpoint + "/model.safetensors") * 2,
            std::filesystem::file_size(base + "/model.safetensors"));
  const auto manifest = ReadManifest(checkpoint);
  ASSERT_TRUE(manifest.ok()) << manifest.status();
  EXPECT_EQ(manifest->position.base_model, base);
  EXPECT_EQ(manifest->position.model->lora.rank, 2);

  RunSetup second = LoraSetup(2, folder_ / "parts", base);
  second.resume = true;
  const std::vector<RankResult> resumed = RunRanks(second);
  ExpectOk(resumed);
  ASSERT_EQ(resumed[0].records.size(), 5u);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_EQ(resumed[0].records[i].loss(), whole[0].records[i + 5].loss());
  }
  EXPECT_EQ(resumed[0].parameters, whole[0].parameters);
}

TEST_F(FineTuningTest, ACheckpointOfOtherAdaptersOrAnotherModelUnderThemIsRefused) {
  const std::string base = WriteBase("base", 3);
  RunSetup first = LoraSetup(1, folder_ / "checkpoints", base);
  first.stop_before_step = 2;
  ExpectOk(RunRanks(first));
  const auto resume = [&](const std::function<void(TrainOptions&)>& change) {
    RunSetup setup = LoraSetup(1, folder_ / "checkpoints", base);
    setup.resume = true;
    change(setup.options[0]);
    const absl::Status status = RunRanks(setup)[0].status;
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    return std::string(status.message());
  };
  EXPECT_THAT(resume([](TrainOptions& o) { o.model.lora.rank = 3; }),
              AllOf(HasSubstr("adapters of rank 2, alpha 16, on q_proj,v_proj,up_proj there"),
                    HasSubstr("adapters of rank 3")));
  EXPECT_THAT(resume([](TrainOptions& o) { o.model.lora.alpha = 8; }), HasSubstr("alpha 8"));
  EXPECT_THAT(resume([](TrainOptions& o) { o.model.lora.targets.set(); }), HasSubstr("down_proj"));
  EXPECT_THAT(resume([](TrainOptions& o) { o.model.lora = {}; }), HasSubstr("all parameters here"));
  const std::string other = WriteBase("other", 4);
  EXPECT_THAT(resume([&](TrainOptions& o) { o.init_from = other; }),
              AllOf(HasSubstr("the model in " + other), HasSubstr("which was in " + base)));

  // And adapters do not go on from a checkpoint of the whole model.
  RunSetup full = Setup(1, folder_ / "full");
  full.stop_before_step = 2;
  ExpectOk(RunRanks(full));
  EXPECT_THAT(resume([&](TrainOptions& o) { o.checkpoint_dir = folder_ / "full"; }),
              HasSubstr("all parameters there, adapters of rank 2"));
}

TEST_F(FineTuningTest, AdaptersNeedAModelToAdapt) {
  const auto dataset = data::IndexedDataset::Open(prefix_);
  ASSERT_TRUE(dataset.ok());
  TrainOptions options = LoraSetup(1, "", "").options[0];
  const absl::Status status = ValidateTrainOptions(options, *dataset);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("--init-from"));
  options.init_from = "somewhere";
  EXPECT_TRUE(ValidateTrainOptions(options, *dataset).ok());
}

TEST_F(FineTuningTest, TheLogSaysWhatIsTrainedAndHowItDecays) {
  const auto first_line = [&](RunSetup setup) {
    std::vector<std::string> lines;
    setup.log = [&](const std::string& line) { lines.push_back(line); };
    setup.stop_before_step = 0;
    ExpectOk(RunRanks(setup));
    return lines.empty() ? "" : lines.front();
  };
  RunSetup full = Setup(1, "");
  full.options[0].optimizer.weight_decay_groups = {{"model.embed_tokens.weight", 0.0F}};
  // Two layers of 7 matrices; 2 norms and 3 biases each, the last norm and the embedding.
  EXPECT_THAT(first_line(full), HasSubstr("weight decay 0.1 on 14 tensors, 0 on 12 tensors"));
  EXPECT_THAT(first_line(LoraSetup(1, "", WriteBase("base", 3))),
              AllOf(HasSubstr("in adapters of rank 2 on q_proj,v_proj,up_proj"),
                    HasSubstr("are frozen; weight decay 0.1 on 12 tensors")));
}

}  // namespace
}  // namespace sparsebalance
