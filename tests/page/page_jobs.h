// Jobs for the status page to show: nodes that ask a real coordinator for plans and report steps
// that took what a latency model says, on some ranks longer. Nothing is trained.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "coordinator/service/server_test_client.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance::testing_support {

struct PageJobShape {
  std::string ns = "default";
  std::string name;
  uint32_t data = 2;
  uint32_t pipeline = 1;
  uint32_t ranks_per_node = 1;
  int sequences = 32;               // of a step
  std::map<uint32_t, double> slow;  // by global rank: times as long as the model says
  std::string policy = "sparsebalance";
};

class PageJob {
 public:
  PageJob(TestClient* client, PageJobShape shape);

  void Register();
  // All nodes join.
  void Join();
  // One node alone takes its ranks, and waits no longer than it must for the others.
  void JoinAlone(uint32_t node);
  // Asks for the plan of a step, and reports it as trained, by the workers' own plan if `fallback`.
  void Step(uint64_t step, bool fallback = false);
  void Finish();

  v1::JobKey key() const;
  v1::JobStatus Status();
  std::string full_name() const { return shape_.ns + "/" + shape_.name; }

 private:
  uint32_t ranks() const { return shape_.data * shape_.pipeline; }
  uint32_t nodes() const { return ranks() / shape_.ranks_per_node; }
  std::string NodeId(uint32_t node) const;
  v1::NodeKey NodeKey(uint32_t node) const;
  v1::JoinJobRequest JoinRequest(uint32_t node) const;
  v1::GlobalBatch Batch(uint64_t step) const;
  v1::RankTelemetry Telemetry(uint32_t rank, uint64_t step, const v1::RankPlan& plan,
                              bool fallback) const;
  // One call for each node, at the same time.
  void OfEveryNode(const std::function<void(uint32_t node)>& call) const;

  TestClient* const client_;
  const PageJobShape shape_;
  uint64_t fingerprint_ = 0;
  uint64_t generation_ = 0;
};

// What the coordinator plans these jobs by: times of the order of a small model's on a GPU.
void PutPageProfile(TestClient& client, const std::string& ns);

}  // namespace sparsebalance::testing_support
