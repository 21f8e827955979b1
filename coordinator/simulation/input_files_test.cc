// What is read from files: requests, workloads, coverage. Every error says where it is.

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/coverage_curve.h"
#include "coordinator/planner/planner.h"
#include "coordinator/simulation/coverage_source.h"
#include "coordinator/simulation/request_file.h"
#include "coordinator/simulation/workload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "worker/data/indexed_dataset_builder.h"

namespace sparsebalance::simulation {
namespace {

using testing::AllOf;
using testing::HasSubstr;

class InputFiles : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::path(testing::TempDir()) /
              absl::StrCat("sb_simulation_", ::getpid(), "_",
                           testing::UnitTest::GetInstance()->current_test_info()->name());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Write(const std::string& name, const std::string& text) {
    const std::string path = folder_ / name;
    std::ofstream(path) << text;
    return path;
  }

  template <class T>
  static std::string Message(const absl::StatusOr<T>& result) {
    return result.ok() ? "OK" : std::string(result.status().message());
  }

  std::filesystem::path folder_;
};

constexpr char kJob[] =
    R"("job": {"data_parallel_size": 2, "block_tokens": 100, "base_budget_blocks": 4,)"
    R"( "max_tokens_per_micro_batch": 10000, "coverage_floor": "baseline"})";

std::string Line(const std::string& sequences, const std::string& more = "") {
  return absl::StrCat("{", kJob, more, R"(, "sequences": [)", sequences, "]}");
}

TEST_F(InputFiles, ARequestBecomesItsMessage) {
  const auto request = ParsePlanRequest(
      R"({"job": {"data_parallel_size": 2, "pipeline_parallel_size": 4, "block_tokens": 100,
          "base_budget_blocks": 4, "max_tokens_per_micro_batch": 9000, "coverage_guard": 0.2,
          "coverage_floor": 0.5, "search_effort": "high", "paper_anchor": "min"},
          "latency": {"constant_ms": 0.5, "per_token_ms": 0.25, "forward_fraction": 0.4},
          "step": 7,
          "sequences": [{"id": "18446744073709551615", "tokens": 450,
                         "coverage": {"family": "power", "alpha": 1.5}},
                        {"id": 2, "tokens": 250, "supervised_tokens": 9,
                         "coverage": {"budget_blocks": [1, 2, 3], "coverage": [0, 0.75, 1]}}],
          "rank_factors": [{"rank": 1, "time_factor": 1.25}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(request->step(), 7U);
  EXPECT_EQ(request->settings().pipeline_parallel_size(), 4U);
  EXPECT_EQ(request->settings().coverage_floor().value(), 0.5);
  EXPECT_EQ(request->settings().search_effort(), v1::SEARCH_EFFORT_HIGH);
  EXPECT_EQ(request->settings().paper_anchor(), v1::PAPER_ANCHOR_MIN);
  EXPECT_EQ(request->latency().per_token_ms(), 0.25);
  EXPECT_EQ(request->sequences(0).id(), 18446744073709551615U);
  EXPECT_EQ(request->sequences(0).coverage().budget_blocks_size(), 5) << "every budget";
  EXPECT_EQ(request->sequences(1).supervised_tokens(), 9U);
  EXPECT_EQ(request->sequences(1).coverage().coverage(1), 0.75);
  EXPECT_EQ(request->rank_factors(0).time_factor(), 1.25);
}

TEST_F(InputFiles, ARequestMayHaveLayersAndUpcomingBatches) {
  const auto request = ParsePlanRequest(
      R"({"job": {"data_parallel_size": 2, "block_tokens": 100, "base_budget_blocks": 4,
          "max_tokens_per_micro_batch": 9000, "layer_budgets": true, "lookahead_steps": 3},
          "step": 7,
          "sequences": [{"id": 1, "tokens": 450, "deferred_steps": 2,
                         "layer_coverage": [{"family": "power", "alpha": 1.5},
                                            {"budget_blocks": [1, 5], "coverage": [0, 1]}]}],
          "upcoming": [{"step": 8, "sequences": [{"id": 2, "tokens": 30}]},
                       {"step": 9, "sequences": []}]})");
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_TRUE(request->settings().layer_budgets());
  EXPECT_EQ(request->settings().lookahead_steps(), 3U);
  EXPECT_EQ(request->sequences(0).deferred_steps(), 2U);
  ASSERT_EQ(request->sequences(0).layer_coverage_size(), 2);
  EXPECT_EQ(request->sequences(0).layer_coverage(0).budget_blocks_size(), 5);
  EXPECT_EQ(request->sequences(0).layer_coverage(1).budget_blocks(1), 5U);
  ASSERT_EQ(request->upcoming_size(), 2);
  EXPECT_EQ(request->upcoming(0).step(), 8U);
  EXPECT_EQ(request->upcoming(0).sequences(0).tokens(), 30U);
}

TEST_F(InputFiles, AWrongRequestIsNamedByFileLineAndField) {
  struct Case {
    std::string line;
    std::string message;
  };
  const std::string good = R"({"id": 1, "tokens": 500})";
  for (const Case& c : {
           Case{R"({"job": {"data)", "malformed JSON at column 15: syntax error"},
           Case{"[1]", "expected an object"},
           Case{R"({"sequences": []})", "job is missing"},
           Case{absl::StrCat("{", kJob, "}"), "sequences is missing"},
           Case{Line(R"({"id": 1})"), "sequences[0].tokens is missing"},
           Case{Line(good + R"(, {"id": 2, "tokens": -5})"), "sequences[1].tokens is -5: expected"},
           Case{Line(R"({"id": 1, "tokens": 0})"), "sequences[0].tokens is 0"},
           Case{Line(R"({"id": 1, "tokens": 2.5})"), "sequences[0].tokens is 2.5"},
           Case{Line(R"({"id": "x", "tokens": 5})"), R"(sequences[0].id is "x")"},
           Case{Line(good + ", " + good), "id 1"},
           Case{Line(R"({"id": 1, "tokens": 5, "token": 6})"),
                "sequences[0].token is not known here; known are coverage, id"},
           Case{Line(R"({"id": 1, "tokens": 500, "coverage": {"family": "cubic", "alpha": 1}})"),
                R"(sequences[0].coverage.family is "cubic": expected "power")"},
           Case{Line(R"({"id": 1, "tokens": 500, "coverage": {"family": "power"}})"),
                "sequences[0].coverage.alpha is missing"},
           Case{Line(R"({"id": 1, "tokens": 500, "coverage": {"budget_blocks": [1, 5],)"
                     R"( "coverage": [0, 2]}})"),
                "sequences[0].coverage"},
           Case{Line(good, R"(, "latency": {"per_token_ms": -1, "forward_fraction": 0.5})"),
                "latency.per_token_ms"},
           Case{Line(good, R"(, "rank_factors": [{"rank": 9, "time_factor": 1}])"),
                "rank_factors[0].rank"},
           Case{Line(good, R"(, "step": "soon")"), R"(step is "soon")"},
           Case{Line(good, R"(, "upcoming": [{"sequences": []}])"), "upcoming[0].step is missing"},
           Case{Line(good, R"(, "upcoming": [{"step": 1, "sequences": [{"id": 1}]}])"),
                "upcoming[0].sequences[0].tokens is missing"},
           Case{Line(R"({"id": 1, "tokens": 500, "layer_coverage": [{"family": "power"}]})"),
                "sequences[0].layer_coverage[0].alpha is missing"},
           Case{R"({"job": {"coverage_floor": "high"}, "sequences": []})",
                R"(job.coverage_floor is "high"; use baseline, guard, fixed or a number)"},
           Case{R"({"job": {"search_effort": "most"}, "sequences": []})",
                R"(job.search_effort is "most"; use fast, normal or high)"},
           Case{R"({"job": {"paper_anchor": 3}, "sequences": []})", "job.paper_anchor is 3"},
       }) {
    const std::string path = Write("requests.jsonl", Line(good) + "\n\n" + c.line + "\n");
    const auto requests = ReadPlanRequests(path);
    EXPECT_EQ(requests.status().code(), absl::StatusCode::kInvalidArgument) << c.line;
    EXPECT_THAT(Message(requests), AllOf(HasSubstr(path + ":3: "), HasSubstr(c.message)));
  }
  EXPECT_EQ(ReadPlanRequests(folder_ / "absent").status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(ReadPlanRequests(Write("empty", "\n"))), HasSubstr("holds no plan request"));
}

TEST_F(InputFiles, ImpossibleParallelismIsRefused) {
  std::string line = Line(R"({"id": 1, "tokens": 500})");
  const std::string two = R"("data_parallel_size": 2)";
  line.replace(line.find(two), two.size(), R"("data_parallel_size": 0)");
  EXPECT_THAT(Message(ParsePlanRequest(line)), HasSubstr("settings.data_parallel_size is 0"));
}

std::vector<uint64_t> Sample(const Workload& workload, int n, uint64_t seed = 3) {
  Random random(seed);
  std::vector<uint64_t> out(n);
  for (uint64_t& tokens : out) tokens = workload.sample(random);
  return out;
}

TEST_F(InputFiles, BuiltInWorkloadsLookLikeTheirDescriptionAndSayTheyAreApproximations) {
  const auto chat = LoadWorkload("chatqa2-like");
  ASSERT_TRUE(chat.ok());
  EXPECT_THAT(chat->description, HasSubstr("an approximation"));
  const std::vector<uint64_t> lengths = Sample(*chat, 4000);
  EXPECT_LE(*std::max_element(lengths.begin(), lengths.end()), 32768U);
  const auto between = [&](uint64_t low, uint64_t high) {
    return std::count_if(lengths.begin(), lengths.end(),
                         [&](uint64_t n) { return n >= low && n < high; });
  };
  EXPECT_EQ(between(4097, 16384), 0) << "two peaks";
  EXPECT_NEAR(static_cast<double>(between(0, 4097)), 0.45 * 4000, 150);
  const auto align = LoadWorkload("longalign-like");
  ASSERT_TRUE(align.ok());
  EXPECT_THAT(align->description, HasSubstr("an approximation"));
  for (const uint64_t n : Sample(*align, 2000)) {
    EXPECT_GE(n, 8192U);
    EXPECT_LE(n, 73728U);
  }
  EXPECT_EQ(Sample(*align, 50), Sample(*align, 50)) << "the seed decides";
}

TEST_F(InputFiles, AQuantileTableIsSampledByItsInverse) {
  const auto workload =
      LoadWorkload(Write("q.csv", "quantile,tokens\n0,10\n0.5,20\n0.5,100\n1,200\n"));
  ASSERT_TRUE(workload.ok()) << workload.status();
  const std::vector<uint64_t> lengths = Sample(*workload, 2000);
  const auto short_ones =
      std::count_if(lengths.begin(), lengths.end(), [](uint64_t n) { return n <= 20; });
  EXPECT_NEAR(static_cast<double>(short_ones), 1000, 100);
  for (const uint64_t n : lengths) EXPECT_TRUE((n >= 10 && n <= 20) || (n >= 100 && n <= 200)) << n;
}

TEST_F(InputFiles, AListGivesEveryLengthOnceAnEpoch) {
  const auto workload = LoadWorkload(Write("l.csv", "tokens\n5\n7\n9\n"));
  ASSERT_TRUE(workload.ok()) << workload.status();
  std::vector<uint64_t> lengths = Sample(*workload, 6);
  std::sort(lengths.begin(), lengths.begin() + 3);
  std::sort(lengths.begin() + 3, lengths.end());
  EXPECT_THAT(lengths, testing::ElementsAre(5, 7, 9, 5, 7, 9));
}

TEST_F(InputFiles, APackedDatasetGivesItsLengths) {
  const std::string prefix = folder_ / "d";
  auto builder = data::IndexedDatasetBuilder::Create(prefix, data::TokenType::kInt32, {});
  ASSERT_TRUE(builder.ok()) << builder.status();
  for (const int n : {3, 8}) {
    ASSERT_TRUE(builder->Add(std::vector<int32_t>(static_cast<size_t>(n), 1)).ok());
    builder->EndDocument();
  }
  ASSERT_TRUE(builder->Finalize(std::nullopt).ok());
  const auto workload = LoadWorkload(prefix + ".idx");
  ASSERT_TRUE(workload.ok()) << workload.status();
  EXPECT_THAT(Sample(*workload, 2), testing::UnorderedElementsAre(3, 8));
}

TEST_F(InputFiles, AWrongTableIsNamedByLineAndColumn) {
  struct Case {
    const char* text;
    const char* message;
  };
  for (const Case& c : {
           Case{"quantile,tokens\n0,5\n0.5,abc\n", ":3: column 2 (tokens) is \"abc\""},
           Case{"quantile,tokens\n0,5\n0.5\n", ":3: has 1 fields"},
           Case{"quantile,tokens\n0.5,5\n0.4,9\n", ":3: quantiles and tokens must not fall"},
           Case{"quantile,tokens\n0.5,5\n1.4,9\n", ":3: quantile is 1.4"},
           Case{"tokens\n5\n-3\n", ":3: a length is -3"},
           Case{"tokens\n5\n0\n", ":3: a length is 0"},
           Case{"5\n1.5\n", ":2: a length is 1.5"},
           Case{"5\nnan\n", ":2: column 1 is \"nan\""},
           Case{"a,b,c\n1,2,3\n", "has 3 columns"},
           Case{"tokens\n", "holds no line of numbers"},
       }) {
    const std::string path = Write("t.csv", c.text);
    EXPECT_THAT(Message(LoadWorkload(path)), AllOf(HasSubstr(path), HasSubstr(c.message)));
  }
  EXPECT_THAT(Message(LoadWorkload("no-such")), HasSubstr("neither built in (chatqa2-like,"));
}

TEST_F(InputFiles, TheFamilyOfCurvesStatesItsSpread) {
  const auto family = LoadCoverage("family");
  ASSERT_TRUE(family.ok());
  EXPECT_THAT(family->description, HasSubstr("alpha uniform in 0.6..1.8"));
  Random random(5);
  double least = 1;
  double most = 0;
  for (int i = 0; i < 200; ++i) {
    const v1::CoverageCurve curve = family->sample(100, random);
    ASSERT_TRUE(planner::CheckCurve(curve, 100).ok());
    const double at = planner::CoverageAt(curve, 100, 16);
    least = std::min(least, at);
    most = std::max(most, at);
  }
  EXPECT_LT(least, planner::CoverageAt(planner::PowerCurve(100, 0.7), 100, 16));
  EXPECT_GT(most, planner::CoverageAt(planner::PowerCurve(100, 1.7), 100, 16));
  EXPECT_FALSE(LoadCoverage("family:2:1").ok());
}

TEST_F(InputFiles, RecordedCurvesAreStretchedToTheSequence) {
  const auto source = LoadCoverage(Write(
      "c.jsonl", "{\"tokens\": 640, \"budget_blocks\": [1, 6, 11], \"coverage\": [0, 0.8, 1]}\n"));
  ASSERT_TRUE(source.ok()) << source.status();
  Random random(1);
  for (const uint32_t blocks : {1U, 2U, 21U, 500U}) {
    const v1::CoverageCurve curve = source->sample(blocks, random);
    EXPECT_TRUE(planner::CheckCurve(curve, blocks).ok()) << blocks;
    EXPECT_EQ(planner::CoverageAt(curve, blocks, blocks), 1.0);
  }
  const v1::CoverageCurve twice = source->sample(21, random);
  EXPECT_NEAR(planner::CoverageAt(twice, 21, 6), 0.4, 0.02);
  EXPECT_THAT(Message(LoadCoverage(Write("bad.jsonl", "{\"budget_blocks\": [1, 2]}\n"))),
              HasSubstr(":1: coverage is missing"));
  EXPECT_THAT(Message(LoadCoverage("absent.jsonl")), HasSubstr("neither `family` nor a file"));
}

}  // namespace
}  // namespace sparsebalance::simulation
