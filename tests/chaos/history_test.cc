// A checker that finds nothing in anything would make every round of chaos pass.
#include "tests/chaos/history.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace sparsebalance::chaos {
namespace {

using testing::Contains;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr RunFacts kRun{.steps = 4, .sequences = 4, .batch = 2};

v1::PlanRecord Record(uint64_t step, uint64_t sequence, uint64_t epoch = 1, uint64_t digest = 0) {
  v1::PlanRecord record;
  record.set_step(step);
  record.set_plan_digest(digest == 0 ? 100 + step : digest);
  record.set_leader_epoch(epoch);
  record.set_generation(1);
  v1::Slice* slice = record.mutable_plan()->add_ranks()->add_micro_batches()->add_slices();
  slice->set_sequence_id(sequence);
  slice->set_token_end(10);
  return record;
}

// Two nodes, two epochs of two steps: node a trains sequences 0 and 2, node b 1 and 3.
std::vector<NodeHistory> SoundRun() {
  std::vector<NodeHistory> nodes = {{"a", {}}, {"b", {}}};
  for (uint64_t step = 0; step < 4; ++step) {
    nodes[0].records.push_back(Record(step, 2 * (step % 2)));
    nodes[1].records.push_back(Record(step, 2 * (step % 2) + 1));
  }
  return nodes;
}

TEST(History, OfASoundRunIsNotObjectedTo) { EXPECT_THAT(Objections(SoundRun(), kRun), IsEmpty()); }

TEST(History, WithStepsThatWereRunAgainFromACheckpointIsSound) {
  std::vector<NodeHistory> nodes = SoundRun();
  for (size_t n = 0; n < 2; ++n) {
    std::vector<v1::PlanRecord> again = nodes[n].records;
    again[2].set_plan_digest(777);
    nodes[n].records.insert(nodes[n].records.end(), again.begin() + 1, again.end());
  }
  EXPECT_THAT(Objections(nodes, kRun), IsEmpty());
}

TEST(History, WithTwoPlansInOneStepIsNot) {
  std::vector<NodeHistory> nodes = SoundRun();
  nodes[1].records[2].set_plan_digest(5);
  EXPECT_THAT(Objections(nodes, kRun), Contains(HasSubstr("step 2: node b used plan 5")));
  nodes = SoundRun();
  nodes[1].records[2].set_used_fallback(true);
  EXPECT_THAT(Objections(nodes, kRun), Contains(HasSubstr("step 2: node b used plan")));
}

TEST(History, WithASequenceThatIsTrainedTwiceOrNeverIsNot) {
  std::vector<NodeHistory> nodes = SoundRun();
  nodes[0].records[0] = Record(0, 1);
  const auto objections = Objections(nodes, kRun);
  EXPECT_THAT(objections, Contains(HasSubstr("sequence 0 was trained 1 times, not 2")));
  EXPECT_THAT(objections, Contains(HasSubstr("sequence 1 was trained 3 times, not 2")));
}

TEST(History, WithAStepThatANodeDidNotRunIsNot) {
  std::vector<NodeHistory> nodes = SoundRun();
  nodes[1].records.pop_back();
  EXPECT_THAT(Objections(nodes, kRun), Contains(HasSubstr("step 3 was run by 1 of 2 nodes")));
}

TEST(History, WithAnEpochThatFallsIsNot) {
  std::vector<NodeHistory> nodes = SoundRun();
  for (NodeHistory& node : nodes) node.records[1].set_leader_epoch(9);
  EXPECT_THAT(Objections(nodes, kRun),
              Contains(HasSubstr("step 2: used a plan of leader epoch 1 after one of 9")));
}

}  // namespace
}  // namespace sparsebalance::chaos
