#include "base/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include <string_view>

#include "base/log/log.h"

namespace penstock {
namespace {

// The server's answer to a client that asks for a host which no certificate names: it shows the one
// that it has. Certificates of a cluster's members name no addresses of pods, so gRPC would log an
// error for each connection.
constexpr std::string_view kNoNamedCertificate = "No match found for server name: ";

LogLevel LevelOf(gpr_log_severity severity, std::string_view message) {
  if (message.starts_with(kNoNamedCertificate)) return LogLevel::kDebug;
  switch (severity) {
    case GPR_LOG_SEVERITY_DEBUG:
      return LogLevel::kDebug;
    case GPR_LOG_SEVERITY_INFO:
      return LogLevel::kInfo;
    case GPR_LOG_SEVERITY_ERROR:
      return LogLevel::kError;
  }
  return LogLevel::kError;
}

void TakeMessage(gpr_log_func_args* args) {
  Log(LevelOf(args->severity, args->message), "grpc_message_logged",
      {{"file", args->file}, {"line", args->line}, {"message", args->message}});
}

}  // namespace

void RedirectGrpcLog() { gpr_set_log_function(TakeMessage); }

}  // namespace penstock
