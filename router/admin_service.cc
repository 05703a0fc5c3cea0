#include "router/admin_service.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <string>
#include <utility>

#include "base/log/log.h"
#include "base/rpc/rpc_server.h"
#include "proto/admin.grpc.pb.h"
#include "proto/kv_admin.grpc.pb.h"
#include "proto/names.h"
#include "proto/worker.grpc.pb.h"

namespace penstock {
namespace {

constexpr std::chrono::seconds kWorkerTimeout{10};  // for calls that a worker answers at once
constexpr size_t kRowsMax = 4096;

// The context of a call to a worker that is cancelled when the operator's call ends.
std::unique_ptr<grpc::ClientContext> ChildOf(grpc::ServerContext& context) {
  return grpc::ClientContext::FromServerContext(context);
}

std::unique_ptr<grpc::ClientContext> QuickChildOf(grpc::ServerContext& context) {
  auto child = ChildOf(context);
  const auto limit = std::chrono::system_clock::now() + kWorkerTimeout;
  child->set_deadline(std::min(context.deadline(), limit));
  return child;
}

grpc::Status Named(const std::string& worker, const grpc::Status& status) {
  return status.ok() ? status
                     : grpc::Status(status.error_code(), worker + ": " + status.error_message());
}

bool Empty(const v1::WorkerState& state) {
  return state.running() == 0 && state.waiting() == 0 && state.handoffs() == 0;
}

class AdminService final : public v1::Admin::Service {
 public:
  explicit AdminService(AdminServiceArgs args) : args_(std::move(args)) {}

  grpc::Status Info(grpc::ServerContext* context, const v1::InfoRequest* request,
                    v1::ServerInfo* info) override {
    if (request->worker().empty()) {
      DescribeProcess(args_.process, info);
      return grpc::Status::OK;
    }
    return CallWorker<v1::WorkerAdmin>(request->worker(), [&](v1::WorkerAdmin::Stub& stub) {
      return stub.Info(QuickChildOf(*context).get(), {}, info);
    });
  }

  grpc::Status Workers(grpc::ServerContext*, const v1::WorkersRequest*, v1::Fleet* fleet) override {
    for (WorkerPicture& picture : args_.table.Pictures(kRowsMax)) {
      v1::WorkerRow* row = fleet->add_workers();
      row->set_endpoint(picture.endpoint);
      row->set_status(picture.status);
      row->set_requests(picture.requests);
      row->mutable_state()->Swap(&picture.state);
    }
    for (const TransferStats::Link& link : args_.table.transfers().Latest(kRowsMax)) {
      v1::FleetLink* row = fleet->add_links();
      row->set_from(link.from);
      row->set_to(link.to);
      row->set_transport(link.transport);
      row->set_open(link.open);
      row->set_done(link.done);
      row->set_bytes(link.bytes);
    }
    if (args_.roles != nullptr) *fleet->mutable_role_advice() = args_.roles->Latest();
    if (args_.scaling != nullptr) *fleet->mutable_scale_advice() = args_.scaling->Latest();
    return grpc::Status::OK;
  }

  grpc::Status Cluster(grpc::ServerContext*, const v1::ClusterRequest*,
                       v1::ClusterPicture* picture) override {
    picture->set_json(args_.picture());
    return grpc::Status::OK;
  }

  grpc::Status WatchBlocks(grpc::ServerContext* context,
                           const v1::WatchWorkerBlocksRequest* request,
                           grpc::ServerWriter<v1::BlockEvents>* writer) override {
    const Stream stream(streams_);
    if (!stream.admitted()) return TooMany();
    return CallWorker<v1::WorkerStatus>(request->worker(), [&](v1::WorkerStatus::Stub& stub) {
      const auto child = ChildOf(*context);
      const auto reader = stub.WatchBlocks(child.get(), {});
      v1::BlockEvents events;
      // Reads the next batch after the previous one is written: flow control reaches the worker.
      while (reader->Read(&events)) {
        if (!writer->Write(events)) child->TryCancel();
      }
      return reader->Finish();
    });
  }

  grpc::Status Drain(grpc::ServerContext* context, const v1::DrainRequest* request,
                     grpc::ServerWriter<v1::WorkerState>* writer) override {
    if (grpc::Status may = May(*context); !may.ok()) return may;
    const Stream stream(streams_);
    if (!stream.admitted()) return TooMany();
    const bool drain = !request->resume();
    v1::SetDrainingRequest wanted;
    wanted.set_draining(drain);
    grpc::Status set =
        CallWorker<v1::WorkerAdmin>(request->worker(), [&](v1::WorkerAdmin::Stub& stub) {
          v1::DrainingSet unused;
          return stub.SetDraining(QuickChildOf(*context).get(), wanted, &unused);
        });
    if (!set.ok()) return set;
    Log(LogLevel::kInfo, "worker_commanded",
        {{"worker", request->worker()}, {"message", drain ? "drain" : "resume"}});
    return CallWorker<v1::WorkerStatus>(request->worker(), [&](v1::WorkerStatus::Stub& stub) {
      return StreamDrain(*context, stub, drain, *writer);
    });
  }

  grpc::Status SetRole(grpc::ServerContext* context, const v1::SetRoleRequest* request,
                       grpc::ServerWriter<v1::WorkerState>* writer) override {
    if (grpc::Status may = May(*context); !may.ok()) return may;
    const Stream stream(streams_);
    if (!stream.admitted()) return TooMany();
    if (!request->force()) {
      const absl::Status others = args_.table.CheckOthers(request->worker(), request->role());
      if (!others.ok()) return ToGrpcStatus(others);
    }
    const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel =
        args_.table.ChannelTo(request->worker());
    if (!channel.ok()) return ToGrpcStatus(channel.status());
    Log(LogLevel::kInfo, "worker_commanded",
        {{"worker", request->worker()},
         {"message", "change role"},
         {"to", RoleName(request->role())}});
    return Named(request->worker(), StreamRoleChange(*context, *channel, *request, *writer));
  }

  grpc::Status Flush(grpc::ServerContext* context, const v1::FlushRequest* request,
                     v1::KvFlushed* flushed) override {
    if (grpc::Status may = May(*context); !may.ok()) return may;
    return CallWorker<v1::KvAdmin>(request->worker(), [&](v1::KvAdmin::Stub& stub) {
      return stub.Flush(QuickChildOf(*context).get(), {}, flushed);
    });
  }

  grpc::Status SetLogLevel(grpc::ServerContext* context, const v1::SetLogLevelRequest* request,
                           v1::LogLevelSet* set) override {
    if (grpc::Status may = May(*context); !may.ok()) return may;
    if (!request->worker().empty()) {
      return CallWorker<v1::WorkerAdmin>(request->worker(), [&](v1::WorkerAdmin::Stub& stub) {
        return stub.SetLogLevel(QuickChildOf(*context).get(), *request, set);
      });
    }
    const absl::StatusOr<std::string> before = ChangeLogLevel(request->level());
    if (before.ok()) set->set_before(*before);
    return ToGrpcStatus(before.status());
  }

 private:
  // Counts one open stream.
  class Stream {
   public:
    explicit Stream(std::atomic<int>& open)
        : open_(open), admitted_(open.fetch_add(1) < kAdminStreamsMax) {}
    ~Stream() { --open_; }
    Stream(const Stream&) = delete;
    Stream& operator=(const Stream&) = delete;
    bool admitted() const { return admitted_; }

   private:
    std::atomic<int>& open_;
    const bool admitted_;
  };
  // Checks the caller of a call that changes a process.
  grpc::Status May(const grpc::ServerContext& context) const {
    return ToGrpcStatus(args_.operators.Check(context));
  }

  static grpc::Status TooMany() {
    return ToGrpcStatus(ResourceExhausted("{} streams are open, the limit; end one and try again",
                                          kAdminStreamsMax));
  }

  // Calls `ask` with a stub of the worker. NOT_FOUND names the known workers.
  template <class Service, class Ask>
  grpc::Status CallWorker(const std::string& worker, const Ask& ask) const {
    const absl::StatusOr<std::shared_ptr<grpc::Channel>> channel = args_.table.ChannelTo(worker);
    if (!channel.ok()) return ToGrpcStatus(channel.status());
    return Named(worker, ask(*Service::NewStub(*channel)));
  }

  // Streams the worker's state until the drain is complete: nothing open in two consecutive states.
  // One state is not enough: other routers may have placed requests before they saw the drain.
  static grpc::Status StreamDrain(grpc::ServerContext& context, v1::WorkerStatus::Stub& stub,
                                  bool drain, grpc::ServerWriter<v1::WorkerState>& writer) {
    const auto child = ChildOf(context);
    const auto reader = stub.Watch(child.get(), {});
    v1::WorkerState state;
    int empty = 0;
    bool done = false;
    while (reader->Read(&state)) {
      if (done) continue;
      const bool out = state.phase() == v1::WorkerState::DRAINING;
      empty = out && Empty(state) ? empty + 1 : 0;
      done = drain ? empty >= 2 : state.phase() == v1::WorkerState::READY;
      const bool heard = writer.Write(state);
      if (done || !heard) child->TryCancel();
    }
    const grpc::Status ended = reader->Finish();
    if (done) return grpc::Status::OK;
    return ended.ok() ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "the worker has stopped")
                      : ended;
  }

  // Streams the worker's state until its SetRole call returns.
  static grpc::Status StreamRoleChange(grpc::ServerContext& context,
                                       const std::shared_ptr<grpc::Channel>& channel,
                                       const v1::SetRoleRequest& request,
                                       grpc::ServerWriter<v1::WorkerState>& writer) {
    const auto watching = ChildOf(context);
    const auto states = v1::WorkerStatus::NewStub(channel)->Watch(watching.get(), {});
    const auto turning = ChildOf(context);
    const auto worker = v1::WorkerAdmin::NewStub(channel);
    v1::RoleSet set;
    // Shared with the callback, which may still run when the future is ready.
    const auto answered = std::make_shared<std::promise<grpc::Status>>();
    worker->async()->SetRole(turning.get(), &request, &set,
                             [&watching = *watching, answered](const grpc::Status& status) {
                               watching.TryCancel();
                               answered->set_value(status);
                             });
    v1::WorkerState state;
    while (states->Read(&state)) {
      if (!writer.Write(state)) watching->TryCancel();
    }
    states->Finish();
    return answered->get_future().get();
  }

  const AdminServiceArgs args_;
  std::atomic<int> streams_{0};
};

}  // namespace

std::unique_ptr<grpc::Service> MakeAdminService(AdminServiceArgs args) {
  return std::make_unique<AdminService>(std::move(args));
}

}  // namespace penstock
