// Checks of what clients send, before any of it has an effect. Unless said otherwise an error is
// INVALID_ARGUMENT with a FieldViolation that holds the field's path in the request.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "coordinator/service/service_options.h"
#include "google/protobuf/repeated_ptr_field.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

// 1 to 200 bytes without control characters.
absl::Status ValidateName(std::string_view name, const std::string& field);
// An empty namespace is fine.
absl::Status ValidateJobKey(const v1::JobKey& key, const std::string& field);
absl::Status ValidateNodeKey(const v1::NodeKey& node);

// More than any model has.
constexpr int kMaxLayers = 4096;
// Steps, epochs and generations are stored in signed 64 bits.
constexpr uint64_t kMaxCounter = uint64_t{1} << 62;

absl::Status ValidateSpec(const v1::JobSpec& spec, const ServiceOptions& options);

// A leader epoch that no coordinator can have had.
absl::Status CheckKnownEpoch(uint64_t known);

// OUT_OF_RANGE for a rank that the job does not have.
absl::Status ValidateJoin(const v1::JoinJobRequest& request, uint32_t rank_count,
                          const ServiceOptions& options);

// `whole`: the caller holds rank 0, so the sequences must be there. Where they are, they must match
// the digest.
absl::Status ValidateBatch(const v1::GlobalBatch& batch, bool whole, const ServiceOptions& options);

absl::Status ValidateConsumed(const google::protobuf::RepeatedPtrField<v1::ConsumedBatch>& consumed,
                              const ServiceOptions& options);

// All of it is refused for one bad figure. `owned` are the caller's global ranks.
absl::Status ValidateTelemetry(
    const google::protobuf::RepeatedPtrField<v1::RankTelemetry>& telemetry,
    const std::set<uint32_t>& owned, const ServiceOptions& options);

absl::Status ValidateCoverage(
    const google::protobuf::RepeatedPtrField<v1::SequenceCoverage>& entries, uint32_t block_tokens,
    const ServiceOptions& options);

// The profile's key has a namespace already.
absl::Status ValidateProfile(const v1::LatencyProfile& profile);

}  // namespace sparsebalance
