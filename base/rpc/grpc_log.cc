#include "base/rpc/grpc_log.h"

#include <grpc/support/log.h>

#include "base/log/log.h"

namespace penstock {
namespace {

LogLevel LevelOf(gpr_log_severity severity) {
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
  Log(LevelOf(args->severity), "grpc_message_logged",
      {{"file", args->file}, {"line", args->line}, {"message", args->message}});
}

}  // namespace

void RedirectGrpcLog() { gpr_set_log_function(TakeMessage); }

}  // namespace penstock
