#include "base/tls/tls_files.h"

#include <openssl/asn1.h>
#include <openssl/err.h>
#include <openssl/pem.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <ctime>
#include <fstream>

#include "base/tls/openssl_ptr.h"

namespace penstock {
namespace {

constexpr int64_t kFileBytesMax = 1 << 20;

std::string Named(const TlsFile& file) { return fmt::format("{}={}", file.field, file.path); }

// Converts an errno to a status that names the file.
absl::Status ReadError(const TlsFile& file, int error) {
  const std::string text = fmt::format("{}: cannot read it: {}", Named(file), strerror(error));
  if (error == ENOENT || error == ENOTDIR) return absl::NotFoundError(text);
  if (error == EACCES || error == EPERM) return absl::PermissionDeniedError(text);
  return absl::UnavailableError(text);
}

absl::StatusOr<std::string> ReadText(const TlsFile& file) {
  if (file.path.empty()) return std::string();
  struct stat status {};
  if (stat(file.path.c_str(), &status) != 0) return ReadError(file, errno);
  if (!S_ISREG(status.st_mode) || status.st_size > kFileBytesMax) {
    return FailedPrecondition("{} is not a file of at most 1 MiB; give a PEM file", Named(file));
  }
  std::ifstream stream(file.path, std::ios::binary);
  if (!stream) return ReadError(file, errno);
  std::string text(std::istreambuf_iterator<char>(stream), {});
  if (stream.bad()) return ReadError(file, EIO);
  return text;
}

BioPtr Reading(const std::string& text) {
  return BioPtr(BIO_new_mem_buf(text.data(), static_cast<int>(text.size())));
}

CertificatePtr NextCertificate(BIO* bio) {
  return CertificatePtr(PEM_read_bio_X509(bio, nullptr, nullptr, nullptr));
}

// Refuses to prompt for a passphrase: a server has no terminal.
int NoPassphrase(char*, int, int, void*) { return -1; }

// Counts the certificates; returns FAILED_PRECONDITION if there is none or one is damaged.
absl::Status CheckCertificates(const TlsFile& file, const std::string& text) {
  const BioPtr bio = Reading(text);
  int count = 0;
  while (NextCertificate(bio.get()) != nullptr) ++count;
  const unsigned long error = ERR_peek_last_error();  // NOLINT(google-runtime-int): OpenSSL's
  const bool at_end =
      ERR_GET_LIB(error) == ERR_LIB_PEM && ERR_GET_REASON(error) == PEM_R_NO_START_LINE;
  ERR_clear_error();
  if (count == 0) return FailedPrecondition("{} contains no PEM certificate", Named(file));
  if (at_end) return absl::OkStatus();
  return FailedPrecondition("{}: certificate {} is damaged", Named(file), count + 1);
}

int64_t UnixSeconds(const ASN1_TIME* time) {
  std::tm when{};
  return ASN1_TIME_to_tm(time, &when) == 1 ? timegm(&when) : 0;
}

// Checks that certificate and key belong together and that the certificate is valid now.
absl::Status CheckPair(const TlsFiles& files, TlsTexts* texts) {
  const CertificatePtr own = NextCertificate(Reading(texts->cert).get());
  const PrivateKeyPtr key(
      PEM_read_bio_PrivateKey(Reading(texts->key).get(), nullptr, NoPassphrase, nullptr));
  const bool match =
      own != nullptr && key != nullptr && X509_check_private_key(own.get(), key.get()) == 1;
  ERR_clear_error();
  if (key == nullptr) {
    return FailedPrecondition("{} contains no PEM private key without a passphrase",
                              Named(files.key));
  }
  if (!match) {
    return FailedPrecondition("{} does not match the certificate of {}", Named(files.key),
                              Named(files.cert));
  }
  texts->roles = RolesOf(*own);
  texts->expires_unix_s = UnixSeconds(X509_get0_notAfter(own.get()));
  if (texts->expires_unix_s <= time(nullptr)) {
    return FailedPrecondition("{}: the certificate has expired; replace the file",
                              Named(files.cert));
  }
  return absl::OkStatus();
}

TlsStamp StampOf(const TlsFile& file) {
  struct stat status {};
  if (file.path.empty() || stat(file.path.c_str(), &status) != 0) return {};
  return {.seconds = status.st_mtim.tv_sec,
          .nanoseconds = status.st_mtim.tv_nsec,
          .inode = status.st_ino};
}

}  // namespace

TlsStamps StampsOf(const TlsFiles& files) {
  return {.cert = StampOf(files.cert), .key = StampOf(files.key), .ca = StampOf(files.ca)};
}

absl::StatusOr<TlsTexts> ReadTls(const TlsFiles& files) {
  TlsTexts texts;
  ASSIGN_OR_RETURN(texts.cert, ReadText(files.cert));
  ASSIGN_OR_RETURN(texts.key, ReadText(files.key));
  ASSIGN_OR_RETURN(texts.ca, ReadText(files.ca));
  if (!files.cert.path.empty()) {
    RETURN_IF_ERROR(CheckCertificates(files.cert, texts.cert));
    RETURN_IF_ERROR(CheckPair(files, &texts));
  }
  if (!files.ca.path.empty()) RETURN_IF_ERROR(CheckCertificates(files.ca, texts.ca));
  return texts;
}

absl::Status CheckTlsFields(const TlsFiles& files, TlsUse use) {
  const bool cert = !files.cert.path.empty();
  const bool key = !files.key.path.empty();
  const bool ca = !files.ca.path.empty();
  if (!cert && !key && (!ca || use == TlsUse::kClient)) return absl::OkStatus();
  const TlsFile* missing = !cert                           ? &files.cert
                           : !key                          ? &files.key
                           : !ca && use == TlsUse::kMember ? &files.ca
                                                           : nullptr;
  if (missing == nullptr) return absl::OkStatus();
  const std::string pair = fmt::format("{} and {}", files.cert.field, files.key.field);
  const std::string all =
      fmt::format("{}, {} and {}", files.cert.field, files.key.field, files.ca.field);
  return FailedPrecondition("{} is missing; set {} together", missing->field,
                            use == TlsUse::kMember ? all : pair);
}

}  // namespace penstock
