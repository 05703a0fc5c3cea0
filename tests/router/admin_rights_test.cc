// Who may change workers through a router's operators' port.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "base/rpc/rpc_server.h"
#include "proto/admin.grpc.pb.h"
#include "router/admin_service.h"
#include "tests/base/role_certificates.h"

namespace penstock {
namespace {

using Roles = std::vector<std::string>;

// A router that operators use: its certificate has both roles, so that workers obey it.
class AdminRights : public testing::Test {
 protected:
  AdminRights() {
    auto server =
        RpcServer::Start({.listen = "127.0.0.1:0", .services = {service_.get()}, .tls = identity_});
    PENSTOCK_CHECK(server.ok(), "(a server did not start)");
    server_ = *std::move(server);
  }

  // The answers to a caller of these roles, in the order drain, turn, flush, log level of a worker
  // that does not exist. The first is the answer to a question.
  std::vector<grpc::StatusCode> Answers(const Roles& caller) {
    const auto stub = v1::Admin::NewStub(certificates_.Channel(server_->endpoint(), caller));
    std::vector<grpc::StatusCode> codes;
    const auto ask = [&](const auto& call) {
      grpc::ClientContext context;
      context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
      codes.push_back(call(context).error_code());
    };
    v1::Fleet fleet;
    ask([&](auto& c) { return stub->Workers(&c, {}, &fleet); });
    v1::DrainRequest drain;
    drain.set_worker("w");
    ask([&](auto& c) { return stub->Drain(&c, drain)->Finish(); });
    v1::SetRoleRequest turn;
    turn.set_worker("w");
    turn.set_force(true);
    ask([&](auto& c) { return stub->SetRole(&c, turn)->Finish(); });
    v1::FlushRequest flush;
    flush.set_worker("w");
    v1::KvFlushed flushed;
    ask([&](auto& c) { return stub->Flush(&c, flush, &flushed); });
    v1::SetLogLevelRequest level;
    level.set_worker("w");
    v1::LogLevelSet set;
    ask([&](auto& c) { return stub->SetLogLevel(&c, level, &set); });
    return codes;
  }

  RoleCertificates certificates_;
  const std::shared_ptr<TlsIdentity> identity_ = certificates_.Identity({"router", "operator"});
  const OperatorGate operators_{identity_};
  ManualClock clock_;
  const std::shared_ptr<WorkerTable> table_ =
      std::make_shared<WorkerTable>(clock_, std::chrono::seconds(3));
  const std::unique_ptr<grpc::Service> service_ =
      MakeAdminService({.process = {}, .table = *table_, .operators = operators_, .picture = {}});
  std::unique_ptr<RpcServer> server_;
};

TEST_F(AdminRights, OperatorsChangeAndOthersLook) {
  using enum grpc::StatusCode;
  const std::vector<grpc::StatusCode> may = {OK, NOT_FOUND, NOT_FOUND, NOT_FOUND, NOT_FOUND};
  std::vector<grpc::StatusCode> may_not(5, PERMISSION_DENIED);
  may_not[0] = OK;
  EXPECT_EQ(Answers({"operator"}), may);
  for (const Roles& caller : {Roles{"router"}, Roles{"worker"}, Roles{}}) {
    EXPECT_EQ(Answers(caller), may_not) << testing::PrintToString(caller);
  }
}

}  // namespace
}  // namespace penstock
