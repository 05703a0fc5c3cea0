#include "kvstore/wire/ucx/ucx_links.h"

#include <sys/epoll.h>
#include <ucm/api/ucm.h>
#include <ucp/api/ucp.h>
#include <ucs/debug/debug.h>
#include <ucs/debug/log_def.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <list>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/wire/ucx/ucx_memory.h"

namespace penstock {
namespace {

constexpr unsigned kMessageId = 1;
// Rounds of UCX progress before the loop does other work.
constexpr int kProgressMax = 32;
// The time that Cut waits for UCX to end pending requests; normally it takes less than 1 ms.
constexpr auto kCutTime = std::chrono::milliseconds(50);

std::atomic<int> contexts_open{0};

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return Unavailable("{}: {}", what, ucs_status_string(status));
}

// Redirects UCX's log: UCX writes to standard output, which is reserved for the program's results,
// and logs the ordinary death of a peer as an error. Penstock decides and logs that itself.
ucs_log_func_rc_t RedirectLog(const char*, unsigned, const char*, ucs_log_level_t level,
                              const ucs_log_component_config_t*, const char* format,
                              va_list arguments) {
  if (level > UCS_LOG_LEVEL_WARN) return UCS_LOG_FUNC_RC_STOP;
  char line[512];
  std::vsnprintf(line, sizeof(line), format, arguments);
  // The logger may be destroyed already at process exit.
  if (contexts_open == 0) return UCS_LOG_FUNC_RC_STOP;
  if (level == UCS_LOG_LEVEL_FATAL) {
    LogError("ucx_message_logged", "{}", line);
  } else {
    LogDebug("ucx_message_logged", "{}", line);
  }
  return UCS_LOG_FUNC_RC_STOP;
}

class Link final : public WireLink, public WireLoop::Source {
 public:
  struct Setting {
    ucp_err_handling_mode_t error_mode;
    const TransferDevice* gpu;  // null: host memory only
  };
  Link(WireLoop& loop, Events events, const Setting& setting)
      : loop_(loop),
        events_(std::move(events)),
        error_mode_(setting.error_mode),
        gpu_(setting.gpu) {}
  ~Link() override { Cut(); }

  absl::Status Open(ucp_context_h context);

  const std::string& address() const override { return address_; }
  absl::Status Connect(const std::string& peer) override;
  bool connected() const override { return ep_ != nullptr; }
  void Send(std::span<const std::byte> header, const WirePayload& payload, Done done) override;
  void Receive(const Arrival& arrival, const WireTarget& target, Done done) override;
  void Drop(const Arrival& arrival) override;
  void Cut() override;
  std::string Transport() const override;

  bool Progress() override;
  bool Arm() override;

 private:
  // The context of a UCX request's callback.
  struct Operation {
    Link& link;
    Done done;
    bool to_device = false;  // UCX writes to GPU memory
  };
  using Operations = std::list<std::unique_ptr<Operation>>;
  using PendingEvent = std::function<void()>;

  Operation* NewOperation(Done done);
  static ucp_request_param_t Parameters(Operation* operation);
  static void SetMemoryType(const UcxBuffer& buffer, ucp_request_param_t* param);
  void Started(ucs_status_ptr_t request, Operation* operation);
  void Ended(Operation* operation, void* request, ucs_status_t status);
  void ForceClose();
  void DeliverEvents();

  static ucs_status_t OnMessage(void* self, const void* header, size_t header_size, void* data,
                                size_t size, const ucp_am_recv_param_t* param);
  static void OnError(void* self, ucp_ep_h ep, ucs_status_t status);

  WireLoop& loop_;
  const Events events_;
  const ucp_err_handling_mode_t error_mode_;
  const TransferDevice* const gpu_;
  ucp_worker_h worker_ = nullptr;  // null after Cut
  ucp_ep_h ep_ = nullptr;
  int efd_ = -1;
  std::string address_;
  bool cutting_ = false;
  bool awake_ = true;      // something was posted or signalled since the link was last armed
  Operations operations_;  // not ended by UCX
  std::deque<PendingEvent> pending_events_;
};

absl::Status Link::Open(ucp_context_h context) {
  ucp_worker_params_t params{};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SINGLE;
  RETURN_IF_ERROR(FromUcs(ucp_worker_create(context, &params, &worker_), "ucp_worker_create"));
  loop_.AddSource(this);
  RETURN_IF_ERROR(FromUcs(ucp_worker_get_efd(worker_, &efd_), "ucp_worker_get_efd"));
  // The handler only wakes the loop; Progress does the work.
  RETURN_IF_ERROR(loop_.Watch(efd_, EPOLLIN, [this](uint32_t) { awake_ = true; }));
  ucp_am_handler_param_t handler{};
  handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                       UCP_AM_HANDLER_PARAM_FIELD_ARG;
  handler.id = kMessageId;
  handler.cb = OnMessage;
  handler.arg = this;
  RETURN_IF_ERROR(FromUcs(ucp_worker_set_am_recv_handler(worker_, &handler), "ucp_worker_set_am"));
  ucp_address_t* address = nullptr;
  size_t size = 0;
  RETURN_IF_ERROR(FromUcs(ucp_worker_get_address(worker_, &address, &size), "ucp_worker_address"));
  address_.assign(reinterpret_cast<const char*>(address), size);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

absl::Status Link::Connect(const std::string& peer) {
  PENSTOCK_CHECK(ep_ == nullptr && worker_ != nullptr);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(peer.data());
  params.err_mode = error_mode_;
  params.err_handler = {.cb = OnError, .arg = this};
  awake_ = true;
  return FromUcs(ucp_ep_create(worker_, &params, &ep_), "ucp_ep_create");
}

Link::Operation* Link::NewOperation(Done done) {
  awake_ = true;
  operations_.push_back(std::make_unique<Operation>(Operation{*this, std::move(done)}));
  return operations_.back().get();
}

ucp_request_param_t Link::Parameters(Operation* operation) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.user_data = operation;
  return param;
}

// UCX is told the memory's kind, because it does not detect all memory that CUDA allocates.
void Link::SetMemoryType(const UcxBuffer& buffer, ucp_request_param_t* param) {
  if (buffer.memory_type == UCS_MEMORY_TYPE_HOST) return;
  param->op_attr_mask |= UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param->memory_type = static_cast<ucs_memory_type_t>(buffer.memory_type);
}

// A request that completes immediately makes no callback.
void Link::Started(ucs_status_ptr_t request, Operation* operation) {
  if (!UCS_PTR_IS_PTR(request)) Ended(operation, nullptr, UCS_PTR_STATUS(request));
}

void Link::Ended(Operation* operation, void* request, ucs_status_t status) {
  if (request != nullptr) ucp_request_free(request);
  auto done = std::make_shared<Done>(std::move(operation->done));
  operations_.remove_if([&](const auto& other) { return other.get() == operation; });
  pending_events_.push_back([done, status] { (*done)(FromUcs(status, "ucx")); });
}

void Link::Send(std::span<const std::byte> header, const WirePayload& payload, Done done) {
  PENSTOCK_CHECK_LE(header.size(), kHeaderMax);
  Operation* operation = NewOperation(std::move(done));
  if (ep_ == nullptr) return Ended(operation, nullptr, UCS_ERR_NOT_CONNECTED);
  ucp_request_param_t param = Parameters(operation);
  // By default UCX sends an endpoint's first message eagerly, whatever its size.
  const bool rendezvous = payload.bytes.size() > kEagerMax || payload.memory == MemoryKind::kDevice;
  param.flags = rendezvous ? UCP_AM_SEND_FLAG_RNDV : UCP_AM_SEND_FLAG_EAGER;
  const UcxBuffer buffer = UcxBufferOf(payload.bytes.data(), payload.memory);
  SetMemoryType(buffer, &param);
  param.cb.send = [](void* request, ucs_status_t status, void* data) {
    auto* ended = static_cast<Operation*>(data);
    ended->link.Ended(ended, request, status);
  };
  Started(ucp_am_send_nbx(ep_, kMessageId, header.data(), header.size(), buffer.data,
                          payload.bytes.size(), &param),
          operation);
}

void Link::Receive(const Arrival& arrival, const WireTarget& target, Done done) {
  Operation* operation = NewOperation(std::move(done));
  if (cutting_) return Ended(operation, nullptr, UCS_ERR_CANCELED);
  operation->to_device = target.memory == MemoryKind::kDevice;
  ucp_request_param_t param = Parameters(operation);
  const UcxBuffer buffer = UcxBufferOf(target.data, target.memory);
  SetMemoryType(buffer, &param);
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* data) {
    auto* ended = static_cast<Operation*>(data);
    ended->link.Ended(ended, request, status);
  };
  Started(ucp_am_recv_data_nbx(worker_, reinterpret_cast<void*>(arrival.rendezvous), buffer.data,
                               arrival.size, &param),
          operation);
}

void Link::Drop(const Arrival& arrival) {
  // When the worker is being destroyed, the message is released with it.
  if (cutting_ || arrival.rendezvous == 0) return;
  awake_ = true;
  ucp_am_data_release(worker_, reinterpret_cast<void*>(arrival.rendezvous));
}

void Link::Cut() {
  if (std::exchange(cutting_, true)) return;
  if (worker_ == nullptr) return;
  loop_.RemoveSource(this);
  if (efd_ >= 0) loop_.Unwatch(efd_);
  if (ep_ != nullptr && error_mode_ == UCP_ERR_HANDLING_MODE_PEER) ForceClose();
  ep_ = nullptr;
  ucp_worker_destroy(worker_);
  worker_ = nullptr;
  // UCX no longer touches requests that it has not ended, except copies that the GPU makes for it.
  if (std::any_of(operations_.begin(), operations_.end(),
                  [](const auto& operation) { return operation->to_device; })) {
    gpu_->Quiesce();
  }
  while (!operations_.empty()) Ended(operations_.front().get(), nullptr, UCS_ERR_CANCELED);
  DeliverEvents();
}

void Link::ForceClose() {
  ucp_request_param_t param = Parameters(NewOperation([](const absl::Status&) {}));
  auto* operation = static_cast<Operation*>(param.user_data);
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  param.cb.send = [](void* request, ucs_status_t status, void* data) {
    auto* ended = static_cast<Operation*>(data);
    ended->link.Ended(ended, request, status);
  };
  Started(ucp_ep_close_nbx(std::exchange(ep_, nullptr), &param), operation);
  const auto deadline = std::chrono::steady_clock::now() + kCutTime;
  while (!operations_.empty() && std::chrono::steady_clock::now() < deadline) {
    ucp_worker_progress(worker_);
  }
  if (!operations_.empty()) {
    LogWarning("wire_operations_cancelled",
               "UCX has not ended {} operations of a closed lane; they are cancelled",
               operations_.size());
  }
}

// A sleeping link costs nothing, so thousands of links are cheap.
bool Link::Progress() {
  if (!awake_) return false;
  bool worked = false;
  for (int i = 0; i < kProgressMax && ucp_worker_progress(worker_) != 0; ++i) worked = true;
  if (pending_events_.empty()) return worked;
  DeliverEvents();
  return true;
}

bool Link::Arm() {
  if (!awake_) return true;
  if (!pending_events_.empty() || ucp_worker_arm(worker_) != UCS_OK) return false;
  awake_ = false;
  return true;
}

void Link::DeliverEvents() {
  // One at a time: a callback may cut the link, which delivers the other events from within.
  while (!pending_events_.empty()) {
    const PendingEvent event = std::move(pending_events_.front());
    pending_events_.pop_front();
    event();
  }
}

// The transports are read from UCX's description of the endpoint: "#  lane[0]:  1:tcp/lo.0 md[1] ->
// ...".
std::string Link::Transport() const {
  char* text = nullptr;
  size_t size = 0;
  std::FILE* file = ep_ == nullptr ? nullptr : open_memstream(&text, &size);
  if (file == nullptr) return "ucx";
  ucp_ep_print_info(ep_, file);
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

ucs_status_t Link::OnMessage(void* self, const void* header, size_t header_size, void* data,
                             size_t size, const ucp_am_recv_param_t* param) {
  auto& link = *static_cast<Link*>(self);
  const bool rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  if (link.cutting_ || header_size > kHeaderMax || (!rendezvous && size > kEagerMax)) {
    if (!link.cutting_) {
      link.pending_events_.push_back([&link] {
        link.events_.on_failed(Unavailable("received a UCX message that is not a wire packet"));
      });
    }
    return UCS_OK;  // The message is dropped.
  }
  auto arrival = std::make_shared<Arrival>();
  arrival->size = size;
  const auto* head = static_cast<const std::byte*>(header);
  const auto* body = static_cast<const std::byte*>(data);
  arrival->header.assign(head, head + header_size);
  if (!rendezvous) arrival->eager.assign(body, body + size);
  if (rendezvous) arrival->rendezvous = reinterpret_cast<uintptr_t>(data);
  link.pending_events_.push_back([&link, arrival] {
    if (link.cutting_) return;
    link.events_.on_arrival(std::move(*arrival));
  });
  return rendezvous ? UCS_INPROGRESS : UCS_OK;
}

void Link::OnError(void* self, ucp_ep_h, ucs_status_t status) {
  auto& link = *static_cast<Link*>(self);
  link.pending_events_.push_back([&link, status] {
    if (!link.cutting_) link.events_.on_failed(FromUcs(status, "ucx"));
  });
}

// UCX, configured for links between hosts.
class Context final : public WireLinks {
 public:
  Context() { ++contexts_open; }
  ~Context() override {
    if (context_ != nullptr) ucp_cleanup(context_);
    --contexts_open;
  }

  absl::Status Open(const std::string& device, std::shared_ptr<const TransferDevice> gpu);
  bool TakesDeviceMemory() const override { return gpu_ != nullptr; }
  absl::StatusOr<std::unique_ptr<WireLink>> NewLink(Args args) override {
    auto link = std::make_unique<Link>(args.loop, std::move(args.events),
                                       Link::Setting{.error_mode = error_mode_, .gpu = gpu_.get()});
    RETURN_IF_ERROR(link->Open(context_));
    return link;
  }

 private:
  ucp_context_h context_ = nullptr;
  // UCX's guarantees about dead peers halve the rate over TCP, where they forbid writing directly
  // into the receiver's memory. Over TCP they are not needed: the handshake socket reports the
  // death, and destroying the worker closes its sockets, after which nothing arrives.
  ucp_err_handling_mode_t error_mode_ = UCP_ERR_HANDLING_MODE_NONE;
  std::shared_ptr<const TransferDevice> gpu_;  // null: this UCX cannot access its memory
};

absl::Status Context::Open(const std::string& device, std::shared_ptr<const TransferDevice> gpu) {
  if (gpu != nullptr) gpu->Select();  // UCX takes the thread's current device.
  ucp_config_t* config = nullptr;
  RETURN_IF_ERROR(FromUcs(ucp_config_read(nullptr, nullptr, &config), "ucp_config_read"));
  // The environment, which ucp_config_read has applied, takes precedence.
  if (std::getenv("UCX_TLS") == nullptr) {
    // UCX's shared memory is not used: it does not survive the death of a peer.
    ucp_config_modify(config, "TLS", gpu == nullptr ? "tcp" : "tcp,cuda_copy");
  } else {
    error_mode_ = UCP_ERR_HANDLING_MODE_PEER;  // UCX_TLS may name RDMA, which needs the guarantees.
  }
  if (std::getenv("UCX_NET_DEVICES") == nullptr && !device.empty()) {
    ucp_config_modify(config, "NET_DEVICES", device.c_str());
  }
  ucp_params_t params{};
  params.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_NAME;
  params.features = UCP_FEATURE_AM | UCP_FEATURE_WAKEUP;
  params.name = "penstock";
  const ucs_status_t status = ucp_init(&params, config, &context_);
  ucp_config_release(config);
  RETURN_IF_ERROR(FromUcs(status, "ucp_init"));
  if (gpu != nullptr && UcxReachesDevices(context_)) gpu_ = std::move(gpu);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<WireLinks>> OpenUcxLinks(const std::string& device,
                                                        std::shared_ptr<const TransferDevice> gpu) {
  DisableUcxSideEffects();
  auto context = std::make_unique<Context>();
  RETURN_IF_ERROR(context->Open(device, std::move(gpu)));
  return context;
}

void DisableUcxSideEffects() {
  static std::once_flag once;
  std::call_once(once, [] {
    for (int signal : {SIGILL, SIGSEGV, SIGBUS, SIGFPE}) ucs_debug_disable_signal(signal);
    ucm_global_config_t memory = ucm_global_opts;
    memory.enable_events = 0;
    ucm_set_global_opts(&memory);
    ucs_log_push_handler(RedirectLog);
  });
}

std::string ChosenUcxTransports() {
  const char* chosen = std::getenv("UCX_TLS");
  return chosen == nullptr ? "" : chosen;
}

}  // namespace penstock
