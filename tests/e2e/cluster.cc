#include "tests/e2e/cluster.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "google/protobuf/util/json_util.h"

namespace sparsebalance::e2e {

std::vector<std::string> Cluster::WorkerArguments(int ranks, int rank,
                                                  const std::vector<std::string>& more) const {
  const std::vector<std::pair<std::string, std::string>> defaults = {
      {"--coordinator", address()},
      {"--job", "e2e"},
      {"--dataset", dataset()},
      {"--data-parallel", absl::StrCat(ranks)},
      {"--ranks", absl::StrCat(rank)},
      {"--node-id", absl::StrCat("node-", rank)},
      {"--output", output()},
      {"--global-batch-size", "8"},
      {"--max-tokens-per-micro-batch", "512"},
      {"--block-tokens", "32"},
      {"--base-budget", "4"},
      {"--hidden-size", "32"},
      {"--layers", "2"},
      {"--heads", "2"},
      {"--kv-heads", "1"},
      {"--intermediate-size", "64"},
      {"--collective-timeout-s", "60"},
      {"--start-timeout-s", "120"}};
  std::vector<std::string> arguments = {Program("sparsebalance-worker")};
  for (const auto& [flag, value] : defaults) {
    if (std::find(more.begin(), more.end(), flag) != more.end()) continue;
    arguments.push_back(flag);
    arguments.push_back(value);
  }
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

std::vector<v1::PlanRecord> Cluster::Records(const std::string& policy) const {
  std::vector<v1::PlanRecord> records;
  for (const auto& entry : std::filesystem::directory_iterator(output() + "/plans/" + policy)) {
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      v1::PlanRecord record;
      EXPECT_TRUE(google::protobuf::util::JsonStringToMessage(line, &record).ok()) << line;
      records.push_back(std::move(record));
    }
  }
  return records;
}

std::map<uint64_t, int> TimesTrained(const std::vector<v1::PlanRecord>& records,
                                     uint64_t first_step, uint64_t end_step) {
  std::map<uint64_t, int> times;
  for (const v1::PlanRecord& record : records) {
    if (record.step() < first_step || record.step() >= end_step) continue;
    for (const v1::RankPlan& rank : record.plan().ranks()) {
      for (const v1::MicroBatch& micro_batch : rank.micro_batches()) {
        for (const v1::Slice& slice : micro_batch.slices()) ++times[slice.sequence_id()];
      }
    }
  }
  return times;
}

}  // namespace sparsebalance::e2e
