#include "base/tls.h"

#include <grpc/grpc_security.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace penstock {
namespace {

constexpr unsigned kRefreshSeconds = 1;

}  // namespace

// gRPC 1.51's own reloading credentials (FileWatcherCertificateProvider) drop what they had when a
// new certificate comes before its key, and then refuse every caller. C-core's older fetcher asks
// at each handshake and keeps what it had where there is nothing better.
class TlsIdentity::Server final : public grpc::ServerCredentials {
 public:
  Server(TlsIdentity& identity, bool ask_callers) : identity_(identity) {
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            ask_callers ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                        : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            &Server::Fetch, this));
  }
  ~Server() override { grpc_server_credentials_release(credentials_); }
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {
    PENSTOCK_CHECK(false, "(keys are checked by the services)");
  }

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  // C-core calls it for one handshake at a time.
  static grpc_ssl_certificate_config_reload_status Fetch(
      void* self, grpc_ssl_server_certificate_config** config) {
    return static_cast<Server*>(self)->FetchNew(config);
  }

  grpc_ssl_certificate_config_reload_status FetchNew(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const Loaded> loaded = identity_.Now();
    if (loaded->version == served_version_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    served_version_ = loaded->version;
    const TlsTexts& texts = loaded->texts;
    const grpc_ssl_pem_key_cert_pair pair{.private_key = texts.key.c_str(),
                                          .cert_chain = texts.cert.c_str()};
    // C-core wants a CA even where it asks callers for nothing.
    const std::string& ca = texts.ca.empty() ? texts.cert : texts.ca;
    *config = grpc_ssl_server_certificate_config_create(ca.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  TlsIdentity& identity_;
  grpc_server_credentials* credentials_ = nullptr;
  uint64_t served_version_ = 0;
};

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::Open(TlsFiles files, TlsUse use) {
  RETURN_IF_ERROR(CheckTlsFields(files, use));
  if (files.cert.path.empty() && files.ca.path.empty()) return std::shared_ptr<TlsIdentity>();
  // Before they are read: a change meanwhile is seen as one.
  const TlsStamps stamps = StampsOf(files);
  ASSIGN_OR_RETURN(TlsTexts texts, ReadTls(files));
  return std::shared_ptr<TlsIdentity>(new TlsIdentity(std::move(files), stamps, std::move(texts)));
}

TlsIdentity::TlsIdentity(TlsFiles files, TlsStamps stamps, TlsTexts texts)
    : files_(std::move(files)),
      seen_(stamps),
      loaded_(std::make_shared<const Loaded>(Loaded{.texts = std::move(texts), .version = 1})) {}

std::shared_ptr<const TlsIdentity::Loaded> TlsIdentity::Now() {
  MutexLock lock(mutex_);
  const TlsStamps stamps = StampsOf(files_);
  if (stamps == seen_) return loaded_;
  seen_ = stamps;
  absl::StatusOr<TlsTexts> texts = ReadTls(files_);
  if (!texts.ok()) {
    LogWarning("certificates_kept", "the certificates of before are served on: {}",
               Message(texts.status()));
    return loaded_;
  }
  loaded_ = std::make_shared<const Loaded>(
      Loaded{.texts = *std::move(texts), .version = loaded_->version + 1});
  LogInfo("certificates_reread", "{}={} was read again", files_.cert.field, files_.cert.path);
  return loaded_;
}

int64_t TlsIdentity::ExpiresUnixSeconds() { return Now()->texts.expires_unix_s; }

std::shared_ptr<grpc::ServerCredentials> TlsIdentity::ForServer() {
  return std::make_shared<Server>(*this, !files_.ca.path.empty());
}

std::shared_ptr<grpc::ChannelCredentials> TlsIdentity::ForChannels(Check check) const {
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
      files_.key.path, files_.cert.path, files_.ca.path, kRefreshSeconds));
  if (!files_.ca.path.empty()) options.watch_root_certs();
  if (!files_.cert.path.empty()) options.watch_identity_key_cert_pairs();
  if (check == Check::kMember) {
    options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
    options.set_check_call_host(false);
  }
  return tls::TlsCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity, TlsIdentity::Check check) {
  return identity == nullptr ? grpc::InsecureChannelCredentials() : identity->ForChannels(check);
}

}  // namespace penstock
