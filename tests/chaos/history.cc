#include "tests/chaos/history.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/util/json_util.h"

namespace sparsebalance::chaos {
namespace {

void AddIds(const v1::PlanRecord& record, std::vector<uint64_t>& ids) {
  for (const v1::RankPlan& rank : record.plan().ranks()) {
    for (const v1::MicroBatch& micro_batch : rank.micro_batches()) {
      for (const v1::Slice& slice : micro_batch.slices()) {
        if (slice.token_begin() == 0) ids.push_back(slice.sequence_id());
      }
    }
  }
}

void CheckLives(const NodeHistory& node, std::vector<std::string>& objections) {
  uint64_t last_step = 0;
  uint64_t epoch = 0;
  uint64_t generation = 0;
  bool first = true;
  for (const v1::PlanRecord& record : node.records) {
    if (!first && record.step() <= last_step) {
      // A new life begins where a checkpoint was. Epochs go on rising over lives, too, but the
      // process has forgotten the last one, so only its own are its word.
      epoch = 0;
      generation = 0;
    }
    first = false;
    last_step = record.step();
    if (record.used_fallback()) continue;
    if (record.leader_epoch() < epoch) {
      objections.push_back(absl::StrCat("node ", node.node, ", step ", record.step(),
                                        ": used a plan of leader epoch ", record.leader_epoch(),
                                        " after one of ", epoch));
    }
    if (record.generation() < generation) {
      objections.push_back(absl::StrCat("node ", node.node, ", step ", record.step(),
                                        ": used a plan of generation ", record.generation(),
                                        " after one of ", generation));
    }
    epoch = record.leader_epoch();
    generation = record.generation();
  }
}

}  // namespace

std::vector<NodeHistory> ReadHistories(const std::string& folder) {
  std::vector<NodeHistory> nodes;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    NodeHistory& node = nodes.emplace_back();
    node.node = entry.path().stem().string();
    std::ifstream in(entry.path());
    for (std::string line; std::getline(in, line);) {
      v1::PlanRecord record;
      if (google::protobuf::util::JsonStringToMessage(line, &record).ok()) {
        node.records.push_back(std::move(record));
      }
    }
  }
  std::sort(nodes.begin(), nodes.end(),
            [](const NodeHistory& a, const NodeHistory& b) { return a.node < b.node; });
  return nodes;
}

std::vector<std::string> Objections(const std::vector<NodeHistory>& nodes, const RunFacts& run) {
  std::vector<std::string> objections;
  // By step, what each node did in its last run of it.
  std::map<uint64_t, std::map<std::string, const v1::PlanRecord*>> last;
  for (const NodeHistory& node : nodes) {
    CheckLives(node, objections);
    for (const v1::PlanRecord& record : node.records) last[record.step()][node.node] = &record;
  }
  std::map<uint64_t, uint64_t> times;  // by sequence
  for (uint64_t step = 0; step < run.steps; ++step) {
    const auto& records = last[step];
    if (records.size() != nodes.size()) {
      objections.push_back(absl::StrCat("step ", step, " was run by ", records.size(), " of ",
                                        nodes.size(), " nodes"));
      continue;
    }
    std::vector<uint64_t> ids;
    const v1::PlanRecord& first = *records.begin()->second;
    for (const auto& [node, record] : records) {
      AddIds(*record, ids);
      if (record->plan_digest() != first.plan_digest() ||
          record->used_fallback() != first.used_fallback()) {
        objections.push_back(absl::StrCat(
            "step ", step, ": node ", node, " used plan ", absl::Hex(record->plan_digest()),
            ", node ", records.begin()->first, " ", absl::Hex(first.plan_digest())));
      }
    }
    for (const uint64_t id : ids) ++times[id];
  }
  if (last.size() > run.steps) {
    objections.push_back(absl::StrCat("the run went on beyond its ", run.steps, " steps"));
  }
  // An epoch is cut where it ends, so whole epochs train each sequence equally often.
  const uint64_t steps_an_epoch = (run.sequences + run.batch - 1) / run.batch;
  const uint64_t expected = run.steps / steps_an_epoch;
  for (uint64_t id = 0; id < run.sequences; ++id) {
    if (times[id] != expected) {
      objections.push_back(
          absl::StrCat("sequence ", id, " was trained ", times[id], " times, not ", expected));
    }
  }
  return objections;
}

}  // namespace sparsebalance::chaos
