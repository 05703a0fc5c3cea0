#include "router/fleet/watch_link.h"

#include <grpcpp/create_channel.h>
#include <grpcpp/security/credentials.h>

#include "base/log/log.h"

namespace penstock {
namespace {

constexpr Duration kMaxStateBackoff = std::chrono::seconds(1);
constexpr Duration kMaxEventsBackoff = std::chrono::seconds(10);
constexpr int kMaxWorkerMessageBytes = 16 << 20;

std::shared_ptr<grpc::Channel> MakeWorkerChannel(
    const std::string& endpoint, const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS,
                   1000);  // also the limit of one connection attempt
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
  // A half-open connection is detected after 4 s. Workers send a state each second, so gRPC's limit
  // on pings without data is not reached.
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 2000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 2000);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);  // sessions retry themselves
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetMaxReceiveMessageSize(kMaxWorkerMessageBytes);
  return grpc::CreateCustomChannel(endpoint, credentials, arguments);
}

}  // namespace

WatchLink::WatchLink(std::string endpoint,
                     const std::shared_ptr<grpc::ChannelCredentials>& credentials,
                     std::shared_ptr<WorkerTable> table, const std::function<void()>& on_change)
    : endpoint_(std::move(endpoint)),
      table_(std::move(table)),
      channel_(MakeWorkerChannel(endpoint_, credentials)),
      sessions_(std::make_shared<DecodeLink>(channel_)),
      stub_(v1::WorkerStatus::NewStub(channel_)) {
  table_->Add(endpoint_, channel_, sessions_);
  states_.emplace(StatesArgs(on_change));
  if (const std::optional<uint32_t> index = table_->IndexOf(endpoint_)) {
    events_.emplace(EventsArgs(*index));
  }
}

WatchLink::~WatchLink() {
  Drop();
  events_.reset();
  states_.reset();
  table_->Remove(endpoint_);
}

ReopeningStream<v1::WorkerState>::Args WatchLink::StatesArgs(
    const std::function<void()>& on_change) {
  return {
      .backoff_max = kMaxStateBackoff,
      .on_open = [table = table_, endpoint = endpoint_] { table->OnWatchStarted(endpoint); },
      // gRPC serializes the request during this call to the stub.
      .call = [stub = stub_, request = v1::WatchRequest()](
                  auto* context, auto* reader) { stub->async()->Watch(context, &request, reader); },
      .on_message =
          [table = table_, endpoint = endpoint_, on_change](const v1::WorkerState& state) {
            table->OnState(endpoint, state);
            on_change();
            return true;
          },
      .on_end =
          [table = table_, endpoint = endpoint_, on_change](const grpc::Status& status) {
            table->OnWatchEnded(endpoint,
                                status.ok() ? "the worker closed it" : status.error_message());
            on_change();
          }};
}

ReopeningStream<v1::BlockEvents>::Args WatchLink::EventsArgs(uint32_t index) {
  return {.backoff_max = kMaxEventsBackoff,
          .on_open = [table = table_, index] { table->prefixes().OnStreamStarted(index); },
          .call = [stub = stub_, request = v1::WatchBlocksRequest()](
                      auto* context,
                      auto* reader) { stub->async()->WatchBlocks(context, &request, reader); },
          .on_message =
              [table = table_, endpoint = endpoint_, index](const v1::BlockEvents& events) {
                const absl::Status status = table->prefixes().OnEvents(index, events);
                if (status.ok()) return true;
                Log(LogLevel::kWarning, "kv_events_reread",
                    {{"worker", endpoint}, {"error", Message(status)}});  // the stream reopens
                return false;
              },
          .on_end = [table = table_,
                     index](const grpc::Status&) { table->prefixes().OnStreamEnded(index); }};
}

void WatchLink::Tick(TimePoint now) {
  if (events_) events_->Tick(now);
  states_->Tick(now);
}

void WatchLink::Drop() { states_->Cancel(); }

void WatchLink::Close() {
  Drop();
  sessions_->Close();
}

}  // namespace penstock
