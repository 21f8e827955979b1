// What the status page's scripts are told: the same as GetJob, bounded, and with errors of one
// line.

#include "coordinator/service/page_api.h"

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/page_plan.h"
#include "coordinator/service/service_test_util.h"
#include "gmock/gmock.h"
#include "google/protobuf/util/json_util.h"
#include "google/protobuf/util/message_differencer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace sparsebalance {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing_support::Coordinator;
using testing_support::DigestOnly;
using testing_support::MakeBatch;
using testing_support::MakeSpec;
using testing_support::MakeTelemetry;

class PageApiTest : public testing::Test {
 protected:
  json Jobs(const PageApi::Parameters& parameters = {}, int status = 200) {
    return Parsed(api_.Jobs(parameters), status);
  }
  json Job(const PageApi::Parameters& parameters, int status = 200) {
    return Parsed(api_.Job(parameters), status);
  }
  static json Parsed(const PageAnswer& answer, int status) {
    EXPECT_EQ(answer.status, status) << answer.body;
    json body = json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(body.is_object()) << answer.body;
    return body;
  }
  static std::string Message(const json& body) {
    return body.contains("error") ? body["error"].value("message", "") : "no error";
  }

  // A pair that has trained a step by a plan, and has the next one's plan.
  void Train(const std::string& name) {
    coordinator_.FormPair(name);
    for (uint64_t step = 0; step < 2; ++step) {
      const v1::GlobalBatch batch = MakeBatch(step);
      const auto a = coordinator_.Ask(Coordinator::Key(name, "a"), batch);
      const auto b = coordinator_.Ask(Coordinator::Key(name, "b"), DigestOnly(batch));
      coordinator_.executor.RunAll();
      ASSERT_TRUE(a.answered() && a.get().ok()) << a.status();
      if (step > 0) continue;
      coordinator_.Report(Coordinator::Key(name, "a"), {MakeTelemetry(0, 0, 50)});
      coordinator_.Report(Coordinator::Key(name, "b"), {MakeTelemetry(1, 0, 40)});
    }
  }

  MemoryStore store_;
  Coordinator coordinator_{&store_};
  PageApi api_{{[this] { return coordinator_.registry->ListJobs({}); },
                [this](const v1::JobKey& key) { return coordinator_.registry->Snapshot(key); },
                "9.9", "memory", [] { return std::string("the disk is full"); }}};
};

TEST_F(PageApiTest, AJobIsWhatGetJobSays) {
  Train("job");
  const json body = Job({{"namespace", "default"}, {"name", "job"}});
  v1::JobStatus shown;
  ASSERT_TRUE(google::protobuf::util::JsonStringToMessage(body["status"].dump(), &shown).ok());
  google::protobuf::util::MessageDifferencer differ;
  std::string difference;
  differ.ReportDifferencesToString(&difference);
  EXPECT_TRUE(differ.Compare(shown, coordinator_.Status("job"))) << difference;
  // Under their names in the contract, zeros included.
  EXPECT_EQ(body["status"]["fallback_steps"], "0");
  EXPECT_EQ(body["status"]["recent_steps"][0]["used_fallback"], false);
  EXPECT_EQ(body["version"], "9.9");
  EXPECT_EQ(body["store"], "memory");
  EXPECT_EQ(body["problem"], "the disk is full");
}

TEST_F(PageApiTest, TheCurrentPlanIsTheLatestOneAndItsTimelineEndsWhenThePlanDoes) {
  Train("job");
  const json body = Job({{"name", "job"}});
  v1::GetPlanRequest ask;
  ask.mutable_job()->set_name("job");
  ask.set_step(1);
  const auto made = coordinator_.registry->GetPlan(ask);
  ASSERT_TRUE(made.ok()) << made.status();
  const json& plan = body["plan"];
  EXPECT_EQ(plan["plan"]["step"], "1");
  EXPECT_EQ(plan["plan"]["predicted_step_ms"], made->plan().predicted_step_ms());
  EXPECT_FALSE(plan["plan"].contains("ranks"));
  ASSERT_EQ(plan["timeline"]["ranks"].size(), 2u);
  int sequences = 0;
  for (int r = 0; r < 2; ++r) {
    const json& rank = plan["timeline"]["ranks"][static_cast<size_t>(r)];
    EXPECT_EQ(rank["micro_batches"].size(),
              static_cast<size_t>(made->plan().ranks(r).micro_batches_size()));
    EXPECT_NEAR(rank["stages"][0].back()[3].get<double>(), made->plan().ranks(r).predicted_ms(),
                1e-3);
    for (const json& micro : rank["micro_batches"])
      sequences += micro["sequences_total"].get<int>();
  }
  EXPECT_EQ(sequences, 8);
  uint64_t counted = 0;
  for (const json& length : plan["lengths"]) counted += length["sequences"].get<uint64_t>();
  EXPECT_EQ(counted, 8u);
}

TEST_F(PageApiTest, APlanThatTheCallerHasIsNotSentAgain) {
  Train("job");
  const std::string key = Job({{"name", "job"}})["plan_key"];
  const json again = Job({{"name", "job"}, {"known_plan", key}});
  EXPECT_TRUE(again["plan"].is_null());
  EXPECT_EQ(again["plan_key"], key);
  EXPECT_TRUE(Job({{"name", "job"}, {"known_plan", "older"}})["plan"].is_object());
}

TEST_F(PageApiTest, AJobWithoutAPlanHasNone) {
  coordinator_.Register(MakeSpec("new"));
  const json body = Job({{"name", "new"}});
  EXPECT_TRUE(body["plan"].is_null());
  EXPECT_FALSE(body.contains("plan_key"));
  EXPECT_EQ(body["status"]["state"], "JOB_STATE_REGISTERED");
  EXPECT_EQ(body["missing"], "ranks 0-1");
}

TEST_F(PageApiTest, ErrorsAreOneLineWithTheStatusThatFits) {
  EXPECT_THAT(Message(Job({{"name", "nobody"}}, 404)), HasSubstr("default/nobody is not known"));
  EXPECT_THAT(Message(Job({}, 400)), HasSubstr("'name' is missing"));
  EXPECT_THAT(Message(Job({{"name", ""}}, 400)), HasSubstr("1 to 200 bytes"));
  EXPECT_THAT(Message(Job({{"name", std::string(201, 'x')}}, 400)), HasSubstr("201 bytes"));
  EXPECT_THAT(Message(Job({{"name", "a\nb"}}, 400)), HasSubstr("control characters"));
  EXPECT_THAT(Message(Job({{"name", "a"}, {"name", "b"}}, 400)), HasSubstr("given twice"));
  EXPECT_THAT(Message(Job({{"name", "a"}, {"step", "1"}}, 400)), HasSubstr("'step' is not known"));
  EXPECT_THAT(Message(Job({{"name", "\xff\xfe"}}, 404)), HasSubstr("is not known"));
  EXPECT_THAT(Message(Jobs({{"limit", "0"}}, 400)), HasSubstr("within [1, 500]"));
  EXPECT_THAT(Message(Jobs({{"limit", "501"}}, 400)), HasSubstr("within [1, 500]"));
  EXPECT_THAT(Message(Jobs({{"offset", "-1"}}, 400)), HasSubstr("'offset' is '-1'"));
  EXPECT_THAT(Message(Jobs({{"limit", "many"}}, 400)), HasSubstr("'limit' is 'many'"));
  EXPECT_THAT(Message(Jobs({{"filter", std::string(500, 'x')}}, 400)), HasSubstr("500 bytes"));
  coordinator_.registry->Shutdown();
  EXPECT_THAT(Message(Job({{"name", "job"}}, 503)), HasSubstr("shutting down"));
}

TEST_F(PageApiTest, JobsComeInPagesAndByAPartOfTheirName) {
  for (int i = 0; i < 7; ++i) coordinator_.Register(MakeSpec(absl::StrCat("job-", i)));
  const json all = Jobs();
  EXPECT_EQ(all["jobs"].size(), 7u);
  EXPECT_EQ(all["total"], 7);
  EXPECT_EQ(all["by_state"]["registered"], 7);
  const json part = Jobs({{"offset", "5"}, {"limit", "5"}});
  ASSERT_EQ(part["jobs"].size(), 2u);
  EXPECT_EQ(part["jobs"][0]["job"]["name"], "job-5");
  EXPECT_EQ(part["total"], 7);
  const json found = Jobs({{"filter", "default/job-3"}});
  ASSERT_EQ(found["jobs"].size(), 1u);
  EXPECT_EQ(found["total"], 1);
  EXPECT_EQ(found["all"], 7);
  EXPECT_TRUE(Jobs({{"offset", "18446744073709551615"}})["jobs"].empty());
}

TEST_F(PageApiTest, HostileNamesComeBackAsTheyAre) {
  const std::vector<std::string> names = {R"("><script>alert(1)</script>)",
                                          R"(\"},{"x":)",
                                          "</title><img src=x onerror=alert(1)>",
                                          "訓練/שלום/🚀 %2F#?&+",
                                          std::string(200, '<'),
                                          "'; --"};
  for (const std::string& name : names) coordinator_.Register(MakeSpec(name));
  const json listed = Jobs();
  std::vector<std::string> shown;
  for (const json& job : listed["jobs"]) shown.push_back(job["job"]["name"]);
  EXPECT_THAT(shown, testing::UnorderedElementsAreArray(names));
  for (const std::string& name : names) {
    EXPECT_EQ(Job({{"name", name}})["status"]["spec"]["job"]["name"], name);
  }
}

TEST_F(PageApiTest, OfManyRanksTheSuspectAndTheSlowestAreListed) {
  JobSnapshot snapshot;
  snapshot.status.mutable_spec()->mutable_parallelism()->set_data(5000);
  for (uint32_t r = 0; r < 1000; ++r) {
    v1::RankStatus& rank = *snapshot.status.add_ranks();
    rank.set_rank(r);
    rank.set_node_id(absl::StrCat("node-", r / 8));
    rank.set_time_factor(r == 700 ? 1.5 : r % 10 == 0 ? 1.05 : 1.0 + r * 1e-6);
    rank.set_suspect(r == 3);
  }
  for (uint32_t r = 1000; r < 5000; ++r) snapshot.status.add_missing_ranks(r);
  PageApi api({[] { return v1::ListJobsResponse(); }, [&](const v1::JobKey&) { return snapshot; },
               "", "", nullptr});
  const json body = Parsed(api.Job({{"name", "large"}}), 200);
  ASSERT_EQ(body["status"]["ranks"].size(), static_cast<size_t>(PageApi::kMaxRanks));
  EXPECT_EQ(body["status"]["ranks"][1]["rank"], 3);
  EXPECT_EQ(body["ranks_present"], 1000);
  EXPECT_EQ(body["ranks_total"], 5000);
  EXPECT_EQ(body["status"]["missing_ranks"].size(), static_cast<size_t>(PageApi::kMaxMissingRanks));
  EXPECT_EQ(body["missing_ranks_total"], 4000);
  EXPECT_EQ(body["missing"], "ranks 1000-4999");
  ASSERT_EQ(body["slow_ranks"].size(), 32u);
  EXPECT_EQ(body["slow_ranks"][0]["rank"], 700);
  EXPECT_EQ(body["slow_ranks"][0]["node_id"], "node-87");
  EXPECT_EQ(body["slow_ranks_total"], 100);
}

TEST_F(PageApiTest, PlansThatFellBackSayWhyLatestFirst) {
  JobSnapshot snapshot;
  for (uint64_t step = 5; step < 8; ++step) {
    const auto planned = std::make_shared<PlannedStep>();
    planned->step = step;
    planned->plan.set_step(step);
    if (step != 6) {
      planned->plan.set_fallback(v1::FALLBACK_REASON_FLOOR_UNREACHABLE);
      planned->plan.set_fallback_detail(absl::StrCat("<b>floor</b> of step ", step));
    }
    snapshot.plans.push_back(planned);
  }
  PageApi api({[] { return v1::ListJobsResponse(); }, [&](const v1::JobKey&) { return snapshot; },
               "", "", nullptr});
  const json body = Parsed(api.Job({{"name", "job"}}), 200);
  ASSERT_EQ(body["plan_fallbacks"].size(), 2u);
  EXPECT_EQ(body["plan_fallbacks"][0]["step"], "7");
  EXPECT_EQ(body["plan_fallbacks"][0]["fallback"], "FALLBACK_REASON_FLOOR_UNREACHABLE");
  EXPECT_EQ(body["plan_fallbacks"][1]["fallback_detail"], "<b>floor</b> of step 5");
  EXPECT_EQ(body["plan"]["plan"]["step"], "7");
}

TEST(PagePlan, OfManyRanksTheSlowestAreDrawnAndOfManyMicroBatchesTheFirst) {
  PlannedStep planned;
  planned.request.mutable_settings()->set_block_tokens(64);
  planned.request.mutable_settings()->set_pipeline_parallel_size(4);
  planned.request.mutable_latency()->set_forward_fraction(0.25);
  for (uint32_t r = 0; r < 1000; ++r) {
    v1::RankPlan& rank = *planned.plan.add_ranks();
    rank.set_rank(r);
    for (int m = 0; m < 8; ++m) rank.add_micro_batches()->set_predicted_ms(r == 500 ? 9 : 1);
    rank.set_predicted_ms(r == 500 ? 99 : 11);
  }
  json page = PagePlan(planned);
  EXPECT_EQ(page["timeline"]["ranks_total"], 1000);
  EXPECT_EQ(page["timeline"]["ranks"].size(), 16u);  // 64 lanes of 4 stages
  EXPECT_EQ(page["timeline"]["ranks"].back()["rank"], 500);
  EXPECT_EQ(page["timeline"]["cut"], false);
  EXPECT_LT(page.dump().size(), 300'000u);

  planned.plan.mutable_ranks()->DeleteSubrange(1, 999);
  for (int m = 0; m < 10'000; ++m) planned.plan.mutable_ranks(0)->add_micro_batches();
  page = PagePlan(planned);
  ASSERT_EQ(page["timeline"]["ranks"].size(), 1u);
  EXPECT_EQ(page["timeline"]["cut"], true);
  EXPECT_EQ(page["timeline"]["ranks"][0]["micro_batches_total"], 10'008);
  EXPECT_EQ(page["timeline"]["ranks"][0]["micro_batches"].size(), 500u);
  EXPECT_LT(page.dump().size(), 500'000u);
}

TEST(PagePlan, SequencesAreCountedByLengthWithTheirBudgetsAndCoverage) {
  v1::PlanRequest request;
  request.mutable_settings()->set_block_tokens(100);
  request.mutable_settings()->set_base_budget_blocks(5);
  v1::Plan plan;
  v1::MicroBatch& micro = *plan.add_ranks()->add_micro_batches();
  const auto add = [&](uint64_t id, uint64_t tokens, uint32_t budget) {
    v1::Sequence& sequence = *request.add_sequences();
    sequence.set_id(id);
    sequence.set_tokens(tokens);
    // A straight line: coverage is (budget - 1) / (blocks - 1).
    sequence.mutable_coverage()->add_budget_blocks(1);
    sequence.mutable_coverage()->add_coverage(0);
    v1::Slice& slice = *micro.add_slices();
    slice.set_sequence_id(id);
    slice.set_token_end(tokens);
    slice.set_budget_blocks(budget);
  };
  add(1, 1100, 3);  // 11 blocks
  add(2, 1100, 7);
  add(3, 150, 9);  // of 2 blocks: attends to both
  const std::vector<LengthClass> classes = LengthClasses(request, plan);
  ASSERT_EQ(classes.size(), 2u);
  EXPECT_EQ(classes[0].from_tokens, 128u);
  EXPECT_EQ(classes[0].below_tokens, 192u);
  EXPECT_EQ(classes[0].most_budget, 2u);
  EXPECT_DOUBLE_EQ(classes[0].mean_coverage, 1);
  EXPECT_EQ(classes[1].from_tokens, 1024u);
  EXPECT_EQ(classes[1].below_tokens, 1536u);
  EXPECT_EQ(classes[1].sequences, 2u);
  EXPECT_EQ(classes[1].tokens, 2200u);
  EXPECT_EQ(classes[1].least_budget, 3u);
  EXPECT_EQ(classes[1].most_budget, 7u);
  EXPECT_DOUBLE_EQ(classes[1].mean_budget, 5);
  EXPECT_DOUBLE_EQ(classes[1].least_coverage, 0.2);
  EXPECT_DOUBLE_EQ(classes[1].mean_coverage, 0.4);
  EXPECT_DOUBLE_EQ(classes[1].mean_base_coverage, 0.4);
}

}  // namespace
}  // namespace sparsebalance
