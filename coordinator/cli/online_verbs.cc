#include "coordinator/cli/online_verbs.h"

#include <unistd.h>

#include <iostream>
#include <map>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "coordinator/cli/backup_file.h"
#include "coordinator/cli/views.h"
#include "google/protobuf/util/json_util.h"

namespace sparsebalance {
namespace {

constexpr int kFailed = 1;
// How often a table of all jobs is drawn anew.
constexpr absl::Duration kWatchInterval = absl::Seconds(2);
constexpr absl::Duration kWatchWait = absl::Seconds(30);

v1::JobKey ParseJob(const std::string& text) {
  v1::JobKey key;
  const size_t slash = text.find('/');
  key.set_namespace_(slash == std::string::npos ? "default" : text.substr(0, slash));
  key.set_name(slash == std::string::npos ? text : text.substr(slash + 1));
  return key;
}

std::string NameOf(const v1::JobKey& key) {
  return absl::StrCat(key.namespace_(), "/", key.name());
}

}  // namespace

template <typename View>
int OnlineVerbs::Show(const google::protobuf::Message& message, View view) {
  if (flags_.format != "json") {
    std::cout << view();
    return 0;
  }
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = true;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    std::cerr << "sbctl: the answer cannot be written as JSON\n";
    return kFailed;
  }
  std::cout << text;
  return 0;
}

int OnlineVerbs::Fail(const absl::Status& status) {
  std::string line(status.message());
  const auto owner = planner::GetDetail<v1::NotOwner>(status);
  if (!owner && (absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status))) {
    line = absl::StrCat("coordinator at ", session_.address(), " cannot be reached: ", line);
  } else if (absl::IsNotFound(status) && !flags_.job.empty()) {
    absl::StrAppend(&line, KnownJobs());
  }
  std::cerr << "sbctl: " << line << "\n";
  return kFailed;
}

// Names the jobs there are, for a caller who named another.
std::string OnlineVerbs::KnownJobs() {
  v1::ListJobsResponse answer;
  if (!session_.Call(&v1::Coordinator::Stub::ListJobs, v1::ListJobsRequest(), &answer).ok()) {
    return "";
  }
  const std::string wanted = NameOf(ParseJob(flags_.job));
  std::vector<std::string> names;
  for (const v1::JobSummary& job : answer.jobs()) names.push_back(NameOf(job.job()));
  if (std::find(names.begin(), names.end(), wanted) != names.end()) return "";
  return names.empty() ? " (it knows no jobs)"
                       : absl::StrCat(" (it knows ", absl::StrJoin(names, ", "), ")");
}

absl::Status OnlineVerbs::ListEverywhere(v1::ListJobsResponse& all) {
  v1::ListJobsRequest request;
  request.set_namespace_(flags_.ns);
  if (absl::Status status = session_.Call(&v1::Coordinator::Stub::ListJobs, request, &all);
      !status.ok()) {
    return status;
  }
  std::set<std::string> replicas;
  for (const v1::JobSummary& job : all.jobs()) {
    if (!job.owner_address().empty()) replicas.insert(job.owner_address());
  }
  std::map<std::string, v1::JobSummary> known;
  for (const std::string& address : replicas) {
    v1::ListJobsResponse theirs;
    // A replica that does not answer leaves its jobs with a name and an address.
    if (!session_.At(address).Call(&v1::Coordinator::Stub::ListJobs, request, &theirs).ok())
      continue;
    for (v1::JobSummary& job : *theirs.mutable_jobs()) {
      if (job.owner_address().empty()) known[NameOf(job.job())] = std::move(job);
    }
  }
  for (v1::JobSummary& job : *all.mutable_jobs()) {
    const auto more = job.owner_address().empty() ? known.end() : known.find(NameOf(job.job()));
    if (more == known.end()) continue;
    std::string address = job.owner_address();
    job = more->second;
    job.set_owner_address(std::move(address));
  }
  return absl::OkStatus();
}

int OnlineVerbs::Jobs() {
  v1::ListJobsResponse answer;
  if (const absl::Status status = ListEverywhere(answer); !status.ok()) return Fail(status);
  return Show(answer, [&] {
    if (flags_.format != "names") return JobsView(answer);
    std::string names;
    for (const v1::JobSummary& job : answer.jobs())
      absl::StrAppend(&names, NameOf(job.job()), "\n");
    return names;
  });
}

int OnlineVerbs::Job() {
  v1::GetJobRequest request;
  *request.mutable_job() = ParseJob(flags_.job);
  v1::GetJobResponse answer;
  const absl::Status status = session_.Call(&v1::Coordinator::Stub::GetJob, request, &answer);
  if (!status.ok()) return Fail(status);
  return Show(answer.status(), [&] { return JobView(answer.status()); });
}

int OnlineVerbs::Plan() {
  v1::GetPlanRequest request;
  *request.mutable_job() = ParseJob(flags_.job);
  request.set_step(flags_.step);
  request.set_explain(flags_.explain);
  v1::GetPlanResponse answer;
  const absl::Status status = session_.Call(&v1::Coordinator::Stub::GetPlan, request, &answer);
  if (!status.ok()) return Fail(status);
  return Show(answer, [&] { return PlanView(request.job(), answer); });
}

void OnlineVerbs::Redraw(const std::string& view) {
  // On a terminal: home, the view with the rest of each line cleared, then the rest of the screen.
  if (isatty(STDOUT_FILENO) == 0) {
    std::cout << view << std::endl;
    return;
  }
  std::string screen = "\x1b[H";
  for (const char c : view) {
    if (c == '\n') screen += "\x1b[K";
    screen += c;
  }
  std::cout << screen << "\x1b[J" << std::flush;
}

int OnlineVerbs::Watch() {
  if (isatty(STDOUT_FILENO) != 0 && flags_.format != "json") std::cout << "\x1b[2J";
  return flags_.job.empty() ? WatchAll() : WatchOne();
}

int OnlineVerbs::WatchAll() {
  for (uint64_t shown = 0; flags_.updates == 0 || shown < flags_.updates; ++shown) {
    if (shown > 0) std::this_thread::sleep_for(absl::ToChronoMilliseconds(kWatchInterval));
    v1::ListJobsResponse answer;
    if (const absl::Status status = ListEverywhere(answer); !status.ok()) return Fail(status);
    if (flags_.format == "json") {
      if (const int code = Show(answer, [] { return std::string(); }); code != 0) return code;
    } else {
      Redraw(JobsView(answer));
    }
  }
  return 0;
}

int OnlineVerbs::WatchOne() {
  v1::WatchJobRequest request;
  *request.mutable_job() = ParseJob(flags_.job);
  request.set_wait_ms(static_cast<uint64_t>(absl::ToInt64Milliseconds(kWatchWait)));
  uint64_t shown = 0;
  while (flags_.updates == 0 || shown < flags_.updates) {
    v1::WatchJobResponse answer;
    const absl::Status status =
        session_.Call(&v1::Coordinator::Stub::WatchJob, request, &answer, kWatchWait);
    if (!status.ok()) return Fail(status);
    // A poll that ran out brings what is known already.
    if (shown > 0 && answer.status().revision() == request.after_revision()) continue;
    request.set_after_revision(answer.status().revision());
    ++shown;
    if (flags_.format == "json") {
      if (const int code = Show(answer.status(), [] { return std::string(); }); code != 0)
        return code;
    } else {
      Redraw(JobView(answer.status()));
    }
  }
  return 0;
}

int OnlineVerbs::Evict() {
  v1::EvictNodeRequest request;
  *request.mutable_job() = ParseJob(flags_.job);
  request.set_node_id(flags_.node);
  request.set_reason(flags_.reason);
  v1::EvictNodeResponse answer;
  const absl::Status status = session_.Call(&v1::Coordinator::Stub::EvictNode, request, &answer);
  if (!status.ok()) return Fail(status);
  return Show(answer, [&] {
    return absl::StrCat(
        "evicted ", flags_.node, " with ", answer.ranks_size() == 1 ? "rank " : "ranks ",
        absl::StrJoin(answer.ranks(), ", "),
        answer.generation() == 0 ? ""
                                 : absl::StrCat("; generation ", answer.generation(), " is over"),
        "\n");
  });
}

int OnlineVerbs::Remove() {
  v1::RemoveJobRequest request;
  *request.mutable_job() = ParseJob(flags_.job);
  request.set_force(flags_.force);
  v1::RemoveJobResponse answer;
  const absl::Status status = session_.Call(&v1::Coordinator::Stub::RemoveJob, request, &answer);
  if (!status.ok()) return Fail(status);
  return Show(answer, [&] { return absl::StrCat("removed ", NameOf(request.job()), "\n"); });
}

int OnlineVerbs::Drain() {
  v1::DrainRequest request;
  request.set_reason(flags_.reason);
  v1::DrainResponse answer;
  const absl::Status status = session_.Call(&v1::Coordinator::Stub::Drain, request, &answer);
  if (!status.ok()) return Fail(status);
  return Show(answer, [&] {
    return absl::StrCat(session_.address(), " hands over ", answer.jobs(),
                        answer.jobs() == 1 ? " job" : " jobs", " and ends\n");
  });
}

int OnlineVerbs::Backup() {
  auto file = BackupWriter::Open(flags_.file);
  if (!file.ok()) return Fail(file.status());
  v1::ExportStateRequest request;
  request.set_namespace_(flags_.ns);
  grpc::ClientContext context;  // without a deadline: it takes what it takes, and is seen to move
  const auto reader = session_.stub()->ExportState(&context, request);
  uint64_t jobs = 0;
  bool complete = false;
  v1::StateRecord record;
  while (reader->Read(&record)) {
    if (record.has_job()) ++jobs;
    complete = record.has_trailer();
    if (absl::Status status = (*file)->Write(record); !status.ok()) {
      context.TryCancel();
      reader->Finish();
      return Fail(status);
    }
  }
  if (absl::Status status = FromGrpcStatus(reader->Finish()); !status.ok()) return Fail(status);
  if (!complete) return Fail(absl::DataLossError("the backup broke off; nothing was kept of it"));
  if (absl::Status status = (*file)->Commit(); !status.ok()) return Fail(status);
  std::cout << "wrote " << jobs << (jobs == 1 ? " job to " : " jobs to ") << flags_.file << "\n";
  return 0;
}

int OnlineVerbs::Restore() {
  auto file = BackupReader::Open(flags_.file);
  if (!file.ok()) return Fail(file.status());
  grpc::ClientContext context;
  v1::ImportStateResponse answer;
  const auto writer = session_.stub()->ImportState(&context, &answer);
  v1::ImportStateRequest request;
  request.set_replace(flags_.replace);
  absl::Status damaged;
  while (true) {
    const absl::StatusOr<bool> more = (*file)->Read(*request.mutable_record());
    if (!more.ok()) damaged = more.status();
    if (!more.ok() || !*more || !writer->Write(request)) break;
  }
  writer->WritesDone();
  const absl::Status status = FromGrpcStatus(writer->Finish());
  // The file's own damage says more than what the coordinator made of it.
  if (!damaged.ok()) return Fail(damaged);
  if (!status.ok()) return Fail(status);
  return Show(answer, [&] {
    return absl::StrCat("restored ", answer.jobs(), answer.jobs() == 1 ? " job, " : " jobs, ",
                        answer.profiles(), " profiles, ", answer.consumed_batches(),
                        " consumed batches\n");
  });
}

}  // namespace sparsebalance
