#include "base/tls/tls_identity.h"

#include <utility>

#include "base/log/log.h"

namespace penstock {

absl::StatusOr<std::shared_ptr<TlsIdentity>> TlsIdentity::Open(TlsFiles files, TlsUse use) {
  RETURN_IF_ERROR(CheckTlsFields(files, use));
  if (files.cert.path.empty() && files.ca.path.empty()) return std::shared_ptr<TlsIdentity>();
  // Taken before the files are read, so that a change in between is detected later.
  const TlsStamps stamps = StampsOf(files);
  ASSIGN_OR_RETURN(TlsTexts texts, ReadTls(files));
  return std::shared_ptr<TlsIdentity>(new TlsIdentity(std::move(files), stamps, std::move(texts)));
}

TlsIdentity::TlsIdentity(TlsFiles files, TlsStamps stamps, TlsTexts texts)
    : files_(std::move(files)),
      seen_(stamps),
      loaded_(std::make_shared<const Loaded>(Loaded{.texts = std::move(texts), .version = 1})) {}

std::shared_ptr<const TlsIdentity::Loaded> TlsIdentity::Current() {
  MutexLock lock(mutex_);
  const TlsStamps stamps = StampsOf(files_);
  if (stamps == seen_) return loaded_;
  seen_ = stamps;
  absl::StatusOr<TlsTexts> texts = ReadTls(files_);
  if (!texts.ok()) {
    LogWarning("certificates_kept",
               "the new files are invalid; the previous certificate stays in use: {}",
               Message(texts.status()));
    return loaded_;
  }
  loaded_ = std::make_shared<const Loaded>(
      Loaded{.texts = *std::move(texts), .version = loaded_->version + 1});
  LogInfo("certificates_reread", "loaded the new {}={}", files_.cert.field, files_.cert.path);
  return loaded_;
}

int64_t TlsIdentity::ExpiresUnixSeconds() { return Current()->texts.expires_unix_s; }

}  // namespace penstock
