// The status page as people see it: in Chromium, of a real coordinator whose jobs train.
// Screenshots are kept in the build's folder screenshots.

#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/service/program_test_util.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/page/accessibility.h"
#include "tests/page/page_jobs.h"
#include "tests/support/chromium_page.h"

namespace sparsebalance::testing_support {
namespace {

using nlohmann::json;
using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

class StatusPageBrowserTest : public ProgramTest {
 protected:
  void SetUp() override {
    if (!ChromiumPage::Installed()) GTEST_SKIP() << "no chromium here; ./run setup installs it";
    coordinator_ = Start();
    ASSERT_GT(metrics_port_, 0);
    page_ = std::make_unique<ChromiumPage>(folder_ / "", 1280, 900);
    ASSERT_FALSE(HasFailure());
  }

  // What holds of every page that was shown.
  void TearDown() override {
    if (page_ == nullptr) return;
    EXPECT_THAT(page_->problems(), IsEmpty());
    EXPECT_THAT(page_->requests(), Each(testing::AnyOf(StartsWith(site() + "/"), "about:blank")));
    EXPECT_EQ(page_->Evaluate("window.hacked === undefined"), true);
  }

  std::string site() const { return absl::StrCat("http://127.0.0.1:", metrics_port_); }

  void OpenJobs() {
    page_->Open(site() + "/");
    page_->WaitUntil("document.querySelector('main[data-ready] h1') !== null");
  }

  // Follows the link of the table of jobs, as a person would.
  void OpenJob(const PageJob& job) {
    OpenJobs();
    const std::string name = json(job.full_name()).dump();
    page_->Evaluate(absl::StrCat(
        "[...document.querySelectorAll('tr[data-job]')].find(r => r.dataset.job === ", name,
        ").querySelector('a').click()"));
    page_->WaitUntil(absl::StrCat("document.querySelector('main').dataset.ready === ", name));
  }

  // The value that the page shows as `field`, within the elements of a selector.
  double Shown(const std::string& within, const std::string& field) {
    const json value = page_->Evaluate(absl::StrCat(
        "document.querySelector(", json(within + " [data-field=\"" + field + "\"]").dump(),
        ")?.dataset.value ?? 'none'"));
    EXPECT_NE(value, "none") << within << " " << field;
    return value.is_string() ? std::strtod(value.get<std::string>().c_str(), nullptr) : -1;
  }

  std::string Text(const std::string& selector) {
    const json text = page_->Evaluate(
        absl::StrCat("document.querySelector(", json(selector).dump(), ")?.textContent"));
    return text.is_string() ? text.get<std::string>() : "";
  }

  void Keep(const std::string& name) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe)
    const std::filesystem::path folder =
        std::filesystem::path(Program("")).parent_path().parent_path() / "screenshots";
    std::filesystem::create_directories(folder);
    for (const char* scheme : {"light", "dark"}) {
      page_->PreferColorScheme(scheme);
      const std::string path = folder / absl::StrCat(name, "-", scheme, ".png");
      page_->SaveScreenshot(path);
      EXPECT_GT(std::filesystem::file_size(path), 10'000u);
    }
    page_->PreferColorScheme("light");
  }

  // In both colour schemes.
  void ExpectAccessible() {
    for (const char* scheme : {"dark", "light"}) {
      page_->PreferColorScheme(scheme);
      const json found = page_->Evaluate(kAccessibilityFindings);
      EXPECT_EQ(found, json::array()) << scheme << ": " << found.dump(2);
    }
  }

  std::unique_ptr<ChildProcess> coordinator_;
  std::unique_ptr<ChromiumPage> page_;
};

TEST_F(StatusPageBrowserTest, ShowsTheNumbersOfGetJob) {
  PutPageProfile(*client_, "research");
  PageJob job(client_.get(), {.ns = "research",
                              .name = "qwen2-1.5b-longdocs",
                              .data = 4,
                              .pipeline = 2,
                              .ranks_per_node = 2,
                              .sequences = 64,
                              .slow = {{5, 1.35}}});
  job.Register();
  job.Join();
  for (uint64_t step = 0; step < 24; ++step) job.Step(step, step == 9 || step == 10 || step == 17);
  PageJob other(client_.get(),
                {.ns = "eval", .name = "ablation-none", .data = 2, .policy = "none"});
  other.Register();
  other.Join();
  for (uint64_t step = 0; step < 3; ++step) other.Step(step);
  PageJob waiting(client_.get(), {.ns = "research", .name = "qwen2-7b-pretrain", .data = 16});
  waiting.Register();
  waiting.JoinAlone(3);
  PageJob done(client_.get(), {.ns = "research", .name = "sft-2026-11", .data = 2});
  done.Register();
  done.Join();
  done.Step(0);
  done.Finish();

  OpenJobs();
  ExpectAccessible();
  EXPECT_EQ(page_->Evaluate("document.querySelectorAll('tr[data-job]').length"), 4);
  const v1::JobStatus status = job.Status();
  const v1::StepStatus& last = status.recent_steps(status.recent_steps_size() - 1);
  const std::string row = "tr[data-job=\"research/qwen2-1.5b-longdocs\"]";
  EXPECT_EQ(Shown(row, "step_ms"), last.step_ms());
  EXPECT_EQ(Shown(row, "rank_imbalance"), last.rank_imbalance());
  EXPECT_EQ(Shown(row, "next_step"), static_cast<double>(status.next_step()));
  EXPECT_EQ(Shown(row, "ranks_present"), 8);
  EXPECT_THAT(Text("tr[data-job=\"research/qwen2-7b-pretrain\"]"), HasSubstr("joining"));
  Keep("jobs");

  OpenJob(job);
  page_->WaitUntil("document.querySelector('#imbalance-title') !== null");
  ExpectAccessible();
  EXPECT_EQ(page_->Evaluate("document.title"),
            "research/qwen2-1.5b-longdocs – SparseBalance coordinator");
  for (const auto& [field, value] :
       {std::pair<const char*, uint64_t>{"generation", status.generation()},
        {"leader_epoch", status.leader_epoch()},
        {"next_step", status.next_step()},
        {"steps_reported", status.steps_reported()},
        {"fallback_steps", status.fallback_steps()},
        {"sequences_consumed", status.sequences_consumed()},
        {"sequences_consumed_twice", status.sequences_consumed_twice()},
        {"remembered_sequences", status.remembered_sequences()},
        {"state_bytes", status.state_bytes()}}) {
    EXPECT_EQ(Shown("main", field), static_cast<double>(value)) << field;
  }
  ASSERT_EQ(status.recent_steps_size(), 24);
  for (const v1::StepStatus& step : status.recent_steps()) {
    const std::string within = absl::StrCat("tr[data-step=\"", step.step(), "\"]");
    EXPECT_EQ(Shown(within, "step_ms"), step.step_ms());
    EXPECT_EQ(Shown(within, "predicted_step_ms"), step.predicted_step_ms());
    EXPECT_EQ(Shown(within, "rank_imbalance"), step.rank_imbalance());
    EXPECT_EQ(Shown(within, "length_imbalance"), step.length_imbalance());
    EXPECT_EQ(Shown(within, "mean_coverage"), step.mean_coverage());
    EXPECT_EQ(Shown(within, "loss"), step.loss());
    EXPECT_EQ(Shown(within, "tokens"), static_cast<double>(step.tokens()));
    EXPECT_EQ(Shown(within, "slowest_rank"), step.slowest_rank());
  }
  for (const v1::RankStatus& rank : status.ranks()) {
    EXPECT_EQ(Shown(absl::StrCat("tr[data-rank=\"", rank.rank(), "\"]"), "time_factor"),
              rank.time_factor());
  }
  v1::GetPlanRequest ask;
  *ask.mutable_job() = job.key();
  ask.set_step(23);
  v1::GetPlanResponse plan;
  ASSERT_TRUE(client_->Call(&TestClient::Stub::GetPlan, ask, &plan).ok());
  EXPECT_EQ(Shown("main", "plan.predicted_step_ms"), plan.plan().predicted_step_ms());
  EXPECT_EQ(Shown("main", "plan.mean_coverage"), plan.plan().mean_coverage());
  int operations = 0;
  for (const v1::RankPlan& rank : plan.plan().ranks()) operations += 4 * rank.micro_batches_size();
  EXPECT_EQ(page_->Evaluate("document.querySelectorAll('#plan-title ~ figure > svg "
                            "rect.forward, #plan-title ~ figure > svg rect.backward').length"),
            operations);

  // The slow rank is named with its node, and no other.
  EXPECT_EQ(page_->Evaluate("[...document.querySelectorAll('[data-slow-rank]')]"
                            ".map(n => n.dataset.slowRank).join()"),
            "5");
  EXPECT_THAT(Text("[data-slow-rank]"), HasSubstr("Rank 5 on node gpu-103 is slow, it takes 1.3"));
  // Why fallbacks were taken: here the ranks did not say.
  EXPECT_THAT(Text("[data-fallback-step=\"9\"]"), HasSubstr("Steps 9 to 10 were trained by the"));
  EXPECT_THAT(Text("[data-fallback-step=\"17\"]"), HasSubstr("did not report why"));
  Keep("job");

  // Figures follow the job without anybody's doing, and what was opened stays open.
  page_->Evaluate("document.querySelector('details[data-open=steps]').open = true");
  job.Step(24);
  page_->WaitUntil("document.querySelector('tr[data-step=\"24\"]') !== null");
  EXPECT_EQ(page_->Evaluate("document.querySelector('details[data-open=steps]').open"), true);
  Keep("job-steps-open");

  // On a telephone charts scroll within their figures, and the page does not.
  page_->Resize(400, 800);
  page_->WaitUntil(
      "innerWidth === 400 && document.querySelector('#imbalance-title ~ figure > svg')"
      ".clientWidth === 460");
  ExpectAccessible();
  Keep("job-narrow");
}

TEST_F(StatusPageBrowserTest, HostileNamesAreTextAndNothingElse) {
  const std::vector<std::string> names = {
      R"("><script>window.hacked = 1</script><img src=x onerror="window.hacked = 1">)",
      R"('"`);window.hacked=1;//${window.hacked=1}\</title></h1>)",
      "<b>" + std::string(194, 'W') + "</b",
      "訓練 תרגול 🚀 \u202Egnp.exe%2F%00/../#/job/x?&+;",
  };
  std::vector<std::unique_ptr<PageJob>> jobs;
  for (const std::string& name : names) {
    jobs.push_back(std::make_unique<PageJob>(
        client_.get(), PageJobShape{.ns = "<i>team</i> & 'co' \"", .name = name, .data = 1}));
    jobs.back()->Register();
  }
  jobs[0]->Join();
  jobs[0]->Step(0);
  OpenJobs();
  ExpectAccessible();
  EXPECT_EQ(page_->Evaluate("document.querySelectorAll('tr[data-job]').length"), 4);
  Keep("jobs-hostile-names");
  for (const auto& job : jobs) {
    OpenJob(*job);
    EXPECT_EQ(Text("h1"), job->full_name());
    EXPECT_EQ(page_->Evaluate("document.title"), job->full_name() + " – SparseBalance coordinator");
    EXPECT_EQ(page_->Evaluate("document.querySelectorAll('main script, main img, main b, main i')"
                              ".length"),
              0);
    ExpectAccessible();
    // The address alone leads there too.
    const json address = page_->Evaluate("location.href");
    page_->Open("about:blank");
    page_->Open(address.get<std::string>());
    page_->WaitUntil("document.querySelector('main[data-ready] h1') !== null");
    EXPECT_EQ(Text("h1"), job->full_name());
  }
}

TEST_F(StatusPageBrowserTest, TheKeyboardAloneIsEnough) {
  PageJob job(client_.get(), {.name = "first", .data = 1});
  job.Register();
  job.Join();
  job.Step(0);
  OpenJobs();
  page_->Press("Tab");
  EXPECT_EQ(page_->Evaluate("document.activeElement.textContent"), "Skip to the content");
  EXPECT_EQ(page_->Evaluate("document.activeElement.getBoundingClientRect().top >= 0 || "
                            "matchMedia('(prefers-reduced-motion: no-preference)').matches"),
            true);
  page_->Press("Enter");
  EXPECT_EQ(page_->Evaluate("document.activeElement.id"), "main");
  const auto tab_to = [&](const std::string& what) {
    for (int i = 0; i < 12; ++i) {
      page_->Press("Tab");
      if (page_->Evaluate("document.activeElement.textContent") == what) {
        // It is seen where the focus is.
        EXPECT_NE(page_->Evaluate("getComputedStyle(document.activeElement).outlineStyle"), "none");
        return true;
      }
    }
    return false;
  };
  ASSERT_TRUE(tab_to("default/first"));
  page_->Press("Enter");
  page_->WaitUntil(
      "document.querySelector('main').dataset.ready === 'default/first' && "
      "document.activeElement.tagName === 'H1'");
  // The focus stays where it is while the page refreshes itself.
  ASSERT_TRUE(tab_to("Table of the last 1 step"));
  page_->Press("Enter");
  EXPECT_EQ(page_->Evaluate("document.querySelector('details[data-open=steps]').open"), true);
  job.Step(1);
  page_->WaitUntil("document.querySelector('tr[data-step=\"1\"]') !== null");
  EXPECT_EQ(page_->Evaluate("document.activeElement.textContent"), "Table of the last 2 steps");
  EXPECT_EQ(page_->Evaluate("document.querySelector('details[data-open=steps]').open"), true);
}

TEST_F(StatusPageBrowserTest, SaysWhyAFallbackWasTaken) {
  OpenJobs();
  const auto sentence = [&](const std::string& step) {
    return page_
        ->Evaluate(absl::StrCat(
            "import('/step_view.js').then(m => m.fallbackPanel({steps: [{step: '7', used_fallback: "
            "true",
            step, "}], planned: [], total: '1', reported: '9'}).querySelector('li').textContent)"))
        .get<std::string>();
  };
  const std::string known = "Step 7 was trained by the workers' own plan, balanced by length: ";
  EXPECT_EQ(sentence(""), known + "the ranks did not report why.");
  EXPECT_EQ(sentence(", no_plan_reason: 'NO_PLAN_REASON_NONE'"),
            known + "the ranks did not report why.");
  EXPECT_EQ(sentence(", no_plan_reason: 'NO_PLAN_REASON_COORDINATOR_AWAY'"),
            known + "the coordinator could not be reached.");
  EXPECT_EQ(sentence(", no_plan_reason: 'NO_PLAN_REASON_LATE'"),
            known + "the plan had not come by the deadline.");
  EXPECT_EQ(sentence(", no_plan_reason: 'NO_PLAN_REASON_UNFIT'"),
            known + "the plan that came did not fit the rank or its batch.");
  EXPECT_EQ(sentence(", no_plan_reason: 'NO_PLAN_REASON_RANKS_DIFFER'"),
            known + "the ranks did not all have the same plan.");
}

TEST_F(StatusPageBrowserTest, OfALargeJobTheSlowestRanksAreShownAndThePageSaysSo) {
  PutPageProfile(*client_, "default");
  PageJob job(client_.get(), {.name = "large",
                              .data = 256,
                              .pipeline = 4,
                              .ranks_per_node = 512,
                              .sequences = 2048,
                              .slow = {{100, 1.4}, {801, 1.2}}});
  job.Register();
  job.Join();
  for (uint64_t step = 0; step < 5; ++step) job.Step(step);
  OpenJob(job);
  ExpectAccessible();
  EXPECT_THAT(Text("[aria-labelledby=ranks-title]"), HasSubstr("1,024 of 1,024 are in"));
  EXPECT_THAT(Text("[aria-labelledby=ranks-title]"), HasSubstr("The 64 listed are"));
  EXPECT_THAT(Text("[aria-labelledby=plan-title]"),
              HasSubstr("slowest of 256 data-parallel ranks"));
  EXPECT_LT(page_->Evaluate("document.querySelectorAll('*').length").get<int>(), 20'000);
  Keep("job-large");
}

TEST_F(StatusPageBrowserTest, SaysWhenTheCoordinatorIsAwayAndComesBackByItself) {
  PageJob job(client_.get(), {.name = "job", .data = 1});
  job.Register();
  OpenJob(job);
  coordinator_->Signal(SIGKILL);
  coordinator_->Wait();
  page_->WaitUntil("document.querySelector('[role=alert]') !== null");
  EXPECT_THAT(Text("[role=alert]"), HasSubstr("cannot be reached"));
  EXPECT_EQ(Text("h1"), "default/job");
  Keep("job-coordinator-away");
  // The browser itself tells of connections that are refused.
  EXPECT_THAT(page_->TakeProblems(), Each(HasSubstr("ERR_CONNECTION_REFUSED")));
  coordinator_ = Start();
  page_->WaitUntil(
      "document.querySelector('[role=alert]') === null && "
      "document.querySelector('#epoch').textContent === '2'");
  EXPECT_THAT(page_->TakeProblems(), Each(HasSubstr("ERR_CONNECTION_REFUSED")));
}

TEST_F(StatusPageBrowserTest, AJobThatIsNotThereIsSaidToBeUnknown) {
  page_->Open(site() + "/#/job/default/nobody");
  page_->WaitUntil(
      "document.querySelector('main').textContent.includes('default/nobody is not known')");
  EXPECT_EQ(Text("h1"), "default/nobody");
  EXPECT_THAT(page_->TakeProblems(), Each(HasSubstr("404")));
  // It appears as soon as it is registered.
  PageJob job(client_.get(), {.name = "nobody", .data = 1});
  job.Register();
  page_->WaitUntil("document.querySelector('main[data-ready] h1') !== null");
  EXPECT_THAT(Text(".head"), HasSubstr("registered"));
  EXPECT_THAT(page_->TakeProblems(), Each(HasSubstr("404")));
}

}  // namespace
}  // namespace sparsebalance::testing_support
