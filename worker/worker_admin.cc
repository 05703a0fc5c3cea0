#include "worker/worker_admin.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/rpc_server.h"
#include "proto/admin.grpc.pb.h"

namespace penstock {

class WorkerAdmin::Impl final : public v1::WorkerAdmin::CallbackService {
 public:
  Impl(ProcessInfo process, WorkerAdmin::SetDraining set_draining)
      : process_(std::move(process)), set_draining_(std::move(set_draining)) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::ServerInfo* info) override {
    DescribeProcess(process_, info);
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* SetDraining(grpc::CallbackServerContext* context,
                                        const v1::SetDrainingRequest* request,
                                        v1::DrainingSet*) override {
    return Finish(context, set_draining_(request->draining()));
  }

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::LogLevelSet* set) override {
    const absl::StatusOr<std::string> before = ChangeLogLevel(request->level());
    if (before.ok()) set->set_before(*before);
    return Finish(context, before.status());
  }

 private:
  static grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    reactor->Finish(ToGrpcStatus(status));
    return reactor;
  }

  const ProcessInfo process_;
  const WorkerAdmin::SetDraining set_draining_;
};

WorkerAdmin::WorkerAdmin(ProcessInfo process, SetDraining set_draining)
    : impl_(std::make_unique<Impl>(std::move(process), std::move(set_draining))) {}
WorkerAdmin::~WorkerAdmin() = default;
grpc::Service* WorkerAdmin::service() { return impl_.get(); }

}  // namespace penstock
