#include "base/rpc/tls.h"

#include <grpc/grpc_security.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_certificate_verifier.h>
#include <grpcpp/security/tls_credentials_options.h>

#include "base/check.h"

namespace penstock {
namespace {

constexpr unsigned kRefreshSeconds = 1;

// gRPC 1.51's own reloading credentials (FileWatcherCertificateProvider) discard the old pair when
// a new certificate is written before its key, and then refuse every caller. C-core's older fetcher
// asks at each handshake and keeps the old pair until there is a valid new one.
class TlsServerCredentials final : public grpc::ServerCredentials {
 public:
  explicit TlsServerCredentials(TlsIdentity& identity) : identity_(identity) {
    credentials_ = grpc_ssl_server_credentials_create_with_options(
        grpc_ssl_server_credentials_create_options_using_config_fetcher(
            identity.requires_client_certificate()
                ? GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY
                : GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE,
            &TlsServerCredentials::Fetch, this));
  }
  ~TlsServerCredentials() override { grpc_server_credentials_release(credentials_); }
  TlsServerCredentials(const TlsServerCredentials&) = delete;
  TlsServerCredentials& operator=(const TlsServerCredentials&) = delete;

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
    return static_cast<TlsServerCredentials*>(self)->FetchNew(config);
  }

  grpc_ssl_certificate_config_reload_status FetchNew(grpc_ssl_server_certificate_config** config) {
    const std::shared_ptr<const TlsIdentity::Loaded> loaded = identity_.Current();
    if (loaded->version == served_version_) return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_UNCHANGED;
    served_version_ = loaded->version;
    const TlsTexts& texts = loaded->texts;
    const grpc_ssl_pem_key_cert_pair pair{.private_key = texts.key.c_str(),
                                          .cert_chain = texts.cert.c_str()};
    // C-core requires a CA even if callers need not present a certificate.
    const std::string& ca = texts.ca.empty() ? texts.cert : texts.ca;
    *config = grpc_ssl_server_certificate_config_create(ca.c_str(), &pair, 1);
    return GRPC_SSL_CERTIFICATE_CONFIG_RELOAD_NEW;
  }

  TlsIdentity& identity_;
  grpc_server_credentials* credentials_ = nullptr;
  uint64_t served_version_ = 0;
};

}  // namespace

std::shared_ptr<grpc::ServerCredentials> ServerCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity) {
  if (identity == nullptr) return grpc::InsecureServerCredentials();
  return std::make_shared<TlsServerCredentials>(*identity);
}

std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(
    const std::shared_ptr<TlsIdentity>& identity, TlsCheck check) {
  if (identity == nullptr) return grpc::InsecureChannelCredentials();
  namespace tls = grpc::experimental;
  const TlsFiles& files = identity->files();
  tls::TlsChannelCredentialsOptions options;
  options.set_certificate_provider(std::make_shared<tls::FileWatcherCertificateProvider>(
      files.key.path, files.cert.path, files.ca.path, kRefreshSeconds));
  if (!files.ca.path.empty()) options.watch_root_certs();
  if (!files.cert.path.empty()) options.watch_identity_key_cert_pairs();
  if (check == TlsCheck::kMember) {
    options.set_certificate_verifier(std::make_shared<tls::NoOpCertificateVerifier>());
    options.set_check_call_host(false);
  }
  return tls::TlsCredentials(options);
}

}  // namespace penstock
