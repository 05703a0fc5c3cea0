#include <sys/epoll.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <atomic>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "kvstore/wire_ucx_worker.h"

namespace penstock {
namespace {

constexpr unsigned kMessageId = 1;
constexpr size_t kHeaderMax = 128;
constexpr size_t kEndpointsMax = 1024;
// Before the loop's other work has its turn.
constexpr int kProgressMax = 32;

std::atomic<int> workers_open{0};

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return Unavailable("{}: {}", what, ucs_status_string(status));
}

// UCX writes to standard output, which belongs to the program's results, and calls errors what is
// the daily death of a peer: we decide and log that ourselves.
ucs_log_func_rc_t TakeLog(const char*, unsigned, const char*, ucs_log_level_t level,
                          const ucs_log_component_config_t*, const char* format,
                          va_list arguments) {
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_STOP;
  char line[512];
  std::vsnprintf(line, sizeof(line), format, arguments);
  if (workers_open == 0) return UCS_LOG_FUNC_RC_STOP;  // The process may be past its end.
  if (level == UCS_LOG_LEVEL_FATAL) {
    LogError("ucx: {}", line);
  } else {
    LogDebug("ucx: {}", line);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

// UCX takes over signals and patches the process's memory calls when it is loaded. We want neither.
void TameProcess() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    ucm_global_config_t memory = ucm_global_opts;
    memory.enable_events = 0;
    ucm_set_global_opts(&memory);
    ucs_log_push_handler(TakeLog);
  });
}

class Worker final : public UcxWorker, public WireLoop::Source {
 public:
  explicit Worker(const Args& args) : loop_(args.loop), events_(args.events) { ++workers_open; }
  ~Worker() override;

  absl::Status Start(const Args& args);

  int port() const override { return port_; }
  absl::StatusOr<Endpoint> Connect(const SocketEndpoint& peer) override;
  void Send(Endpoint to, std::span<const std::byte> header, std::span<const std::byte> payload,
            Done done) override;
  void Receive(const Arrival& arrival, std::byte* target, Done done) override;
  void Drop(const Arrival& arrival) override { ucp_am_data_release(worker_, arrival.rendezvous); }
  void Close(Endpoint endpoint, std::function<void()> done) override;
  std::string Transport(Endpoint endpoint) const override;

  bool Progress() override;
  bool Arm() override { return deferred_.empty() && ucp_worker_arm(worker_) == UCS_OK; }

 private:
  // What a UCX request calls back with.
  struct Operation {
    Worker& worker;
    Done done;
  };

  absl::Status OpenContext(const Args& args);
  absl::Status OpenWorker();
  absl::Status Listen(const SocketEndpoint& listen);
  absl::StatusOr<Endpoint> CreateEndpoint(ucp_ep_params_t params);
  void Accept(ucp_conn_request_h request);
  ucp_request_param_t Parameters(Operation* operation) const;
  void Started(ucs_status_ptr_t request, Operation* operation);
  void Complete(Operation* operation, void* request, ucs_status_t status);
  void Defer(std::function<void()> task) { deferred_.push_back(std::move(task)); }

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_size, void* data,
                                size_t size, const ucp_am_recv_param_t* param);
  static void OnConnection(ucp_conn_request_h request, void* self);
  static void OnError(void* self, ucp_ep_h ep, ucs_status_t status);

  WireLoop& loop_;
  const Events events_;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  ucp_listener_h listener_ = nullptr;
  int efd_ = -1;
  int port_ = 0;
  Endpoint next_ = 1;
  std::unordered_map<Endpoint, ucp_ep_h> endpoints_;
  std::unordered_map<ucp_ep_h, Endpoint> names_;
  size_t operations_ = 0;
  bool accepting_ = true;
  std::vector<std::function<void()>> deferred_;
};

absl::Status Worker::Start(const Args& args) {
  RETURN_IF_ERROR(OpenContext(args));
  RETURN_IF_ERROR(OpenWorker());
  RETURN_IF_ERROR(Listen(args.listen));
  loop_.AddSource(this);
  return loop_.Watch(efd_, EPOLLIN, [](uint32_t) {});  // Waking is all: Progress does the work.
}

Worker::~Worker() {
  PENSTOCK_CHECK_EQ(endpoints_.size(), 0u);
  PENSTOCK_CHECK_EQ(operations_, 0u);
  accepting_ = false;
  for (auto& task : std::exchange(deferred_, {})) task();  // Requests and messages nobody wants.
  loop_.RemoveSource(this);
  if (efd_ >= 0) loop_.Unwatch(efd_);
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
  if (worker_ != nullptr) ucp_worker_destroy(worker_);
  if (context_ != nullptr) ucp_cleanup(context_);
  --workers_open;
}

absl::Status Worker::OpenContext(const Args& args) {
  ucp_config_t* config = nullptr;
  RETURN_IF_ERROR(FromUcs(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read"));
  // The environment, which ucp_config_read has taken, wins.
  if (std::getenv("UCX_TLS") == nullptr) {
    // No shared memory: it does not survive the death of a peer.
    ucp_config_modify(config, "TLS", args.tcp_only ? "tcp" : "tcp,ib");
  }
  if (std::getenv("UCX_NET_DEVICES") == nullptr && !args.device.empty()) {
    ucp_config_modify(config, "NET_DEVICES", args.device.c_str());
  }
  // A restarted process gets its port back although old connections linger in the kernel.
  ucp_config_modify(config, "TCP_CM_REUSEADDR", "y");
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "penstock";
  const ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  return FromUcs(status, "ucp_init");
}

absl::Status Worker::OpenWorker() {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  RETURN_IF_ERROR(FromUcs(ucp_worker_create(context_, &params, &worker_), "ucp_worker_create"));
  RETURN_IF_ERROR(FromUcs(ucp_worker_get_efd(worker_, &efd_), "ucp_worker_get_efd"));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = OnMessage;
  handler.arg = this;
  return FromUcs(ucp_worker_set_am_recv_handler(worker_, &handler),
                 "ucp_worker_set_am_recv_handler");
}

absl::Status Worker::Listen(const SocketEndpoint& listen) {
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = {.addr = listen.get(), .addrlen = listen.size};
  params.conn_handler = {.cb = OnConnection, .arg = this};
  RETURN_IF_ERROR(FromUcs(ucp_listener_create(worker_, &params, &listener_),
                          fmt::format("cannot listen on {}", listen.Text())));
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  RETURN_IF_ERROR(FromUcs(ucp_listener_query(listener_, &attributes), "ucp_listener_query"));
  SocketEndpoint bound;
  bound.address = attributes.sockaddr;
  port_ = bound.port();
  return absl::OkStatus();
}

absl::StatusOr<UcxWorker::Endpoint> Worker::CreateEndpoint(ucp_ep_params_t params) {
  params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {.cb = OnError, .arg = this};
  ucp_ep_h ep = nullptr;
  RETURN_IF_ERROR(FromUcs(ucp_ep_create(worker_, &params, &ep), "ucp_ep_create"));
  const Endpoint name = next_++;
  endpoints_[name] = ep;
  names_[ep] = name;
  return name;
}

absl::StatusOr<UcxWorker::Endpoint> Worker::Connect(const SocketEndpoint& peer) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = {.addr = peer.get(), .addrlen = peer.size};
  return CreateEndpoint(params);
}

void Worker::Accept(ucp_conn_request_h request) {
  if (!accepting_ || endpoints_.size() >= kEndpointsMax) {
    ucp_listener_reject(listener_, request);
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST;
  params.conn_request = request;
  const auto endpoint = CreateEndpoint(params);
  if (endpoint.ok()) events_.on_accepted(*endpoint);
}

ucp_request_param_t Worker::Parameters(Operation* operation) const {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.user_data = operation;
  return param;
}

// A request that was over at once calls nothing back.
void Worker::Started(ucs_status_ptr_t request, Operation* operation) {
  ++operations_;
  if (!UCS_PTR_IS_PTR(request)) Complete(operation, nullptr, UCS_PTR_STATUS(request));
}

void Worker::Complete(Operation* operation, void* request, ucs_status_t status) {
  if (request != nullptr) ucp_request_free(request);
  Defer([this, operation, status] {
    --operations_;
    const std::unique_ptr<Operation> owned(operation);
    owned->done(FromUcs(status, "ucx"));
  });
}

void Worker::Send(Endpoint to, std::span<const std::byte> header,
                  std::span<const std::byte> payload, Done done) {
  PENSTOCK_CHECK_LE(header.size(), kHeaderMax);
  auto* operation = new Operation{*this, std::move(done)};
  ucp_request_param_t param = Parameters(operation);
  // Left alone, UCX sends the first message of an endpoint eagerly, whatever its size.
  param.flags = UCP_AM_SEND_FLAG_REPLY |
                (payload.size() > kEagerMax ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER);
  param.cb.send = [](void* request, ucs_status_t status, void* data) {
    auto* ended = static_cast<Operation*>(data);
    ended->worker.Complete(ended, request, status);
  };
  Started(ucp_am_send_nbx(endpoints_.at(to), kMessageId, header.data(), header.size(),
                          payload.data(), payload.size(), &param),
          operation);
}

void Worker::Receive(const Arrival& arrival, std::byte* target, Done done) {
  auto* operation = new Operation{*this, std::move(done)};
  ucp_request_param_t param = Parameters(operation);
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* data) {
    auto* ended = static_cast<Operation*>(data);
    ended->worker.Complete(ended, request, status);
  };
  Started(ucp_am_recv_data_nbx(worker_, arrival.rendezvous, target, arrival.size, &param),
          operation);
}

void Worker::Close(Endpoint endpoint, std::function<void()> done) {
  const ucp_ep_h ep = endpoints_.at(endpoint);
  endpoints_.erase(endpoint);
  names_.erase(ep);
  auto* operation = new Operation{*this, [done = std::move(done)](const absl::Status&) { done(); }};
  ucp_request_param_t param = Parameters(operation);
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = [](void* request, ucs_status_t status, void* data) {
    auto* ended = static_cast<Operation*>(data);
    ended->worker.Complete(ended, request, status);
  };
  Started(ucp_ep_close_nbx(ep, &param), operation);
}

bool Worker::Progress() {
  bool worked = false;
  for (int i = 0; i < kProgressMax && ucp_worker_progress(worker_) != 0; ++i) worked = true;
  if (deferred_.empty()) return worked;
  for (auto& task : std::exchange(deferred_, {})) task();
  return true;
}

// The lanes' names stand in UCX's own description: "#  lane[0]:  1:tcp/lo.0 md[1] -> ...".
std::string Worker::Transport(Endpoint endpoint) const {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = open_memstream(&text, &size);
  if (file == nullptr) return "ucx";
  ucp_ep_print_info(endpoints_.at(endpoint), file);
  std::fclose(file);
  const std::string_view info(text, size);
  std::set<std::string> names;
  for (size_t at = info.find("lane["); at != info.npos; at = info.find("lane[", at + 1)) {
    const size_t slash = info.find('/', at);
    const size_t colon = slash == info.npos ? info.npos : info.rfind(':', slash);
    if (colon != info.npos && colon > at) names.emplace(info.substr(colon + 1, slash - colon - 1));
  }
  std::free(text);
  return names.empty() ? "ucx" : fmt::format("{}", fmt::join(names, "+"));
}

ucs_status_t Worker::OnMessage(void* self, const void* header, size_t header_size, void* data,
                               size_t size, const ucp_am_recv_param_t* param) {
  auto& worker = *static_cast<Worker*>(self);
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) == 0) return UCS_OK;
  const auto found = worker.names_.find(param->reply_ep);
  if (found == worker.names_.end()) return UCS_OK;  // Closed meanwhile: dropped.
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool too_large = header_size > kHeaderMax || (!rendezvous && size > kEagerMax);
  Arrival arrival;
  arrival.from = found->second;
  arrival.size = size;
  if (!too_large) {
    const auto* head = static_cast<const std::byte*>(header);
    const auto* body = static_cast<const std::byte*>(data);
    arrival.header.assign(head, head + header_size);
    if (!rendezvous) arrival.eager.assign(body, body + size);
  }
  // An empty header is refused as malformed by whoever reads it.
  if (rendezvous) arrival.rendezvous = data;
  worker.Defer([&worker, arrival = std::move(arrival)]() mutable {
    if (worker.endpoints_.contains(arrival.from)) {
      worker.events_.on_arrival(std::move(arrival));
    } else if (arrival.rendezvous != nullptr) {
      worker.Drop(arrival);
    }
  });
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void Worker::OnConnection(ucp_conn_request_h request, void* self) {
  auto& worker = *static_cast<Worker*>(self);
  worker.Defer([&worker, request] { worker.Accept(request); });
}

void Worker::OnError(void* self, ucp_ep_h ep, ucs_status_t status) {
  auto& worker = *static_cast<Worker*>(self);
  const auto found = worker.names_.find(ep);
  if (found == worker.names_.end()) return;
  worker.Defer([&worker, endpoint = found->second, status] {
    if (!worker.endpoints_.contains(endpoint)) return;
    worker.events_.on_failed(endpoint, FromUcs(status, "ucx"));
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Open(const Args& args) {
  TameProcess();
  auto worker = std::make_unique<Worker>(args);
  RETURN_IF_ERROR(worker->Start(args));
  return worker;
}

}  // namespace penstock
