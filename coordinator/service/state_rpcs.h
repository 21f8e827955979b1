// ExportState and ImportState: backups over the network, one at a time.
#pragma once

#include <functional>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "coordinator/service/job_registry.h"
#include "coordinator/service/plan_executor.h"
#include "coordinator/service/state_transfer.h"
#include "coordinator/store/store.h"
#include "coordinator/store/store_writer.h"
#include "grpcpp/support/server_callback.h"
#include "sparsebalance/v1/coordinator.pb.h"

namespace sparsebalance {

class StateRpcs {
 public:
  // All outlive the object. `background` is stopped before it goes.
  struct Parts {
    JobRegistry* registry;
    Store* store;
    StoreWriter* writer;
    PlanExecutor* background;
    std::string version;
    std::function<void(const char* method, grpc::StatusCode code)> observer;
  };

  explicit StateRpcs(Parts parts) : parts_(std::move(parts)) {}

  // `allowed`: whether the caller may; its error is the answer.
  grpc::ServerWriteReactor<v1::StateRecord>* Export(const v1::ExportStateRequest& request,
                                                    const absl::Status& allowed);
  grpc::ServerReadReactor<v1::ImportStateRequest>* Import(v1::ImportStateResponse* response,
                                                          const absl::Status& allowed);

  // Makes transfers under way end with UNAVAILABLE, and later ones too.
  void Shutdown() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  class ExportCall;
  class ImportCall;

  // Takes the one place for a transfer. RESOURCE_EXHAUSTED, UNAVAILABLE.
  absl::Status Begin() ABSL_LOCKS_EXCLUDED(mutex_);
  void End() ABSL_LOCKS_EXCLUDED(mutex_);
  bool closing() ABSL_LOCKS_EXCLUDED(mutex_);
  bool RunInBackground(PlanExecutor::Task work);

  const Parts parts_;
  absl::Mutex mutex_;
  bool busy_ ABSL_GUARDED_BY(mutex_) = false;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace sparsebalance
