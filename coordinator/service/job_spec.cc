#include "coordinator/service/job_spec.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/planner/digest.h"
#include "coordinator/store/job_id.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/util/message_differencer.h"

namespace sparsebalance {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::util::MessageDifferencer;

class PathCollector : public MessageDifferencer::Reporter {
 public:
  using Path = std::vector<MessageDifferencer::SpecificField>;

  void ReportAdded(const Message&, const Message&, const Path& path) override { Add(path); }
  void ReportDeleted(const Message&, const Message&, const Path& path) override { Add(path); }
  void ReportModified(const Message&, const Message&, const Path& path) override {
    // The fields inside a message have been reported already.
    if (path.back().field->cpp_type() == FieldDescriptor::CPPTYPE_MESSAGE) return;
    Add(path);
  }

  std::vector<std::string> paths;

 private:
  void Add(const Path& path) {
    std::string name;
    for (const MessageDifferencer::SpecificField& part : path) {
      if (part.field != nullptr)
        absl::StrAppend(&name, name.empty() ? "" : ".", part.field->name());
    }
    paths.push_back(std::move(name));
  }
};

}  // namespace

v1::JobSpec NormalizedSpec(v1::JobSpec spec) {
  *spec.mutable_job() = JobId::From(spec.job()).ToProto();
  return spec;
}

uint64_t SpecFingerprint(const v1::JobSpec& normalized) { return planner::Digest(normalized); }

std::vector<std::string> DifferingFields(const v1::JobSpec& a, const v1::JobSpec& b) {
  PathCollector collector;
  MessageDifferencer differencer;
  differencer.ReportDifferencesTo(&collector);
  differencer.Compare(a, b);
  return std::move(collector.paths);
}

RankLayout::RankLayout(const v1::Parallelism& parallelism)
    : data_(std::max(parallelism.data(), 1u)),
      pipeline_(std::max(parallelism.pipeline(), 1u)),
      sequence_(std::max(parallelism.sequence(), 1u)) {}

}  // namespace sparsebalance
