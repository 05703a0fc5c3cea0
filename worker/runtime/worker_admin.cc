#include "worker/runtime/worker_admin.h"

#include <grpcpp/grpcpp.h>

#include <utility>

#include "base/rpc/rpc_server.h"
#include "proto/admin.grpc.pb.h"

namespace penstock {
namespace {

constexpr Duration kTurnWithin = std::chrono::seconds(30);

}  // namespace

class WorkerAdmin::Impl final : public v1::WorkerAdmin::CallbackService {
 public:
  Impl(ProcessInfo process, const OperatorGate& operators, WorkerAdmin::SetDraining set_draining,
       Turn turn)
      : process_(std::move(process)),
        operators_(operators),
        set_draining_(std::move(set_draining)),
        turn_(std::move(turn)) {}

  grpc::ServerUnaryReactor* Info(grpc::CallbackServerContext* context, const v1::InfoRequest*,
                                 v1::ServerInfo* info) override {
    DescribeProcess(process_, info);
    return Finish(context, absl::OkStatus());
  }

  grpc::ServerUnaryReactor* SetDraining(grpc::CallbackServerContext* context,
                                        const v1::SetDrainingRequest* request,
                                        v1::DrainingSet*) override {
    absl::Status status = operators_.Check(*context);
    if (status.ok()) status = set_draining_(request->draining());
    return Finish(context, status);
  }

  grpc::ServerUnaryReactor* SetRole(grpc::CallbackServerContext* context,
                                    const v1::SetRoleRequest* request, v1::RoleSet* set) override {
    if (const absl::Status may = operators_.Check(*context); !may.ok()) return Finish(context, may);
    grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
    const Duration within =
        request->within_ms() == 0 ? kTurnWithin : std::chrono::milliseconds(request->within_ms());
    turn_(request->role(), within, [reactor, set](absl::StatusOr<uint32_t> epoch) {
      if (epoch.ok()) set->set_role_epoch(*epoch);
      reactor->Finish(ToGrpcStatus(epoch.status()));
    });
    return reactor;
  }

  grpc::ServerUnaryReactor* SetLogLevel(grpc::CallbackServerContext* context,
                                        const v1::SetLogLevelRequest* request,
                                        v1::LogLevelSet* set) override {
    if (const absl::Status may = operators_.Check(*context); !may.ok()) return Finish(context, may);
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
  const OperatorGate& operators_;
  const WorkerAdmin::SetDraining set_draining_;
  const Turn turn_;
};

WorkerAdmin::WorkerAdmin(ProcessInfo process, const OperatorGate& operators,
                         SetDraining set_draining, Turn turn)
    : impl_(std::make_unique<Impl>(std::move(process), operators, std::move(set_draining),
                                   std::move(turn))) {}
WorkerAdmin::~WorkerAdmin() = default;
grpc::Service* WorkerAdmin::service() { return impl_.get(); }

}  // namespace penstock
