#pragma once

#include <openssl/ssl.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/tls/tls_files.h"

namespace penstock {

// A blocking TLS client of one connection, for servers under test.
class TlsClient {
 public:
  struct Options {
    TlsFiles files = {};                 // `ca` is whom it trusts; cert and key, what it shows
    std::vector<std::string> alpn = {};  // empty: offers none
    int newest_version = 0;              // of SSL_CTX_set_max_proto_version
    std::chrono::seconds patience{20};   // with any one read or write
  };
  // Connects, and shakes hands where `shakes_hands`.
  TlsClient(const std::string& endpoint, const Options& options, bool shakes_hands = true);
  ~TlsClient();
  TlsClient(const TlsClient&) = delete;
  TlsClient& operator=(const TlsClient&) = delete;

  // Both sides have agreed. (A TLS 1.3 server may yet refuse the client's certificate: Receive.)
  bool connected() const { return connected_; }
  bool ShakeHands();
  bool Send(std::string_view bytes);
  // Reads until `text` is in what came, or until the end (false).
  bool ReceiveUntil(std::string_view text);
  // The server says that it sends no more, in TLS's own way.
  bool EndsInOrder();
  const std::string& received() const { return received_; }

  std::string protocol() const;     // that ALPN chose; empty: none
  std::string server_name() const;  // the common name of the server's certificate
  int fd() const { return fd_; }
  SSL* ssl() const { return ssl_.get(); }

 private:
  int Read();

  struct Free {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* ssl) const { SSL_free(ssl); }
  };
  int fd_ = -1;
  std::unique_ptr<SSL_CTX, Free> context_;
  std::unique_ptr<SSL, Free> ssl_;
  bool connected_ = false;
  std::string received_;
};

}  // namespace penstock
