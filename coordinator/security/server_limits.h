// Every limit of a gRPC server that faces a network, set on purpose and in one place.
#pragma once

#include "absl/time/time.h"
#include "grpcpp/server_builder.h"

namespace sparsebalance::security {

struct ServerLimits {
  // Either way; a larger request ends with RESOURCE_EXHAUSTED.
  int max_message_bytes = 64 * 1024 * 1024;
  // Names and values of one call's headers together.
  int max_metadata_bytes = 8 * 1024;
  // From accept to the client's HTTP/2 settings, TLS included: one that says nothing, or a byte at
  // a time, is cut off then. gRPC's own default is two minutes.
  absl::Duration handshake = absl::Seconds(10);
  // Calls of one connection at a time; clients queue what is beyond. A node makes one for each of
  // its jobs, and a heartbeat.
  int max_concurrent_streams = 256;

  // The server pings a connection that is silent for so long, and drops it without an answer: this
  // ends the waits of hosts that are gone.
  absl::Duration keepalive_interval = absl::Seconds(20);
  absl::Duration keepalive_timeout = absl::Seconds(10);
  // Clients that ping more often are sent away (ENHANCE_YOUR_CALM).
  absl::Duration min_client_ping = absl::Seconds(5);

  // After this age, give or take a tenth, a connection takes no new calls: clients open another and
  // show their certificate as it is then. Those under way have the grace, which is longer than any
  // long poll. Zero: connections may live for ever.
  absl::Duration max_connection_age = absl::Hours(1);
  absl::Duration max_connection_age_grace = absl::Minutes(2);
  // A connection without calls is closed after so long; clients open another. Zero: never.
  absl::Duration max_connection_idle = absl::Minutes(15);
};

// Also turns SO_REUSEPORT off: with it a second process could take the port in silence.
void ConfigureServer(grpc::ServerBuilder& builder, const ServerLimits& limits);

// Reflection, once linked, attaches itself to every server of the process; this takes it off one.
void RemoveReflection(grpc::ServerBuilder& builder);

// Likewise grpc::EnableDefaultHealthCheckService, which would add a health service to every server.
void RemoveDefaultHealthService(grpc::ServerBuilder& builder);

}  // namespace sparsebalance::security
