#include "tests/http/tls_client.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/check.h"
#include "base/lifecycle.h"

namespace penstock {

TlsClient::TlsClient(const std::string& endpoint, const Options& options, bool shakes_hands)
    : context_(SSL_CTX_new(TLS_client_method())) {
  const auto address = ParseHostPort(endpoint);
  PENSTOCK_CHECK(address.ok(), "an endpoint is host:port");
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{.tv_sec = options.patience.count(), .tv_usec = 0};
  setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(address->port);
  inet_pton(AF_INET, address->host.c_str(), &to.sin_addr);
  PENSTOCK_CHECK(connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0,
                 "(nobody listens)");

  SSL_CTX* context = context_.get();
  if (!options.files.ca.path.empty()) {
    SSL_CTX_load_verify_locations(context, options.files.ca.path.c_str(), nullptr);
    SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  }
  if (!options.files.cert.path.empty()) {
    SSL_CTX_use_certificate_chain_file(context, options.files.cert.path.c_str());
    SSL_CTX_use_PrivateKey_file(context, options.files.key.path.c_str(), SSL_FILETYPE_PEM);
  }
  if (options.newest_version != 0) {
    SSL_CTX_set_max_proto_version(context, options.newest_version);
    SSL_CTX_set_min_proto_version(context, TLS1_VERSION);
    SSL_CTX_set_security_level(context, 0);  // The oldest are not even offered otherwise.
  }
  std::string alpn;
  for (const std::string& name : options.alpn) alpn += static_cast<char>(name.size()) + name;
  if (!alpn.empty()) {
    SSL_CTX_set_alpn_protos(context, reinterpret_cast<const unsigned char*>(alpn.data()),
                            static_cast<unsigned>(alpn.size()));
  }
  ssl_.reset(SSL_new(context));
  SSL_set_fd(ssl_.get(), fd_);
  SSL_set_connect_state(ssl_.get());
  if (shakes_hands) ShakeHands();
}

TlsClient::~TlsClient() { close(fd_); }

bool TlsClient::ShakeHands() {
  ERR_clear_error();
  connected_ = SSL_do_handshake(ssl_.get()) == 1;
  return connected_;
}

bool TlsClient::Send(std::string_view bytes) {
  ERR_clear_error();
  return SSL_write(ssl_.get(), bytes.data(), static_cast<int>(bytes.size())) ==
         static_cast<int>(bytes.size());
}

int TlsClient::Read() {
  char buffer[16 << 10];
  ERR_clear_error();
  const int count = SSL_read(ssl_.get(), buffer, sizeof(buffer));
  if (count > 0) received_.append(buffer, static_cast<size_t>(count));
  return count;
}

bool TlsClient::ReceiveUntil(std::string_view text) {
  size_t from = 0;  // what comes before it was searched
  while (received_.find(text, from) == std::string::npos) {
    from = received_.size() - std::min(received_.size(), text.size());
    if (Read() <= 0) return false;
  }
  return true;
}

bool TlsClient::EndsInOrder() {
  while (true) {
    const int count = Read();
    if (count <= 0) return SSL_get_error(ssl_.get(), count) == SSL_ERROR_ZERO_RETURN;
  }
}

std::string TlsClient::protocol() const {
  const unsigned char* name = nullptr;
  unsigned bytes = 0;
  SSL_get0_alpn_selected(ssl_.get(), &name, &bytes);
  return {reinterpret_cast<const char*>(name), bytes};
}

std::string TlsClient::server_name() const {
  X509* certificate = SSL_get0_peer_certificate(ssl_.get());
  if (certificate == nullptr) return "";
  char name[256] = {};
  X509_NAME_get_text_by_NID(X509_get_subject_name(certificate), NID_commonName, name, sizeof(name));
  return name;
}

}  // namespace penstock
