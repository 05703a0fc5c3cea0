#include "base/tls/tls_roles.h"

#include <openssl/x509v3.h>

#include "base/tls/openssl_ptr.h"

namespace penstock {
namespace {

using GeneralNamesPtr = std::unique_ptr<GENERAL_NAMES, OpenSslFree<GENERAL_NAMES_free>>;

}  // namespace

TlsRoles RolesOf(const std::vector<std::string>& alternative_names) {
  TlsRoles roles;
  for (const std::string_view name : alternative_names) {
    if (!name.starts_with(kRoleUriPrefix)) continue;
    roles.named = true;
    roles.operates |= name.substr(kRoleUriPrefix.size()) == "operator";
  }
  return roles;
}

TlsRoles RolesOf(const X509& certificate) {
  const GeneralNamesPtr names(static_cast<GENERAL_NAMES*>(
      X509_get_ext_d2i(&certificate, NID_subject_alt_name, nullptr, nullptr)));
  std::vector<std::string> uris;
  for (int i = 0; i < sk_GENERAL_NAME_num(names.get()); ++i) {
    const GENERAL_NAME* const name = sk_GENERAL_NAME_value(names.get(), i);
    if (name->type != GEN_URI) continue;
    const ASN1_IA5STRING* const uri = name->d.uniformResourceIdentifier;
    uris.emplace_back(reinterpret_cast<const char*>(ASN1_STRING_get0_data(uri)),
                      static_cast<size_t>(ASN1_STRING_length(uri)));
  }
  return RolesOf(uris);
}

absl::Status CheckOperator(const TlsRoles& own, const TlsRoles& caller) {
  if (caller.operates || (!own.named && !caller.named)) return absl::OkStatus();
  return absl::PermissionDeniedError(
      fmt::format("the caller's certificate names {}; this call needs one with the URI {}operator",
                  caller.named ? "another role" : "no role", kRoleUriPrefix));
}

}  // namespace penstock
