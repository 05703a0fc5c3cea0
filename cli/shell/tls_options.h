#pragma once

#include <string>

namespace CLI {
class App;
}

namespace penstock {

// PEM files for TLS; empty: none.
struct TlsOptions {
  std::string ca;    // has signed the certificate of the process that is called
  std::string cert;  // our own
  std::string key;
};

// --ca, whose help is "CA certificate " and `purpose`; --cert and --key.
void AddTls(CLI::App& command, TlsOptions& tls, const std::string& purpose);

}  // namespace penstock
