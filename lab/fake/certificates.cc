#include "lab/fake/certificates.h"

#include <openssl/ec.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/rand.h>
#include <openssl/x509v3.h>

#include <cstdio>
#include <fstream>

#include "base/check.h"
#include "base/tls/tls_roles.h"

namespace penstock {
namespace {

struct KeyFreer {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
};
struct CertificateFreer {
  void operator()(X509* certificate) const { X509_free(certificate); }
};
using Key = std::unique_ptr<EVP_PKEY, KeyFreer>;
using Certificate = std::unique_ptr<X509, CertificateFreer>;

Key MakeKey() {
  Key key(EVP_EC_gen("P-256"));
  PENSTOCK_CHECK(key != nullptr, "(no key was made)");
  return key;
}

std::string TextOf(BIO* bio) {
  char* data = nullptr;
  const auto bytes = static_cast<size_t>(BIO_get_mem_data(bio, &data));
  std::string text(data, bytes);
  BIO_free(bio);
  return text;
}

std::string PemOf(X509* certificate) {
  BIO* bio = BIO_new(BIO_s_mem());
  PENSTOCK_CHECK_EQ(PEM_write_bio_X509(bio, certificate), 1);
  return TextOf(bio);
}

std::string PemOf(EVP_PKEY* key) {
  BIO* bio = BIO_new(BIO_s_mem());
  PENSTOCK_CHECK_EQ(PEM_write_bio_PKCS8PrivateKey(bio, key, nullptr, nullptr, 0, nullptr, nullptr),
                    1);
  return TextOf(bio);
}

void AddExtension(X509* certificate, int nid, const char* value) {
  X509_EXTENSION* extension = X509V3_EXT_conf_nid(nullptr, nullptr, nid, value);
  PENSTOCK_CHECK(extension != nullptr, "(a bad extension)");
  PENSTOCK_CHECK_EQ(X509_add_ext(certificate, extension, -1), 1);
  X509_EXTENSION_free(extension);
}

// Not signed yet.
Certificate MakeCertificate(const std::string& name, EVP_PKEY* key, std::chrono::hours valid) {
  Certificate certificate(X509_new());
  X509_set_version(certificate.get(), X509_VERSION_3);
  uint32_t serial = 0;
  RAND_bytes(reinterpret_cast<unsigned char*>(&serial), sizeof(serial));
  ASN1_INTEGER_set_uint64(X509_get_serialNumber(certificate.get()), serial + 1ull);
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(valid).count();
  X509_gmtime_adj(X509_getm_notBefore(certificate.get()), -7 * 24 * 3600);
  X509_gmtime_adj(X509_getm_notAfter(certificate.get()), seconds);
  X509_NAME_add_entry_by_txt(X509_get_subject_name(certificate.get()), "CN", MBSTRING_ASC,
                             reinterpret_cast<const unsigned char*>(name.c_str()), -1, -1, 0);
  PENSTOCK_CHECK_EQ(X509_set_pubkey(certificate.get(), key), 1);
  return certificate;
}

}  // namespace

struct TestCa::State {
  Key key;
  Certificate certificate;
  std::string pem;
};

TestCa::TestCa(const std::string& name) : state_(std::make_unique<State>()) {
  state_->key = MakeKey();
  state_->certificate = MakeCertificate(name, state_->key.get(), std::chrono::hours(24));
  X509* certificate = state_->certificate.get();
  X509_set_issuer_name(certificate, X509_get_subject_name(certificate));
  AddExtension(certificate, NID_basic_constraints, "critical,CA:TRUE");
  AddExtension(certificate, NID_key_usage, "critical,keyCertSign");
  PENSTOCK_CHECK(X509_sign(certificate, state_->key.get(), EVP_sha256()) > 0, "(not signed)");
  state_->pem = PemOf(certificate);
}

TestCa::~TestCa() = default;

const std::string& TestCa::pem() const { return state_->pem; }

TestPair TestCa::Issue(const std::string& name, std::chrono::hours valid) const {
  return IssueWith(name, "DNS:localhost,IP:127.0.0.1", valid);
}

TestPair TestCa::IssueFor(const std::vector<std::string>& roles) const {
  std::string names = "DNS:localhost,IP:127.0.0.1";
  for (const std::string& role : roles) names += fmt::format(",URI:{}{}", kRoleUriPrefix, role);
  return IssueWith("member", names, std::chrono::hours(24));
}

TestPair TestCa::IssueWith(const std::string& name, const std::string& names,
                           std::chrono::hours valid) const {
  const Key key = MakeKey();
  const Certificate certificate = MakeCertificate(name, key.get(), valid);
  X509_set_issuer_name(certificate.get(), X509_get_subject_name(state_->certificate.get()));
  AddExtension(certificate.get(), NID_subject_alt_name, names.c_str());
  AddExtension(certificate.get(), NID_ext_key_usage, "serverAuth,clientAuth");
  PENSTOCK_CHECK(X509_sign(certificate.get(), state_->key.get(), EVP_sha256()) > 0, "(not signed)");
  return {.cert = PemOf(certificate.get()), .key = PemOf(key.get())};
}

void ReplaceFile(const std::string& path, const std::string& text) {
  std::ofstream(path + ".new", std::ios::binary) << text;
  PENSTOCK_CHECK_EQ(std::rename((path + ".new").c_str(), path.c_str()), 0);
}

void WritePair(const std::string& folder, const TestPair& pair) {
  ReplaceFile(folder + "/tls.crt", pair.cert);
  ReplaceFile(folder + "/tls.key", pair.key);
}

void WriteIdentity(const std::string& folder, const TestCa& ca, const TestPair& pair) {
  ReplaceFile(folder + "/ca.crt", ca.pem());
  WritePair(folder, pair);
}

TlsFiles FilesIn(const std::string& folder) {
  return {.cert = {"cert", folder + "/tls.crt"},
          .key = {"key", folder + "/tls.key"},
          .ca = {"ca", folder + "/ca.crt"}};
}

}  // namespace penstock
