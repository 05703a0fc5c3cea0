#include "base/tls/tls_socket.h"

#include <openssl/err.h>
#include <openssl/pem.h>
#include <openssl/ssl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "base/tls/openssl_ptr.h"

namespace penstock {
namespace {

using SslPtr = std::unique_ptr<SSL, OpenSslFree<SSL_free>>;

std::vector<CertificatePtr> CertificatesIn(const std::string& pem) {
  const BioPtr bio(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  std::vector<CertificatePtr> found;
  while (X509* certificate = PEM_read_bio_X509(bio.get(), nullptr, nullptr, nullptr)) {
    found.emplace_back(certificate);
  }
  ERR_clear_error();  // an empty error queue ends the text
  return found;
}

// Returns the first error in OpenSSL's queue, and clears the queue.
std::string TakeError() {
  const unsigned long error = ERR_get_error();  // NOLINT(google-runtime-int): OpenSSL's
  ERR_clear_error();
  const char* reason = ERR_reason_error_string(error);
  return reason == nullptr ? "the connection broke off" : reason;
}

// ---------------------------------------------------------------- bytes below TLS

// OpenSSL's socket BIO writes without MSG_NOSIGNAL, so a client that disconnects would raise
// SIGPIPE.
int FdOf(BIO* bio) { return static_cast<int>(reinterpret_cast<intptr_t>(BIO_get_data(bio))); }

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR; }

int SendTo(BIO* bio, const char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t sent = send(FdOf(bio), bytes, static_cast<size_t>(count), MSG_NOSIGNAL);
  if (sent < 0 && WouldBlock()) BIO_set_retry_write(bio);
  return static_cast<int>(sent);
}

int ReceiveFrom(BIO* bio, char* bytes, int count) {
  BIO_clear_retry_flags(bio);
  const ssize_t received = recv(FdOf(bio), bytes, static_cast<size_t>(count), 0);
  if (received < 0 && WouldBlock()) BIO_set_retry_read(bio);
  if (received == 0) BIO_set_flags(bio, BIO_FLAGS_IN_EOF);
  return static_cast<int>(received);
}

long Control(BIO* bio, int command, long, void*) {  // NOLINT(google-runtime-int): OpenSSL's
  if (command == BIO_CTRL_FLUSH) return 1;
  if (command == BIO_CTRL_EOF) return BIO_test_flags(bio, BIO_FLAGS_IN_EOF) != 0 ? 1 : 0;
  return 0;
}

BIO_METHOD* MakeSocketMethod() {
  BIO_METHOD* method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "socket");
  PENSTOCK_CHECK(method != nullptr, "(no memory for a BIO's method)");
  BIO_meth_set_write(method, SendTo);
  BIO_meth_set_read(method, ReceiveFrom);
  BIO_meth_set_ctrl(method, Control);
  return method;
}

BIO* MakeSocketBio(int fd) {
  static BIO_METHOD* const method = MakeSocketMethod();
  BIO* bio = BIO_new(method);
  if (bio == nullptr) return nullptr;
  BIO_set_data(bio, reinterpret_cast<void*>(static_cast<intptr_t>(fd)));
  BIO_set_init(bio, 1);
  return bio;
}

}  // namespace

struct TlsSockets::Context {
  Context(std::string offered, bool members)
      : protocols(std::move(offered)), between_members(members), ssl(SSL_CTX_new(TLS_method())) {}

  const std::string protocols;
  const bool between_members;
  const std::unique_ptr<SSL_CTX, OpenSslFree<SSL_CTX_free>> ssl;
};

namespace {

// ---------------------------------------------------------------- a connection

class TlsSocket final : public Socket {
 public:
  TlsSocket(int fd, SslPtr ssl, std::shared_ptr<const TlsSockets::Context> context)
      : fd_(fd), context_(std::move(context)), ssl_(std::move(ssl)) {}
  ~TlsSocket() override { close(fd_); }
  TlsSocket(const TlsSocket&) = delete;
  TlsSocket& operator=(const TlsSocket&) = delete;

  // Takes ownership of `fd`. Null if memory is short.
  static std::unique_ptr<TlsSocket> Make(int fd,
                                         std::shared_ptr<const TlsSockets::Context> context) {
    SslPtr ssl(SSL_new(context->ssl.get()));
    BIO* bio = ssl == nullptr ? nullptr : MakeSocketBio(fd);
    if (bio == nullptr) {
      close(fd);
      return nullptr;
    }
    SSL_set_bio(ssl.get(), bio, bio);
    return std::make_unique<TlsSocket>(fd, std::move(ssl), std::move(context));
  }

  SSL* ssl() const { return ssl_.get(); }

  // If `into` has room for a TLS record (16 KiB), the whole record is read, so that OpenSSL keeps
  // no bytes that epoll does not report.
  Result Read(std::span<char> into) override {
    read_waits_for_write_ = false;
    const int max = static_cast<int>(std::min<size_t>(into.size(), INT_MAX));
    ERR_clear_error();
    return ResultOf(SSL_read(ssl_.get(), into.data(), max), SSL_ERROR_WANT_WRITE,
                    read_waits_for_write_);
  }
  Result Write(std::string_view bytes) override {
    write_waits_for_read_ = false;
    if (bytes.empty()) return {.kind = Result::Kind::kBytes};
    const int max = static_cast<int>(std::min<size_t>(bytes.size(), INT_MAX));
    ERR_clear_error();
    return ResultOf(SSL_write(ssl_.get(), bytes.data(), max), SSL_ERROR_WANT_READ,
                    write_waits_for_read_);
  }
  bool read_waits_for_write() const override { return read_waits_for_write_; }
  bool write_waits_for_read() const override { return write_waits_for_read_; }

  bool established() const override { return SSL_is_init_finished(ssl_.get()) != 0; }

  std::string ExportSecret(const std::string& label) const override {
    std::string secret(32, '\0');
    PENSTOCK_CHECK(established(), "(a secret is asked for before the handshake has ended)");
    PENSTOCK_CHECK_EQ(
        SSL_export_keying_material(ssl_.get(), reinterpret_cast<unsigned char*>(secret.data()),
                                   secret.size(), label.data(), label.size(), nullptr, 0, 0),
        1);
    return secret;
  }

  std::string trouble() const override { return trouble_; }

  void FinishWriting() override {
    ERR_clear_error();
    if (!broken_ && established()) SSL_shutdown(ssl_.get());
    ERR_clear_error();
    shutdown(fd_, SHUT_WR);
  }
  int fd() const override { return fd_; }

 private:
  // Sets `waits_for_other` if the operation waits for `other`, one of SSL_ERROR_WANT_*.
  Result ResultOf(int done, int other, bool& waits_for_other) {
    if (done > 0) {
      if (LacksProtocol()) return {.kind = Result::Kind::kBroken};
      return {.kind = Result::Kind::kBytes, .bytes = static_cast<size_t>(done)};
    }
    const int error = SSL_get_error(ssl_.get(), done);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      waits_for_other = error == other;
      return {.kind = Result::Kind::kWouldBlock};
    }
    if (error == SSL_ERROR_ZERO_RETURN) return {.kind = Result::Kind::kEnd};
    if (!std::exchange(broken_, true)) LogBreak();
    return {.kind = Result::Kind::kBroken};
  }

  // ALPN's callback is not called for a peer that names no protocol.
  bool LacksProtocol() {
    if (!context_->between_members) return false;
    const unsigned char* name = nullptr;
    unsigned int bytes = 0;
    SSL_get0_alpn_selected(ssl_.get(), &name, &bytes);
    broken_ = bytes == 0;
    return broken_;
  }

  void LogBreak() {
    if (established()) return ERR_clear_error();  // peers may disconnect without notice
    trouble_ = TakeError();
    LogDebug("tls_handshake_failed", "a peer's TLS handshake failed: {}", trouble_);
  }

  const int fd_;
  const std::shared_ptr<const TlsSockets::Context> context_;  // destroyed after ssl_
  const SslPtr ssl_;
  bool read_waits_for_write_ = false;
  bool write_waits_for_read_ = false;
  bool broken_ = false;
  std::string trouble_ = "the connection broke";
};

// ---------------------------------------------------------------- what connections share

int ChooseProtocol(SSL*, const unsigned char** chosen, unsigned char* chosen_bytes,
                   const unsigned char* offered, unsigned int offered_bytes, void* context) {
  const std::string& ours = static_cast<const TlsSockets::Context*>(context)->protocols;
  unsigned char* found = nullptr;
  const int result = SSL_select_next_proto(
      &found, chosen_bytes, reinterpret_cast<const unsigned char*>(ours.data()),
      static_cast<unsigned int>(ours.size()), offered, offered_bytes);
  if (result != OPENSSL_NPN_NEGOTIATED) return SSL_TLSEXT_ERR_ALERT_FATAL;
  *chosen = found;
  return SSL_TLSEXT_ERR_OK;
}

bool UseCertificate(SSL_CTX* ssl, const TlsTexts& texts) {
  const std::vector<CertificatePtr> chain = CertificatesIn(texts.cert);
  if (chain.empty() || SSL_CTX_use_certificate(ssl, chain.front().get()) != 1) return false;
  for (size_t i = 1; i < chain.size(); ++i) {
    if (SSL_CTX_add1_chain_cert(ssl, chain[i].get()) != 1) return false;
  }
  const BioPtr bio(BIO_new_mem_buf(texts.key.data(), static_cast<int>(texts.key.size())));
  const PrivateKeyPtr key(PEM_read_bio_PrivateKey(bio.get(), nullptr, nullptr, nullptr));
  return key != nullptr && SSL_CTX_use_PrivateKey(ssl, key.get()) == 1;
}

bool RequirePeerCertificate(SSL_CTX* ssl, const std::string& ca) {
  for (const CertificatePtr& certificate : CertificatesIn(ca)) {
    if (X509_STORE_add_cert(SSL_CTX_get_cert_store(ssl), certificate.get()) != 1) return false;
    if (SSL_CTX_add_client_CA(ssl, certificate.get()) != 1) return false;
  }
  SSL_CTX_set_verify(ssl, SSL_VERIFY_PEER | SSL_VERIFY_FAIL_IF_NO_PEER_CERT, nullptr);
  static constexpr unsigned char kSessions[] = "penstock";
  return SSL_CTX_set_session_id_context(ssl, kSessions, sizeof(kSessions) - 1) == 1;
}

bool SetCommonOptions(SSL_CTX* ssl) {
  SSL_CTX_set_options(ssl, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION);
  SSL_CTX_set_mode(ssl, SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER |
                            SSL_MODE_RELEASE_BUFFERS);
  return SSL_CTX_set_min_proto_version(ssl, TLS1_2_VERSION) == 1;
}

// The rules of TlsRules::between_members.
bool SetMemberOptions(SSL_CTX* ssl, const std::string& protocols) {
  // Twice what a chain of a few certificates takes; OpenSSL's default is 100 KiB.
  constexpr int kCertificatesMax = 32 << 10;
  SSL_CTX_set_options(ssl, SSL_OP_NO_TICKET);
  SSL_CTX_set_session_cache_mode(ssl, SSL_SESS_CACHE_OFF);
  SSL_CTX_set_max_cert_list(ssl, kCertificatesMax);
  return SSL_CTX_set_min_proto_version(ssl, TLS1_3_VERSION) == 1 &&
         SSL_CTX_set_num_tickets(ssl, 0) == 1 &&
         SSL_CTX_set_ciphersuites(ssl,
                                  "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:"
                                  "TLS_CHACHA20_POLY1305_SHA256") == 1 &&
         SSL_CTX_set_alpn_protos(ssl, reinterpret_cast<const unsigned char*>(protocols.data()),
                                 static_cast<unsigned int>(protocols.size())) == 0;
}

absl::StatusOr<std::shared_ptr<const TlsSockets::Context>> MakeContext(const TlsTexts& texts,
                                                                       const std::string& protocols,
                                                                       bool between_members) {
  const auto context = std::make_shared<TlsSockets::Context>(protocols, between_members);
  SSL_CTX* ssl = context->ssl.get();
  ERR_clear_error();
  bool good = ssl != nullptr && SetCommonOptions(ssl);
  if (good && between_members) good = SetMemberOptions(ssl, protocols);
  if (good) {
    SSL_CTX_set_alpn_select_cb(ssl, ChooseProtocol, context.get());
    good =
        UseCertificate(ssl, texts) && (texts.ca.empty() || RequirePeerCertificate(ssl, texts.ca));
  }
  if (!good)
    return FailedPrecondition("OpenSSL rejects the certificate, key or CA: {}", TakeError());
  return context;
}

std::string AsAlpn(const std::vector<std::string>& protocols) {
  std::string all;
  for (const std::string& protocol : protocols) {
    PENSTOCK_CHECK(!protocol.empty() && protocol.size() < 256, "(a name that ALPN cannot say)");
    all += static_cast<char>(protocol.size());
    all += protocol;
  }
  return all;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TlsSockets>> TlsSockets::Create(
    std::shared_ptr<TlsIdentity> identity, const TlsRules& rules) {
  PENSTOCK_CHECK(!rules.between_members || identity->requires_client_certificate());
  std::unique_ptr<TlsSockets> sockets(new TlsSockets(std::move(identity), rules));
  const auto loaded = sockets->identity_->Current();
  ASSIGN_OR_RETURN(auto context,
                   MakeContext(loaded->texts, sockets->protocols_, sockets->between_members_));
  MutexLock lock(sockets->mutex_);
  sockets->version_ = loaded->version;
  sockets->context_ = std::move(context);
  return sockets;
}

TlsSockets::TlsSockets(std::shared_ptr<TlsIdentity> identity, const TlsRules& rules)
    : identity_(std::move(identity)),
      protocols_(AsAlpn(rules.protocols)),
      between_members_(rules.between_members) {}

std::shared_ptr<const TlsSockets::Context> TlsSockets::CurrentContext() {
  const std::shared_ptr<const TlsIdentity::Loaded> loaded = identity_->Current();
  MutexLock lock(mutex_);
  if (loaded->version <= version_) return context_;
  version_ = loaded->version;
  auto context = MakeContext(loaded->texts, protocols_, between_members_);
  if (context.ok()) {
    context_ = *std::move(context);
  } else {
    LogWarning("certificates_kept",
               "the new files are invalid; the previous certificate stays in use: {}",
               Message(context.status()));
  }
  return context_;
}

std::unique_ptr<Socket> TlsSockets::Accept(int fd) {
  std::unique_ptr<TlsSocket> socket = TlsSocket::Make(fd, CurrentContext());
  if (socket != nullptr) SSL_set_accept_state(socket->ssl());
  return socket;
}

std::unique_ptr<Socket> TlsSockets::Connect(int fd) {
  PENSTOCK_CHECK(between_members_);
  std::unique_ptr<TlsSocket> socket = TlsSocket::Make(fd, CurrentContext());
  if (socket != nullptr) SSL_set_connect_state(socket->ssl());
  return socket;
}

}  // namespace penstock
