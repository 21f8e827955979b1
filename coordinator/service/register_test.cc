#include <limits>

#include "coordinator/service/service_test_util.h"

namespace sparsebalance {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using namespace testing_support;  // NOLINT(google-build-using-namespace)

class RegisterTest : public testing::Test {
 protected:
  absl::StatusOr<v1::RegisterJobResponse> Register(const v1::JobSpec& spec, uint64_t epoch = 0) {
    v1::RegisterJobRequest request;
    *request.mutable_spec() = spec;
    request.set_known_leader_epoch(epoch);
    return coordinator_.Register(request);
  }
  std::string ViolatedField(const v1::JobSpec& spec) {
    const auto answer = Register(spec);
    EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
    return Detail<v1::FieldViolation>(answer.status()).field();
  }

  MemoryStore store_;
  Coordinator coordinator_{&store_};
};

TEST_F(RegisterTest, IsIdempotentByNameAndSpec) {
  const auto first = Register(MakeSpec("job"));
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_TRUE(first->created());
  const auto again = Register(MakeSpec("job"));
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->created());
  EXPECT_EQ(again->spec_fingerprint(), first->spec_fingerprint());
}

TEST_F(RegisterTest, AnEmptyNamespaceIsTheDefaultOne) {
  v1::JobSpec named = MakeSpec("job");
  named.mutable_job()->set_namespace_("default");
  ASSERT_TRUE(Register(MakeSpec("job")).ok());
  const auto again = Register(named);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_FALSE(again->created());
}

TEST_F(RegisterTest, AnotherSpecUnderALiveNameNamesTheFieldsThatDiffer) {
  coordinator_.Register(MakeSpec("job"));
  const JoinPending waiting = coordinator_.Join("job", "a", {0});
  v1::JobSpec other = MakeSpec("job");
  other.set_dataset_fingerprint(8);
  other.mutable_plan()->set_base_budget_blocks(9);
  const auto answer = Register(other);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(Detail<v1::SpecConflict>(answer.status()).differing_fields(),
              ElementsAre("plan.base_budget_blocks", "dataset_fingerprint"));
  EXPECT_FALSE(waiting.answered());
}

TEST_F(RegisterTest, AnotherSpecReplacesAJobWithoutNodes) {
  coordinator_.FormPair("job");
  for (const char* node : {"a", "b"}) {
    v1::LeaveJobRequest leave;
    *leave.mutable_node() = Coordinator::Key("job", node);
    ASSERT_TRUE(coordinator_.registry->LeaveJob(leave).ok());
  }
  v1::JobSpec other = MakeSpec("job");
  other.mutable_plan()->set_base_budget_blocks(9);
  const auto answer = Register(other);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_TRUE(answer->created());
  EXPECT_EQ(coordinator_.Status("job").spec().plan().base_budget_blocks(), 9u);
  // Generations go on: one number never stands for two memberships.
  const JoinPending a = coordinator_.Join("job", "a", {0}, 2);
  const JoinPending b = coordinator_.Join("job", "b", {1}, 2);
  ASSERT_TRUE(b.answered());
  EXPECT_EQ(a->generation(), 2u);
}

TEST_F(RegisterTest, AnUnknownPolicyIsRefusedWithTheKnownOnes) {
  v1::JobSpec spec = MakeSpec("job");
  spec.mutable_plan()->set_policy("fastest");
  const auto answer = Register(spec);
  EXPECT_EQ(answer.status().code(), absl::StatusCode::kInvalidArgument);
  const auto violation = Detail<v1::FieldViolation>(answer.status());
  EXPECT_EQ(violation.field(), "spec.plan.policy");
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("karmarkar-karp"));
  EXPECT_THAT(std::string(answer.status().message()), HasSubstr("fastest"));
}

TEST_F(RegisterTest, BadFieldsAreRefusedByName) {
  v1::JobSpec spec = MakeSpec("");
  EXPECT_EQ(ViolatedField(spec), "spec.job.name");
  spec = MakeSpec(std::string(201, 'x'));
  EXPECT_EQ(ViolatedField(spec), "spec.job.name");
  spec = MakeSpec("line\nbreak");
  EXPECT_EQ(ViolatedField(spec), "spec.job.name");
  spec = MakeSpec("c1 \xc2\x85 control");
  EXPECT_EQ(ViolatedField(spec), "spec.job.name");
  spec = MakeSpec("job");
  spec.mutable_job()->set_namespace_("a\tb");
  EXPECT_EQ(ViolatedField(spec), "spec.job.namespace");
  spec = MakeSpec("job");
  spec.mutable_parallelism()->set_data(3);
  EXPECT_EQ(ViolatedField(spec), "spec.plan.data_parallel_size");
  spec = MakeSpec("job");
  spec.mutable_parallelism()->set_pipeline(2);
  EXPECT_EQ(ViolatedField(spec), "spec.plan.pipeline_parallel_size");
  spec = MakeSpec("job");
  spec.mutable_parallelism()->clear_data();
  EXPECT_EQ(ViolatedField(spec), "spec.parallelism.data");
  spec = MakeSpec("job");
  spec.mutable_parallelism()->set_sequence(std::numeric_limits<uint32_t>::max());
  EXPECT_EQ(ViolatedField(spec), "spec.parallelism");
  spec = MakeSpec("job");
  spec.clear_num_layers();
  EXPECT_EQ(ViolatedField(spec), "spec.num_layers");
  spec = MakeSpec("job");
  spec.clear_global_batch_size();
  EXPECT_EQ(ViolatedField(spec), "spec.global_batch_size");
  spec = MakeSpec("job");
  spec.set_lease_ms(1);
  EXPECT_EQ(ViolatedField(spec), "spec.lease_ms");
  spec = MakeSpec("job");
  spec.mutable_plan()->set_coverage_guard(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(ViolatedField(spec), "spec.plan.coverage_guard");
  EXPECT_TRUE(coordinator_.registry->ListJobs({})->jobs().empty());
}

TEST_F(RegisterTest, PipelineOfZeroAndOneAreTheSame) {
  v1::JobSpec spec = MakeSpec("job");
  spec.mutable_parallelism()->set_pipeline(1);
  EXPECT_TRUE(Register(spec).ok());
}

TEST_F(RegisterTest, TheNumberOfJobsIsBounded) {
  MemoryStore store;
  ServiceOptions options;
  options.max_jobs = 1;
  Coordinator small(&store, options);
  small.Register(MakeSpec("first"));
  v1::RegisterJobRequest request;
  *request.mutable_spec() = MakeSpec("second");
  EXPECT_EQ(small.Register(request).status().code(), absl::StatusCode::kResourceExhausted);
  small.Register(MakeSpec("first"));
  EXPECT_EQ(small.registry->ListJobs({})->jobs_size(), 1);
}

TEST_F(RegisterTest, TheEpochRisesAboveEveryEpochThatAClientReports) {
  const uint64_t before = coordinator_.claims->current();
  const auto answer = Register(MakeSpec("job"), before + 40);
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GT(answer->leader_epoch(), before + 40);
  const auto absurd = Register(MakeSpec("job"), std::numeric_limits<uint64_t>::max());
  EXPECT_EQ(absurd.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(Detail<v1::FieldViolation>(absurd.status()).field(), "known_leader_epoch");
}

TEST_F(RegisterTest, JobsAreListedByNamespaceThenName) {
  for (const auto& [ns, name] : {std::pair{"z", "a"}, {"", "b"}, {"", "a"}}) {
    v1::JobSpec spec = MakeSpec(name);
    spec.mutable_job()->set_namespace_(ns);
    coordinator_.Register(spec);
  }
  std::vector<std::string> names;
  const v1::ListJobsResponse all = *coordinator_.registry->ListJobs({});
  for (const v1::JobSummary& job : all.jobs()) {
    names.push_back(job.job().namespace_() + "/" + job.job().name());
  }
  EXPECT_THAT(names, ElementsAre("default/a", "default/b", "z/a"));
  v1::ListJobsRequest only;
  only.set_namespace_("z");
  EXPECT_EQ(coordinator_.registry->ListJobs(only)->jobs_size(), 1);
}

}  // namespace
}  // namespace sparsebalance
