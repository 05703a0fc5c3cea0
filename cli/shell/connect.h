#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/support/channel_arguments.h>
#include <grpcpp/support/status.h>

#include <memory>
#include <string>

#include "base/status.h"
#include "cli/shell/tls_options.h"

namespace penstock {

// Whose certificate it must be, over TLS.
enum class Called {
  kHost,     // the named host's, as for public ports
  kProcess,  // any that the CA has signed where we show one ourselves, as between a cluster's
             // processes; else the named host's
};

// A channel to `endpoint`: host:port, or https://host:port for TLS, which a CA asks for too;
// without a CA the system's are trusted. Errors of TlsIdentity.
absl::StatusOr<std::shared_ptr<grpc::Channel>> Connect(const std::string& endpoint,
                                                       const TlsOptions& tls, Called called,
                                                       grpc::ChannelArguments arguments = {});

// The result of an Admin call with a message for the user: FAILED_PRECONDITION names the wanted
// port if `endpoint` is another one.
absl::Status AdminStatus(const grpc::Status& status, const std::string& endpoint);

}  // namespace penstock
