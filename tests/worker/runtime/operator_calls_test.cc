// Who may drain, turn and flush a worker, and change its log level: by the roles that certificates
// name.
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include "base/rpc/rpc_server.h"
#include "proto/admin.grpc.pb.h"
#include "proto/kv_admin.grpc.pb.h"
#include "tests/base/role_certificates.h"
#include "worker/runtime/kv_admin.h"
#include "worker/runtime/worker_admin.h"

namespace penstock {
namespace {

using Roles = std::vector<std::string>;

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};

// The operators' services of a worker, over mutual TLS.
class WorkerOf {
 public:
  explicit WorkerOf(std::shared_ptr<TlsIdentity> identity) : gate_(identity) {
    auto server = RpcServer::Start({.listen = "127.0.0.1:0",
                                    .services = {admin_.service(), kv_.service()},
                                    .tls = std::move(identity)});
    PENSTOCK_CHECK(server.ok(), "(a server did not start)");
    server_ = *std::move(server);
    store_->Start();
  }
  ~WorkerOf() {
    server_->Stop(Duration::zero());
    kv_.Stop();
    store_->Stop();
  }

  const std::string& endpoint() const { return server_->endpoint(); }
  int changes() const { return changes_; }

 private:
  SteadyClock clock_;
  std::atomic<int> changes_{0};
  const OperatorGate gate_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, 4);
  std::unique_ptr<KvCacheManager> cache_ =
      *KvCacheManager::Create(*pool_, clock_, {.model_fingerprint = 1, .kv_format = "bf16"});
  std::unique_ptr<TieredStore> store_ = *TieredStore::Open({}, pool_->view(), {});
  WorkerAdmin admin_{{},
                     gate_,
                     [this](bool) {
                       ++changes_;
                       return absl::OkStatus();
                     },
                     [this](v1::WorkerState::Role, Duration, const auto& done) {
                       ++changes_;
                       done(1);
                     }};
  KvAdmin kv_{{.pool = *pool_,
               .cache = *cache_,
               .store = *store_,
               .operators = gate_,
               .nvme_dir = "",
               .worker_id = ""}};
  std::unique_ptr<RpcServer> server_;
};

template <class Call>
grpc::StatusCode Code(const Call& call) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  return call(context).error_code();
}

class OperatorCalls : public testing::Test {
 protected:
  // The answers to a caller of these roles, in the order drain, turn, log level, flush.
  std::vector<grpc::StatusCode> Change(const WorkerOf& worker, const Roles& caller) {
    const auto channel = certificates_.Channel(worker.endpoint(), caller);
    const auto admin = v1::WorkerAdmin::NewStub(channel);
    const auto kv = v1::KvAdmin::NewStub(channel);
    v1::SetLogLevelRequest level;
    level.set_level("info");
    v1::DrainingSet drained;
    v1::RoleSet turned;
    v1::LogLevelSet set;
    v1::KvFlushed flushed;
    v1::ServerInfo info;
    v1::KvStats stats;
    EXPECT_EQ(Code([&](auto& c) { return admin->Info(&c, {}, &info); }), grpc::StatusCode::OK);
    EXPECT_EQ(Code([&](auto& c) { return kv->Stats(&c, {}, &stats); }), grpc::StatusCode::OK);
    return {Code([&](auto& c) { return admin->SetDraining(&c, {}, &drained); }),
            Code([&](auto& c) { return admin->SetRole(&c, {}, &turned); }),
            Code([&](auto& c) { return admin->SetLogLevel(&c, level, &set); }),
            Code([&](auto& c) { return kv->Flush(&c, {}, &flushed); })};
  }

  RoleCertificates certificates_;
  const std::vector<grpc::StatusCode> may_{4, grpc::StatusCode::OK};
  const std::vector<grpc::StatusCode> may_not_{4, grpc::StatusCode::PERMISSION_DENIED};
};

TEST_F(OperatorCalls, NeedTheRoleWhereRolesAreNamed) {
  const WorkerOf worker(certificates_.Identity({"worker"}));
  for (const Roles& caller : {Roles{"router"}, Roles{"worker"}, Roles{}, Roles{"operators"}}) {
    EXPECT_EQ(Change(worker, caller), may_not_) << testing::PrintToString(caller);
  }
  EXPECT_EQ(worker.changes(), 0);
  for (const Roles& caller : {Roles{"operator"}, Roles{"router", "operator"}}) {
    EXPECT_EQ(Change(worker, caller), may_) << testing::PrintToString(caller);
  }
}

TEST_F(OperatorCalls, AreOpenToMembersWithoutARoleWhereNoneIsNamed) {
  const WorkerOf worker(certificates_.Identity({}));
  EXPECT_EQ(Change(worker, {}), may_);
  EXPECT_EQ(Change(worker, {"operator"}), may_);
  EXPECT_EQ(Change(worker, {"router"}), may_not_) << "a router's certificate drains nobody";
}

}  // namespace
}  // namespace penstock
