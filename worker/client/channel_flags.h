// Flags of every program that calls a coordinator: how it knows it, and who it is itself.
#pragma once

#include <CLI/CLI.hpp>

#include "worker/client/channel_credentials.h"

namespace sparsebalance {

// Each also from the environment: SPARSEBALANCE_TLS_CA and so on. `security` and `insecure` outlive
// `app`.
inline void AddChannelFlags(CLI::App& app, ChannelSecurity& security, bool& insecure) {
  app.add_option("--tls-ca", security.ca, "PEM file: CA of the coordinator; turns TLS on")
      ->envname("SPARSEBALANCE_TLS_CA");
  app.add_option("--tls-cert", security.certificate, "PEM file: certificate to show, and its chain")
      ->envname("SPARSEBALANCE_TLS_CERT");
  app.add_option("--tls-key", security.key, "PEM file: its key")->envname("SPARSEBALANCE_TLS_KEY");
  app.add_option("--tls-server-name", security.server_name_override,
                 "name in the coordinator's certificate, where it is not the address's host")
      ->envname("SPARSEBALANCE_TLS_SERVER_NAME");
  app.add_flag("--insecure", insecure, "call coordinators on other machines in plaintext")
      ->envname("SPARSEBALANCE_INSECURE");
}

}  // namespace sparsebalance
