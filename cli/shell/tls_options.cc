#include "cli/shell/tls_options.h"

#include <CLI/CLI.hpp>

namespace penstock {

void AddTls(CLI::App& command, TlsOptions& tls, const std::string& purpose) {
  command.add_option("--ca", tls.ca, "CA certificate " + purpose)
      ->envname("PENSTOCK_CA")
      ->type_name("PEM");
  // docs/operations/security.md explains both; every command's help shall fit a screen.
  command.add_option("--cert", tls.cert, "client certificate, with --key")
      ->envname("PENSTOCK_CERT")
      ->type_name("PEM")
      ->group("");
  command.add_option("--key", tls.key, "private key of --cert")
      ->envname("PENSTOCK_KEY")
      ->type_name("PEM")
      ->group("");
}

}  // namespace penstock
