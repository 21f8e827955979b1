// Every time-out and limit of the coordinator, in one place.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/time/time.h"

namespace sparsebalance {

struct ServiceOptions {
  // --- Waiting ---------------------------------------------------------------------------------
  // Bounds of long polls; a request's wait_ms is shortened to them. A poll that is cut short is
  // simply repeated, so they only bound how long a vanished caller can hold a slot.
  absl::Duration max_join_wait = absl::Seconds(60);
  absl::Duration max_exchange_wait = absl::Seconds(60);
  absl::Duration max_watch_wait = absl::Seconds(60);
  // Between two polls of JoinJob a node counts as present for so long. Long enough for a client to
  // call again, short enough that nobody is made to wait for a process that died while joining.
  absl::Duration join_presence = absl::Seconds(2);
  // Advised to a client whose plan found the planning queue full.
  absl::Duration overload_retry = absl::Milliseconds(200);
  // Advised to clients while the coordinator shuts down.
  absl::Duration shutdown_retry = absl::Seconds(1);

  // --- Leases ----------------------------------------------------------------------------------
  // For jobs that set none. A node silent for the lease is dead; one that has just joined may be
  // silent for the grace (allocating and compiling take minutes on large models).
  absl::Duration default_lease = absl::Seconds(30);
  absl::Duration default_startup_grace = absl::Minutes(5);
  // A node that has been silent for this part of what it may is suspect: said once, not yet dead.
  double suspect_share = 0.5;
  absl::Duration min_lease = absl::Seconds(1);
  absl::Duration max_lease = absl::Hours(24);
  // Heartbeats are advised at lease / heartbeat_divisor: several may be lost before the lease ends.
  int heartbeat_divisor = 6;
  // How often leases are looked at. If the coordinator itself was stopped for longer than
  // stall_factor times that, the silence is its own and leases are extended by it.
  absl::Duration sweep_interval = absl::Milliseconds(500);
  int stall_factor = 6;

  // --- Jobs ------------------------------------------------------------------------------------
  // A job without members is forgotten, with everything stored about it, after so long; one that
  // has finished needs its journal and its coverage only if it is trained on.
  absl::Duration job_retention = absl::Hours(24 * 7);
  absl::Duration finished_retention = absl::Hours(24);
  size_t max_jobs = 1000;
  uint32_t max_ranks_per_job = 65536;
  size_t max_watchers_per_job = 256;
  size_t max_rendezvous_bytes = 64 * 1024;  // of one rank

  // --- Steps -----------------------------------------------------------------------------------
  size_t max_batch_sequences = 1'000'000;
  uint64_t max_sequence_tokens = uint64_t{1} << 32;
  size_t max_open_steps = 8;  // steps of one job that some nodes have asked for, without a plan
  // Plans of one job kept for retries and GetPlan. A plan of 16,384 sequences, with all that it was
  // made from, takes some 20 MB; the latest four are kept in any case.
  size_t kept_plans = 64;
  size_t kept_plan_bytes = size_t{64} << 20;
  size_t kept_step_reports = 64;  // finished steps of one job in GetJob
  size_t max_consumed_batches_per_call = 4096;
  size_t max_coverage_entries_per_call = 200'000;
  // Larger figures in telemetry are nonsense: a day in milliseconds.
  double max_telemetry_ms = 86'400'000.0;

  // --- Shutdown --------------------------------------------------------------------------------
  // On shutdown, answers that are under way have so long to reach their callers.
  absl::Duration drain_timeout = absl::Seconds(5);

  // --- Planning --------------------------------------------------------------------------------
  int planner_threads = 2;
  size_t planner_queue = 256;  // plans waiting for a thread; beyond it RESOURCE_EXHAUSTED
  // Jobs whose plans take longer may together hold all planner threads but one.
  absl::Duration long_plan = absl::Milliseconds(50);

  // --- Overload --------------------------------------------------------------------------------
  // Calls under way, waiting ones included, and the bytes of their requests. Beyond them calls are
  // refused with RESOURCE_EXHAUSTED and overload_retry: readers and bulk transfers from three
  // quarters on, training from seven eighths on, heartbeats last.
  size_t max_calls = 50'000;
  size_t max_call_bytes = size_t{1} << 30;

  // --- Replicas --------------------------------------------------------------------------------
  // How often a replica looks for profiles that others stored, and for jobs that nobody holds.
  absl::Duration shared_look_interval = absl::Seconds(10);

  // --- State -----------------------------------------------------------------------------------
  // Learned latency and coverage are written behind at this interval; consumed batches and
  // memberships at once.
  absl::Duration knowledge_write_interval = absl::Seconds(10);
};

}  // namespace sparsebalance
