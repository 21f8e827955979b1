// sbctl's verbs that ask a coordinator. Each returns the program's exit code: 0 answered, 1 there
// is no answer, which has been explained in one line on stderr.
#pragma once

#include <cstdint>
#include <string>

#include "coordinator/cli/coordinator_session.h"

namespace sparsebalance {

struct OnlineFlags {
  std::string format = "table";  // table, json, or names where a verb lists jobs
  std::string job;               // [NAMESPACE/]NAME
  std::string ns;
  uint64_t step = 0;
  bool explain = false;
  std::string node;
  std::string reason;
  bool force = false;
  bool replace = false;
  std::string file;
  uint64_t updates = 0;  // of watch; 0: until interrupted
};

class OnlineVerbs {
 public:
  OnlineVerbs(CoordinatorSession session, OnlineFlags flags)
      : session_(std::move(session)), flags_(std::move(flags)) {}

  int Jobs();
  int Job();
  int Plan();
  // A live table: of one job, or of all where none is named. On a terminal it stays in place; else
  // every change is written below the last.
  int Watch();
  int Evict();
  int Remove();
  int Drain();
  int Backup();
  int Restore();

 private:
  // What all replicas know of their jobs.
  absl::Status ListEverywhere(v1::ListJobsResponse& all);
  int WatchAll();
  int WatchOne();
  template <typename View>
  int Show(const google::protobuf::Message& message, View view);
  void Redraw(const std::string& view);
  int Fail(const absl::Status& status);
  std::string KnownJobs();

  CoordinatorSession session_;
  const OnlineFlags flags_;
};

}  // namespace sparsebalance
