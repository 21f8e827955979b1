// Stands for the trainer that exists already, before it knows of SparseBalance: its data order, its
// communicator, and the step itself, which is a short sleep here. A real one has all of this.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

constexpr uint32_t kRanks = 2;
constexpr uint32_t kBatchSize = 8;
constexpr uint32_t kBaseBudgetBlocks = 4;

struct TokenSequence {
  uint64_t id;
  uint64_t tokens;
};

// What a rank trains of a step: sequences by micro-batch, each with its attention budget.
struct Work {
  uint64_t id;
  uint64_t tokens;
  uint32_t budget_blocks;
};
using MicroBatches = std::vector<std::vector<Work>>;

// The global batch of a step: every rank computes the same one, from the step alone.
inline std::vector<TokenSequence> GlobalBatchOf(uint64_t step) {
  std::vector<TokenSequence> batch;
  for (uint64_t id = step * kBatchSize; id < (step + 1) * kBatchSize; ++id) {
    batch.push_back({id, 64 + id * 7919 % 1024});
  }
  return batch;
}

// What a rank trains without a plan of the coordinator: longest sequence first, each to the rank
// with the fewest tokens so far. It depends on the batch alone, so the ranks need not talk.
inline MicroBatches BalancedByLength(std::vector<TokenSequence> batch, uint32_t rank) {
  std::stable_sort(batch.begin(), batch.end(), [](const TokenSequence& a, const TokenSequence& b) {
    return a.tokens > b.tokens;
  });
  std::array<uint64_t, kRanks> tokens{};
  MicroBatches work;
  for (const TokenSequence& sequence : batch) {
    const auto least = std::min_element(tokens.begin(), tokens.end());
    *least += sequence.tokens;
    if (least - tokens.begin() == rank) {
      work.push_back({{sequence.id, sequence.tokens, kBaseBudgetBlocks}});
    }
  }
  return work;
}

struct Times {
  double forward_ms;
  double backward_ms;
};

// Forward and backward of a micro-batch.
inline Times TrainMicroBatch(const std::vector<Work>& micro_batch) {
  const auto pass = [&](uint64_t microseconds_per_token) {
    const auto begin = std::chrono::steady_clock::now();
    for (const Work& sequence : micro_batch) {
      std::this_thread::sleep_for(
          std::chrono::microseconds(sequence.tokens * microseconds_per_token));
    }
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
    return took.count();
  };
  return {pass(1), pass(2)};
}

// "step 3 plan 00c0ffee00c0ffee: 24 27 31", or "step 3 fallback: ...".
inline void PrintStep(uint64_t step, uint64_t plan_digest, const MicroBatches& work) {
  std::printf("step %lu ", step);
  plan_digest == 0 ? std::printf("fallback:") : std::printf("plan %016lx:", plan_digest);
  for (const std::vector<Work>& micro_batch : work) {
    for (const Work& sequence : micro_batch) std::printf(" %lu", sequence.id);
  }
  std::printf("\n");
  std::fflush(stdout);
}

inline uint64_t MicrosecondsSince1970() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

// All-reduce over TCP on loopback, for the place of NCCL, Gloo or MPI: rank 0 gathers and tells.
class Communicator {
 public:
  // Rank 0 listens; what Address() returns travels to the others as rendezvous data of JoinJob.
  explicit Communicator(uint32_t rank) : rank_(rank) {
    if (rank != 0) return;
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    if (bind(listener_, Generic(address), size) != 0 || listen(listener_, 16) != 0) return;
    if (getsockname(listener_, Generic(address), &size) == 0) port_ = ntohs(address.sin_port);
  }
  ~Communicator() {
    for (const int peer : peers_) close(peer);
    if (listener_ >= 0) close(listener_);
  }
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  std::string Address() const { return std::to_string(port_); }

  // Collective. `address` is that of rank 0. False: a peer cannot be reached.
  bool Connect(const std::string& address) {
    for (uint32_t r = 1; rank_ == 0 && r < kRanks; ++r) {
      peers_.push_back(accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC));
    }
    if (rank_ != 0) {
      peers_.push_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
      sockaddr_in root = Loopback(static_cast<uint16_t>(std::atoi(address.c_str())));
      if (connect(peers_[0], Generic(root), sizeof(root)) != 0) return false;
    }
    return std::all_of(peers_.begin(), peers_.end(), [](int peer) { return peer >= 0; });
  }

  // Collective: each value becomes the largest of all ranks. False: a peer is lost.
  template <size_t N>
  bool AllReduceMax(std::array<uint64_t, N>& values) {
    if (rank_ != 0 && !Send(peers_[0], values)) return false;
    for (const int peer : peers_) {
      std::array<uint64_t, N> theirs;
      if (recv(peer, theirs.data(), sizeof(theirs), MSG_WAITALL) != sizeof(theirs)) return false;
      for (size_t i = 0; i < N; ++i) values[i] = std::max(values[i], theirs[i]);
    }
    return rank_ != 0 ||
           std::all_of(peers_.begin(), peers_.end(), [&](int peer) { return Send(peer, values); });
  }

 private:
  static sockaddr_in Loopback(uint16_t port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static sockaddr* Generic(sockaddr_in& address) { return reinterpret_cast<sockaddr*>(&address); }
  template <size_t N>
  static bool Send(int peer, const std::array<uint64_t, N>& values) {
    return send(peer, values.data(), sizeof(values), MSG_NOSIGNAL) == sizeof(values);
  }

  const uint32_t rank_;
  int listener_ = -1;
  int port_ = 0;
  std::vector<int> peers_;
};
