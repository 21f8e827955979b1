#include "coordinator/service/request_validation.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "coordinator/planner/status_payload.h"
#include "coordinator/planner/validation.h"
#include "coordinator/service/batch_digest.h"
#include "coordinator/service/job_spec.h"
#include "sparsebalance/v1/errors.pb.h"

namespace sparsebalance {
namespace {

using planner::FieldError;

constexpr size_t kMaxNameBytes = 200;
// A look-ahead is at most 64 steps.
constexpr size_t kMaxFollowingBatches = 63;

bool HasControlCharacter(std::string_view text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto c = static_cast<unsigned char>(text[i]);
    if (c < 0x20 || c == 0x7f) return true;
    // U+0080 to U+009F are control characters too: 0xC2 0x80 to 0xC2 0x9F in UTF-8.
    if (c == 0xc2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xa0) {
      return true;
    }
  }
  return false;
}

absl::Status ValidateCounter(uint64_t value, const std::string& field) {
  if (value < kMaxCounter) return absl::OkStatus();
  return FieldError(field, absl::StrCat(value), "must be below 2^62");
}

// An error about `settings...` becomes one about the field of the request that holds them.
absl::Status Rebased(const absl::Status& status, std::string_view from, const std::string& to) {
  const auto violation = planner::GetDetail<v1::FieldViolation>(status);
  if (!violation || violation->field().substr(0, from.size()) != from) return status;
  return FieldError(to + violation->field().substr(from.size()), violation->value(),
                    violation->problem());
}

absl::Status ValidateOptionalName(const std::string& name, const std::string& field) {
  return name.empty() ? absl::OkStatus() : ValidateName(name, field);
}

// `ids` holds those of the batches before, and takes these.
absl::Status ValidateSequences(const google::protobuf::RepeatedPtrField<v1::BatchSequence>& batch,
                               const std::string& prefix, const ServiceOptions& options,
                               absl::flat_hash_set<uint64_t>& ids) {
  if (static_cast<size_t>(batch.size()) > options.max_batch_sequences) {
    return FieldError(prefix + ".sequences", absl::StrCat(batch.size(), " entries"),
                      absl::StrCat("must have at most ", options.max_batch_sequences));
  }
  for (int i = 0; i < batch.size(); ++i) {
    const v1::BatchSequence& sequence = batch[i];
    const auto field = [&](const char* name) {
      return absl::StrCat(prefix, ".sequences[", i, "].", name);
    };
    if (!ids.insert(sequence.id()).second) {
      return FieldError(field("id"), absl::StrCat(sequence.id()), "is in the batch twice");
    }
    if (sequence.tokens() == 0 || sequence.tokens() > options.max_sequence_tokens) {
      return FieldError(field("tokens"), absl::StrCat(sequence.tokens()),
                        absl::StrCat("must be within [1, ", options.max_sequence_tokens, "]"));
    }
    if (sequence.supervised_tokens() > sequence.tokens()) {
      return FieldError(field("supervised_tokens"), absl::StrCat(sequence.supervised_tokens()),
                        absl::StrCat("must be at most its tokens, ", sequence.tokens()));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateLeases(const v1::JobSpec& spec, const ServiceOptions& options) {
  const uint64_t max_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(options.max_lease));
  const uint64_t min_ms = static_cast<uint64_t>(absl::ToInt64Milliseconds(options.min_lease));
  if (spec.lease_ms() != 0 && (spec.lease_ms() < min_ms || spec.lease_ms() > max_ms)) {
    return FieldError(
        "spec.lease_ms", absl::StrCat(spec.lease_ms()),
        absl::StrCat("must be 0 (the server's default) or within [", min_ms, ", ", max_ms, "]"));
  }
  if (spec.startup_grace_ms() > max_ms) {
    return FieldError("spec.startup_grace_ms", absl::StrCat(spec.startup_grace_ms()),
                      absl::StrCat("must be at most ", max_ms));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ValidateName(std::string_view name, const std::string& field) {
  if (name.empty()) return FieldError(field, "empty", "must have 1 to 200 bytes");
  if (name.size() > kMaxNameBytes) {
    return FieldError(field, absl::StrCat(name.size(), " bytes long"), "must have 1 to 200 bytes");
  }
  if (HasControlCharacter(name)) {
    return FieldError(field, absl::StrCat(name.size(), " bytes with control characters"),
                      "must hold none");
  }
  return absl::OkStatus();
}

absl::Status ValidateJobKey(const v1::JobKey& key, const std::string& field) {
  if (absl::Status status = ValidateOptionalName(key.namespace_(), field + ".namespace");
      !status.ok()) {
    return status;
  }
  return ValidateName(key.name(), field + ".name");
}

absl::Status ValidateNodeKey(const v1::NodeKey& node) {
  if (absl::Status status = ValidateJobKey(node.job(), "node.job"); !status.ok()) return status;
  return ValidateName(node.node_id(), "node.node_id");
}

absl::Status CheckKnownEpoch(uint64_t known) {
  // Far above what starts can add up to, far below where raising would wrap around.
  constexpr uint64_t kMaxCredible = uint64_t{1} << 60;
  if (known <= kMaxCredible) return absl::OkStatus();
  return FieldError("known_leader_epoch", absl::StrCat(known),
                    "no coordinator can have had it; send the epoch of a response");
}

absl::Status ValidateSpec(const v1::JobSpec& spec, const ServiceOptions& options) {
  if (absl::Status status = ValidateJobKey(spec.job(), "spec.job"); !status.ok()) return status;
  const v1::Parallelism& parallelism = spec.parallelism();
  if (parallelism.data() == 0) {
    return FieldError("spec.parallelism.data", "0", "must be at least 1");
  }
  uint64_t ranks = 1;
  for (const uint32_t size : {parallelism.data(), parallelism.pipeline(), parallelism.sequence()}) {
    ranks *= std::max(size, 1u);
    if (ranks > options.max_ranks_per_job) {
      return FieldError("spec.parallelism",
                        absl::StrCat(parallelism.data(), " x ", parallelism.pipeline(), " x ",
                                     parallelism.sequence()),
                        absl::StrCat("the product, the number of ranks, must be at most ",
                                     options.max_ranks_per_job));
    }
  }
  if (spec.plan().data_parallel_size() != parallelism.data()) {
    return FieldError("spec.plan.data_parallel_size",
                      absl::StrCat(spec.plan().data_parallel_size()),
                      absl::StrCat("must equal spec.parallelism.data, ", parallelism.data()));
  }
  if (std::max(spec.plan().pipeline_parallel_size(), 1u) != std::max(parallelism.pipeline(), 1u)) {
    return FieldError(
        "spec.plan.pipeline_parallel_size", absl::StrCat(spec.plan().pipeline_parallel_size()),
        absl::StrCat("must equal spec.parallelism.pipeline, ", parallelism.pipeline()));
  }
  if (absl::Status status = planner::ValidateSettings(spec.plan()); !status.ok()) {
    return Rebased(status, "settings", "spec.plan");
  }
  if (spec.num_layers() < 1 || spec.num_layers() > kMaxLayers) {
    return FieldError("spec.num_layers", absl::StrCat(spec.num_layers()),
                      absl::StrCat("must be within 1 and ", kMaxLayers));
  }
  if (spec.global_batch_size() == 0 || spec.global_batch_size() > options.max_batch_sequences) {
    return FieldError("spec.global_batch_size", absl::StrCat(spec.global_batch_size()),
                      absl::StrCat("must be within [1, ", options.max_batch_sequences, "]"));
  }
  for (const auto& [value, field] : {std::pair{&spec.device_class(), "spec.device_class"},
                                     std::pair{&spec.model_class(), "spec.model_class"}}) {
    if (absl::Status status = ValidateOptionalName(*value, field); !status.ok()) return status;
  }
  return ValidateLeases(spec, options);
}

absl::Status ValidateJoin(const v1::JoinJobRequest& request, uint32_t rank_count,
                          const ServiceOptions& options) {
  if (absl::Status status = ValidateJobKey(request.job(), "job"); !status.ok()) return status;
  if (absl::Status status = ValidateName(request.node_id(), "node_id"); !status.ok()) return status;
  if (request.incarnation() == 0) return FieldError("incarnation", "0", "must be at least 1");
  if (request.ranks().empty()) {
    return FieldError("ranks", "empty", "a node joins with at least one rank");
  }
  if (absl::Status status = ValidateCounter(request.held_generation(), "held_generation");
      !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateCounter(request.next_step(), "next_step"); !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateOptionalName(request.client_version(), "client_version");
      !status.ok()) {
    return status;
  }
  absl::flat_hash_set<uint32_t> seen;
  for (int i = 0; i < request.ranks_size(); ++i) {
    const v1::RankInfo& rank = request.ranks(i);
    const std::string field = absl::StrCat("ranks[", i, "]");
    if (rank.rank() >= rank_count) {
      absl::Status status = absl::OutOfRangeError(
          absl::StrCat(field, ".rank is ", rank.rank(), ": the job has ranks 0 to ", rank_count - 1,
                       "; check the launcher's world size"));
      v1::FieldViolation violation;
      violation.set_field(field + ".rank");
      violation.set_value(absl::StrCat(rank.rank()));
      violation.set_problem(absl::StrCat("the job has ranks 0 to ", rank_count - 1));
      planner::AttachDetail(status, violation);
      return status;
    }
    if (!seen.insert(rank.rank()).second) {
      return FieldError(field + ".rank", absl::StrCat(rank.rank()), "is listed twice");
    }
    if (rank.rendezvous().size() > options.max_rendezvous_bytes) {
      return FieldError(field + ".rendezvous", absl::StrCat(rank.rendezvous().size(), " bytes"),
                        absl::StrCat("must have at most ", options.max_rendezvous_bytes));
    }
    if (absl::Status status = ValidateOptionalName(rank.device_name(), field + ".device_name");
        !status.ok()) {
      return status;
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateBatch(const v1::GlobalBatch& batch, bool whole,
                           const ServiceOptions& options) {
  if (absl::Status status = ValidateCounter(batch.step(), "batch.step"); !status.ok()) {
    return status;
  }
  if (absl::Status status = ValidateCounter(batch.epoch(), "batch.epoch"); !status.ok()) {
    return status;
  }
  if (batch.sequences().empty()) {
    if (!whole) return absl::OkStatus();
    return FieldError("batch.sequences", "empty",
                      "the node that holds rank 0 sends the whole global batch");
  }
  if (static_cast<size_t>(batch.following_size()) > kMaxFollowingBatches) {
    return FieldError("batch.following", absl::StrCat(batch.following_size(), " entries"),
                      absl::StrCat("must have at most ", kMaxFollowingBatches));
  }
  absl::flat_hash_set<uint64_t> ids;
  ids.reserve(static_cast<size_t>(batch.sequences_size()));
  if (absl::Status status = ValidateSequences(batch.sequences(), "batch", options, ids);
      !status.ok()) {
    return status;
  }
  for (int i = 0; i < batch.following_size(); ++i) {
    const v1::FollowingBatch& following = batch.following(i);
    const std::string field = absl::StrCat("batch.following[", i, "]");
    const uint64_t wanted = batch.step() + static_cast<uint64_t>(i) + 1;
    if (following.step() != wanted) {
      return FieldError(field + ".step", absl::StrCat(following.step()),
                        absl::StrCat("must be ", wanted, ": batches follow step by step"));
    }
    if (absl::Status status = ValidateSequences(following.sequences(), field, options, ids);
        !status.ok()) {
      return status;
    }
  }
  if (const uint64_t digest = BatchDigest(batch); digest != batch.digest()) {
    return FieldError("batch.digest", absl::StrCat(batch.digest()),
                      absl::StrCat("the digest of the sequences sent is ", digest));
  }
  return absl::OkStatus();
}

absl::Status ValidateConsumed(const google::protobuf::RepeatedPtrField<v1::ConsumedBatch>& consumed,
                              const ServiceOptions& options) {
  if (static_cast<size_t>(consumed.size()) > options.max_consumed_batches_per_call) {
    return FieldError("consumed", absl::StrCat(consumed.size(), " entries"),
                      absl::StrCat("must have at most ", options.max_consumed_batches_per_call,
                                   "; send the rest in the next call"));
  }
  for (int i = 0; i < consumed.size(); ++i) {
    const std::string field = absl::StrCat("consumed[", i, "]");
    if (absl::Status status = ValidateCounter(consumed[i].step(), field + ".step"); !status.ok()) {
      return status;
    }
    if (absl::Status status = ValidateCounter(consumed[i].epoch(), field + ".epoch");
        !status.ok()) {
      return status;
    }
    if (static_cast<size_t>(consumed[i].sequence_ids_size()) > options.max_batch_sequences) {
      return FieldError(field + ".sequence_ids",
                        absl::StrCat(consumed[i].sequence_ids_size(), " entries"),
                        absl::StrCat("must have at most ", options.max_batch_sequences));
    }
  }
  return absl::OkStatus();
}

}  // namespace sparsebalance
