#pragma once

#include <openssl/x509.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace penstock {

// The role of a cluster's process or person, which its certificate names by a URI among its
// alternative names: urn:penstock:role:router, :worker or :operator. A certificate may name
// several.
inline constexpr std::string_view kRoleUriPrefix = "urn:penstock:role:";

struct TlsRoles {
  bool named = false;     // any role, also one that this build does not know
  bool operates = false;  // operator
};

TlsRoles RolesOf(const std::vector<std::string>& alternative_names);
TlsRoles RolesOf(const X509& certificate);

// Checks a caller of an operators' call: one that drains, flushes or changes a process. If the
// process's own certificate or the caller's names a role, the caller's must name the operator's;
// otherwise every member of the cluster may. Returns PERMISSION_DENIED.
absl::Status CheckOperator(const TlsRoles& own, const TlsRoles& caller);

}  // namespace penstock
