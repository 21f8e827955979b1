// Flags of ServiceOptions and ServerLimits: every time-out and limit can be set.

#include "coordinator/service/flag_types.h"
#include "coordinator/service/flags.h"

namespace sparsebalance {
namespace {

void AddWaits(CLI::App& app, ServiceOptions& options) {
  CLI::App& group = *app.add_option_group("Waits");
  AddDuration(group, "--max-join-wait", &options.max_join_wait, "Longest poll of JoinJob");
  AddDuration(group, "--max-exchange-wait", &options.max_exchange_wait,
              "Longest poll of ExchangeStep");
  AddDuration(group, "--max-watch-wait", &options.max_watch_wait, "Longest poll of WatchJob");
  AddDuration(group, "--join-presence", &options.join_presence,
              "A joining node counts as present for so long between two polls");
  AddDuration(group, "--overload-retry", &options.overload_retry,
              "When to call again after a call was shed");
  AddDuration(group, "--shutdown-retry", &options.shutdown_retry,
              "When to call again while the coordinator shuts down");
  AddDuration(group, "--drain-timeout", &options.drain_timeout,
              "Time for answers under way when shutting down");
}

void AddLeases(CLI::App& app, ServiceOptions& options) {
  CLI::App& group = *app.add_option_group("Leases of nodes");
  AddDuration(group, "--lease", &options.default_lease, "Silence after which a node is dead");
  AddDuration(group, "--startup-grace", &options.default_startup_grace,
              "Silence allowed to a node that has just joined");
  AddDuration(group, "--min-lease", &options.min_lease, "Shortest lease that a job may ask for");
  AddDuration(group, "--max-lease", &options.max_lease, "Longest lease or grace of a job");
  WithEnvironment(group
                      .add_option("--suspect-share", options.suspect_share,
                                  "Part of its lease after which a silent node is called suspect")
                      ->check(CLI::Range(0.01, 1.0))
                      ->capture_default_str());
  AddDuration(group, "--sweep-interval", &options.sweep_interval, "How often leases are looked at");
}

void AddJobLimits(CLI::App& app, ServiceOptions& options) {
  CLI::App& group = *app.add_option_group("Jobs");
  AddDuration(group, "--job-retention", &options.job_retention,
              "A job without nodes is forgotten after so long");
  AddDuration(group, "--finished-retention", &options.finished_retention,
              "The same for a job that has finished");
  AddCount(group, "--max-jobs", &options.max_jobs, "Jobs known at a time");
  AddCount(group, "--max-ranks-per-job", &options.max_ranks_per_job, "Ranks of one job");
  AddCount(group, "--max-open-steps", &options.max_open_steps,
           "Steps of one job that are waited for at a time");
  AddCount(group, "--max-batch-sequences", &options.max_batch_sequences, "Sequences of a batch");
  AddCount(group, "--kept-step-reports", &options.kept_step_reports,
           "Finished steps kept of each job");
  AddCount(group, "--kept-plans", &options.kept_plans, "Plans kept of each job");
  AddBytes(group, "--kept-plan-bytes", &options.kept_plan_bytes,
           "Memory for the kept plans of each job; the latest four are kept in any case");
  AddDuration(group, "--knowledge-write-interval", &options.knowledge_write_interval,
              "How often learned costs and coverage are stored");
}

void AddPlanning(CLI::App& app, ServiceOptions& options) {
  CLI::App& group = *app.add_option_group("Planning and overload");
  AddCount(group, "--planner-threads", &options.planner_threads, "Plans made at a time");
  AddCount(group, "--planner-queue", &options.planner_queue, "Plans waiting for a thread");
  AddDuration(group, "--long-plan", &options.long_plan,
              "Jobs whose plans take longer leave a planner thread to the others");
  AddCount(group, "--max-calls", &options.max_calls, "Calls under way, waiting ones included");
  AddBytes(group, "--max-call-bytes", &options.max_call_bytes, "Bytes of their requests");
}

void AddConnections(CLI::App& app, security::ServerLimits& limits) {
  CLI::App& group = *app.add_option_group("Connections");
  AddBytes(group, "--max-message-bytes", &limits.max_message_bytes, "Largest message either way");
  AddBytes(group, "--max-metadata-bytes", &limits.max_metadata_bytes, "Headers of a call");
  AddCount(group, "--max-concurrent-streams", &limits.max_concurrent_streams,
           "Calls of one connection at a time");
  AddDuration(group, "--handshake-timeout", &limits.handshake,
              "A connection that has not said what it wants is cut off then");
  AddDuration(group, "--keepalive-interval", &limits.keepalive_interval,
              "Silent connections are pinged this often");
  AddDuration(group, "--keepalive-timeout", &limits.keepalive_timeout,
              "A ping without an answer ends its connection after so long");
  AddDuration(group, "--min-client-ping", &limits.min_client_ping, "Clients may ping this often");
  AddDuration(group, "--max-connection-age", &limits.max_connection_age,
              "Clients connect anew after so long");
  AddDuration(group, "--max-connection-age-grace", &limits.max_connection_age_grace,
              "Time for the calls of a connection that is too old");
  AddDuration(group, "--max-connection-idle", &limits.max_connection_idle,
              "A connection without calls is closed after so long");
}

}  // namespace

void AddServiceFlags(CLI::App& app, ServerConfig& config) {
  ServiceOptions& options = config.options;
  AddWaits(app, options);
  AddLeases(app, options);
  AddJobLimits(app, options);
  AddPlanning(app, options);
  AddConnections(app, config.connections);
}

}  // namespace sparsebalance
