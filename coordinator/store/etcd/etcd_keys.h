// Where everything lies in etcd, under one prefix:
//
//   jobs/NS/NAME                   JobRow            RecordValues at these paths
//   coverage/NS/NAME/CHUNK         its bytes
//   latency/NS/NAME                its bytes
//   consumed/NS/NAME/STEP          ConsumedBatch
//   profiles/NS/DEVICE/MODEL       LatencyProfile
//   parts/PATH/GENERATION/NUMBER   a piece of the record at PATH that is too big for one request
//   claims/NS/NAME                 ClaimValue, under the owner's lease
//   marks/NS/NAME                  the owner's last transaction, under its lease
//   epoch_base                     decimal number
//
// Names are escaped, so that any name is one part of a path. Numbers are 16 hexadecimal digits, so
// that keys sort like them.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/store/etcd/etcd_client.h"
#include "coordinator/store/job_id.h"
#include "sparsebalance/v1/profile.pb.h"

namespace sparsebalance {

// Bytes other than letters, digits, '-', '.' and '_' become %XX.
std::string EscapePathPart(std::string_view name);
// Nothing for what EscapePathPart cannot have made.
std::optional<std::string> UnescapePathPart(std::string_view part);

// The paths of records, without the prefix.
namespace record_path {
std::string Job(const JobId& id);
std::string Coverage(const JobId& id, uint64_t chunk);
std::string Latency(const JobId& id);
std::string Consumed(const JobId& id, uint64_t step);
std::string Profile(const v1::ProfileKey& key);

// Everything of one kind, for use as a range's ends.
std::string AllJobs();
std::string AllCoverage(const JobId& id);
std::string AllConsumed(const JobId& id);
std::string AllProfiles();

// The number at the path's end.
std::optional<uint64_t> Number(std::string_view path);
}  // namespace record_path

// Paths that start with a directory, which ends in '/': [directory, EndOf(directory)).
std::string EndOf(std::string directory);

class EtcdKeys {
 public:
  // A prefix that does not end in '/' gets one.
  explicit EtcdKeys(std::string prefix);

  const std::string& prefix() const { return prefix_; }
  std::string Record(std::string_view path) const;
  // The directory of all parts of the record, and of one generation's.
  std::string Parts(std::string_view path) const;
  std::string Parts(std::string_view path, std::string_view generation) const;
  // Records from one path up to another, and their parts.
  EtcdRange Records(std::string_view begin, std::string_view end) const;
  EtcdRange PartsOfRecords(std::string_view begin, std::string_view end) const;

  EtcdRange Claims() const;
  std::string Claim(const JobId& id) const;
  std::string Mark(const JobId& id) const;
  std::string EpochBase() const;

  // The path of a record's key.
  std::string PathOf(std::string_view key) const;
  // The job of a key in jobs/ or claims/.
  std::optional<JobId> JobOf(std::string_view key) const;

 private:
  std::string prefix_;
};

}  // namespace sparsebalance
