// A job's nodes as a coordinator sees them, without the training: calls over real connections, many
// at a time, timed one by one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "sparsebalance/v1/coordinator.grpc.pb.h"

namespace sparsebalance::load {

// Connections shared by the nodes of a test: a thousand nodes need not be a thousand sockets.
class Channels {
 public:
  Channels(const std::string& address, int count);
  v1::Coordinator::Stub& stub(size_t node) { return *stubs_[node % stubs_.size()]; }
  grpc::Channel& channel(size_t index) { return *channels_[index % channels_.size()]; }
  std::shared_ptr<grpc::Channel> shared(size_t index) {
    return channels_[index % channels_.size()];
  }

 private:
  std::vector<std::shared_ptr<grpc::Channel>> channels_;
  std::vector<std::unique_ptr<v1::Coordinator::Stub>> stubs_;
};

struct JobShape {
  std::string name = "load";
  uint32_t nodes = 2;
  uint32_t ranks_per_node = 1;
  uint32_t sequences = 8;  // of a step
  std::string policy = "sparsebalance";
  uint64_t seed = 1;  // of the lengths
};

class LoadJob {
 public:
  LoadJob(Channels* channels, JobShape shape);

  // Registers and joins; afterwards the job trains. Errors are the coordinator's.
  absl::Status Join();
  // All nodes leave, the job done.
  absl::Status Leave();

  struct Round {
    absl::Duration took;                  // from the first call to the last answer
    std::vector<absl::Duration> latency;  // of each node's call
    absl::Status status;                  // the first error
  };
  // Every node asks for the step, all at the same time.
  Round Ask(uint64_t step);
  // Every node reports the step as trained.
  absl::Status Report(uint64_t step);
  // Node 0 tells that the step's sequences were consumed, and asks until that is stored.
  absl::Status Consume(uint64_t step);

  const JobShape& shape() const { return shape_; }
  v1::NodeKey Key(uint32_t node) const;

 private:
  const v1::GlobalBatch& Batch(uint64_t step);
  template <typename Request, typename Response>
  Round CallAll(std::vector<Request>& requests, std::vector<Response>& responses,
                void (v1::Coordinator::Stub::async_interface::*method)(
                    grpc::ClientContext*, const Request*, Response*,
                    std::function<void(grpc::Status)>));

  Channels* const channels_;
  const JobShape shape_;
  uint64_t generation_ = 0;
  uint64_t incarnation_ = 1;
  v1::GlobalBatch batch_;
  bool batch_made_ = false;
};

// The given part of the values, for example 0.99.
absl::Duration Quantile(std::vector<absl::Duration> values, double part);

}  // namespace sparsebalance::load
