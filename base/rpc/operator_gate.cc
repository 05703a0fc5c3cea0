#include "base/rpc/operator_gate.h"

#include <grpc/grpc_security_constants.h>
#include <grpcpp/grpcpp.h>

#include <utility>
#include <vector>

#include "base/log/log.h"
#include "base/tls/tls_roles.h"

namespace penstock {
namespace {

TlsRoles RolesOfCaller(const grpc::ServerContextBase& context) {
  std::vector<std::string> names;
  const std::shared_ptr<const grpc::AuthContext> caller = context.auth_context();
  for (const grpc::string_ref& name : caller->FindPropertyValues(GRPC_X509_SAN_PROPERTY_NAME)) {
    names.emplace_back(name.data(), name.size());
  }
  return RolesOf(names);
}

}  // namespace

OperatorGate::OperatorGate(std::shared_ptr<TlsIdentity> identity) : identity_(std::move(identity)) {
  if (identity_ == nullptr || identity_->Current()->texts.roles.named) return;
  LogWarning("certificate_role_missing",
             "{}={} names no role, so every holder of a cluster certificate may drain, flush and "
             "change this process; name roles in the cluster's certificates",
             identity_->files().cert.field, identity_->files().cert.path);
}

absl::Status OperatorGate::Check(const grpc::ServerContextBase& context) const {
  if (identity_ == nullptr) return absl::OkStatus();
  return CheckOperator(identity_->Current()->texts.roles, RolesOfCaller(context));
}

}  // namespace penstock
