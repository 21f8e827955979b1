#include "coordinator/service/load_gate.h"

#include <vector>

#include "coordinator/planner/status_payload.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

LoadGate::Limits Limits(size_t calls, size_t bytes) {
  LoadGate::Limits limits;
  limits.max_calls = calls;
  limits.max_bytes = bytes;
  limits.retry_after = absl::Milliseconds(70);
  return limits;
}

// Enters until refused; returns the passes.
std::vector<LoadGate::Pass> Fill(LoadGate& gate, CallClass call_class, size_t bytes) {
  std::vector<LoadGate::Pass> passes;
  while (true) {
    auto pass = gate.Enter(call_class, bytes);
    if (!pass.ok()) return passes;
    passes.push_back(*std::move(pass));
  }
}

TEST(LoadGate, RefusesReadersFirstThenTrainingThenHeartbeats) {
  LoadGate gate(Limits(80, 1'000'000));
  const auto readers = Fill(gate, CallClass::kOther, 1);
  EXPECT_EQ(readers.size(), 60u);
  const auto training = Fill(gate, CallClass::kTraining, 1);
  EXPECT_EQ(training.size(), 10u);
  const auto heartbeats = Fill(gate, CallClass::kLiveness, 1);
  EXPECT_EQ(heartbeats.size(), 10u);
  EXPECT_EQ(gate.calls(), 80u);
  EXPECT_EQ(gate.refused(CallClass::kOther), 1u);
  EXPECT_EQ(gate.refused(CallClass::kTraining), 1u);
  EXPECT_EQ(gate.refused(CallClass::kLiveness), 1u);
}

TEST(LoadGate, CountsTheBytesOfRequestsToo) {
  LoadGate gate(Limits(1000, 800));
  const auto training = Fill(gate, CallClass::kTraining, 100);
  EXPECT_EQ(training.size(), 7u);
  EXPECT_FALSE(gate.Enter(CallClass::kOther, 1).ok());
  EXPECT_TRUE(gate.Enter(CallClass::kLiveness, 100).ok());
  EXPECT_EQ(gate.bytes(), 700u);
}

TEST(LoadGate, SaysWhenToCallAgain) {
  LoadGate gate(Limits(0, 0));
  const auto refused = gate.Enter(CallClass::kLiveness, 5);
  EXPECT_EQ(refused.status().code(), absl::StatusCode::kResourceExhausted);
  const auto detail = planner::GetDetail<v1::RetryLater>(refused.status());
  ASSERT_TRUE(detail.has_value());
  EXPECT_EQ(detail->retry_after_ms(), 70u);
}

TEST(LoadGate, LetsOthersInOnceACallHasEnded) {
  LoadGate gate(Limits(8, 1'000));
  auto passes = Fill(gate, CallClass::kLiveness, 0);
  EXPECT_EQ(passes.size(), 8u);
  passes.pop_back();
  auto moved = std::move(passes.back());
  passes.pop_back();
  EXPECT_EQ(gate.calls(), 7u);
  EXPECT_TRUE(gate.Enter(CallClass::kLiveness, 0).ok());
  moved = LoadGate::Pass();
  EXPECT_EQ(gate.calls(), 6u);
  passes.clear();
  EXPECT_EQ(gate.calls(), 0u);
  EXPECT_EQ(gate.bytes(), 0u);
}

}  // namespace
}  // namespace sparsebalance
