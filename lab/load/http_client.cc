#include "lab/load/http_client.h"

#include <curl/curl.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>

#include "base/check.h"
#include "base/clock.h"
#include "http/event_loop.h"

namespace penstock {
namespace {

constexpr long kConnectTimeoutMs = 5000;  // of the first connection
constexpr long kConnectionsMax = 1 << 20;

using Easy = std::unique_ptr<CURL, decltype(&curl_easy_cleanup)>;
using List = std::unique_ptr<curl_slist, decltype(&curl_slist_free_all)>;

List ListOf(const std::vector<std::string>& lines) {
  List list(nullptr, curl_slist_free_all);
  for (const std::string& line : lines) {
    curl_slist* longer = curl_slist_append(list.get(), line.c_str());
    PENSTOCK_CHECK(longer != nullptr);
    (void)list.release();
    list.reset(longer);
  }
  return list;
}

// The host and the one of its addresses that accepted the first connection.
struct Server {
  std::string origin;   // "http://host:port"
  std::string resolve;  // "host:port:address", as CURLOPT_RESOLVE takes it
};

std::string Bracketed(const std::string& host) {
  return host.find(':') == std::string::npos ? host : "[" + host + "]";
}

void SetCommon(CURL* easy) {
  curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(easy, CURLOPT_PROXY, "");  // The measured server is the one that was named.
  curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
}

absl::StatusOr<Server> FindServer(const std::string& host, uint16_t port) {
  const std::string name = fmt::format("{}:{}", Bracketed(host), port);
  const Easy easy(curl_easy_init(), curl_easy_cleanup);
  PENSTOCK_CHECK(easy != nullptr);
  Server server{.origin = "http://" + name};
  SetCommon(easy.get());
  curl_easy_setopt(easy.get(), CURLOPT_URL, server.origin.c_str());
  curl_easy_setopt(easy.get(), CURLOPT_CONNECT_ONLY, 1L);
  curl_easy_setopt(easy.get(), CURLOPT_CONNECTTIMEOUT_MS, kConnectTimeoutMs);
  const CURLcode code = curl_easy_perform(easy.get());
  if (code != CURLE_OK) {
    long error = 0;
    curl_easy_getinfo(easy.get(), CURLINFO_OS_ERRNO, &error);
    return Unavailable("no server answers at {}: {}", name,
                       error != 0 ? strerror(static_cast<int>(error)) : curl_easy_strerror(code));
  }
  const char* address = nullptr;
  curl_easy_getinfo(easy.get(), CURLINFO_PRIMARY_IP, &address);
  if (host.find(':') == std::string::npos && address != nullptr) {
    server.resolve = fmt::format("{}:{}", name, Bracketed(address));
  }
  return server;
}

// One request under way. Its address is that of the callbacks, so it does not move.
struct Transfer {
  HttpCall call;
  std::shared_ptr<HttpExchange> exchange;
  Easy easy{curl_easy_init(), curl_easy_cleanup};
  List headers{nullptr, curl_slist_free_all};
  HttpReply reply = {};

  void ReadHead() {
    long status = 0;
    const char* type = nullptr;
    curl_easy_getinfo(easy.get(), CURLINFO_RESPONSE_CODE, &status);
    curl_easy_getinfo(easy.get(), CURLINFO_CONTENT_TYPE, &type);
    reply = {.status = static_cast<int>(status), .content_type = type == nullptr ? "" : type};
  }
};

size_t TakeBody(char* bytes, size_t size, size_t count, void* context) {
  Transfer& transfer = *static_cast<Transfer*>(context);
  if (transfer.reply.status == 0) transfer.ReadHead();
  transfer.exchange->OnBody(transfer.reply, {bytes, size * count}, SteadyClock().Now());
  return size * count;
}

absl::Status StatusOf(CURLcode code, CURL* easy) {
  switch (code) {
    case CURLE_OK:
      return absl::OkStatus();
    case CURLE_OPERATION_TIMEDOUT:
      return DeadlineExceeded("no end within the time limit");
    case CURLE_COULDNT_CONNECT: {
      long error = 0;
      curl_easy_getinfo(easy, CURLINFO_OS_ERRNO, &error);
      return Unavailable("connect: {}", strerror(static_cast<int>(error)));
    }
    case CURLE_PARTIAL_FILE:
      return absl::AbortedError("the response broke off");
    case CURLE_UNSUPPORTED_PROTOCOL:  // also: the response has no status line
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_BAD_CONTENT_ENCODING:
      return DataLoss("{}", curl_easy_strerror(code));
    default:
      return Unavailable("the connection was lost: {}", curl_easy_strerror(code));
  }
}

}  // namespace

// The transfers. libcurl's multi handle is driven by the loop: its sockets and its timer are
// watched there. All but the methods of HttpLoadClient run on the loop's thread.
class HttpLoadClient::Pool {
 public:
  Pool(std::shared_ptr<EventLoop> loop, Server server)
      : loop_(std::move(loop)),
        server_(std::move(server)),
        resolve_(ListOf(server_.resolve.empty() ? std::vector<std::string>{}
                                                : std::vector<std::string>{server_.resolve})),
        timer_(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC)),
        multi_(curl_multi_init()) {
    PENSTOCK_CHECK(multi_ != nullptr);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, &Pool::OnSocketChange);
    curl_multi_setopt(multi_, CURLMOPT_SOCKETDATA, this);
    curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, &Pool::OnTimerChange);
    curl_multi_setopt(multi_, CURLMOPT_TIMERDATA, this);
    curl_multi_setopt(multi_, CURLMOPT_MAXCONNECTS, kConnectionsMax);
  }
  // The loop has stopped.
  ~Pool() {
    CancelAll();
    curl_multi_setopt(multi_, CURLMOPT_SOCKETFUNCTION, nullptr);
    curl_multi_setopt(multi_, CURLMOPT_TIMERFUNCTION, nullptr);
    curl_multi_cleanup(multi_);
    if (timer_ >= 0) close(timer_);
    curl_global_cleanup();
  }

  absl::Status WatchTimer() {
    if (timer_ < 0) return Unavailable("timerfd_create: {}", strerror(errno));
    return loop_->Add(timer_, EPOLLIN, std::make_shared<Watch>(*this, timer_));
  }
  void Send(HttpCall call, std::shared_ptr<HttpExchange> exchange);
  void CancelAll();
  EventLoop& loop() { return *loop_; }

 private:
  // A socket of libcurl's, or the timer.
  class Watch final : public EventLoop::Watcher {
   public:
    Watch(Pool& pool, int fd) : pool_(pool), fd_(fd) {}
    void OnReady(uint32_t events) override { pool_.OnReady(fd_, events); }
    void OnTick(TimePoint) override {}

   private:
    Pool& pool_;
    const int fd_;
  };

  static int OnSocketChange(CURL*, curl_socket_t fd, int what, void* context, void* known);
  static int OnTimerChange(CURLM*, long timeout_ms, void* context);
  void OnReady(int fd, uint32_t events);
  void Configure(Transfer& transfer);
  void EndFinished();
  void End(Transfer& transfer, const absl::Status& status);

  const std::shared_ptr<EventLoop> loop_;
  const Server server_;
  const List resolve_;
  const int timer_;
  CURLM* const multi_;
  std::map<CURL*, std::unique_ptr<Transfer>> transfers_;
  bool cancelled_ = false;
};

int HttpLoadClient::Pool::OnSocketChange(CURL*, curl_socket_t fd, int what, void* context,
                                         void* known) {
  Pool& pool = *static_cast<Pool*>(context);
  if (what == CURL_POLL_REMOVE) {
    if (known != nullptr) pool.loop_->Remove(fd);
    return 0;
  }
  const uint32_t events = ((what & CURL_POLL_IN) != 0 ? uint32_t{EPOLLIN} : 0) |
                          ((what & CURL_POLL_OUT) != 0 ? uint32_t{EPOLLOUT} : 0);
  if (known != nullptr) {
    pool.loop_->Modify(fd, events);
    return 0;
  }
  // A socket that cannot be watched leaves its request to the time limit.
  if (pool.loop_->Add(fd, events, std::make_shared<Watch>(pool, fd)).ok()) {
    curl_multi_assign(pool.multi_, fd, context);
  }
  return 0;
}

int HttpLoadClient::Pool::OnTimerChange(CURLM*, long timeout_ms, void* context) {
  itimerspec when{};  // 0 disarms.
  if (timeout_ms >= 0) {
    when.it_value.tv_sec = timeout_ms / 1000;
    when.it_value.tv_nsec = std::max(timeout_ms % 1000 * 1'000'000, 1L);
  }
  timerfd_settime(static_cast<Pool*>(context)->timer_, 0, &when, nullptr);
  return 0;
}

void HttpLoadClient::Pool::OnReady(int fd, uint32_t events) {
  int running = 0;
  if (fd == timer_) {
    uint64_t expirations = 0;
    (void)!read(timer_, &expirations, sizeof(expirations));
    curl_multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
  } else {
    const int mask = ((events & (EPOLLIN | EPOLLHUP)) != 0 ? CURL_CSELECT_IN : 0) |
                     ((events & EPOLLOUT) != 0 ? CURL_CSELECT_OUT : 0) |
                     ((events & EPOLLERR) != 0 ? CURL_CSELECT_ERR : 0);
    curl_multi_socket_action(multi_, fd, mask, &running);
  }
  EndFinished();
}

void HttpLoadClient::Pool::Configure(Transfer& transfer) {
  CURL* easy = transfer.easy.get();
  const HttpCall& call = transfer.call;
  SetCommon(easy);
  curl_easy_setopt(easy, CURLOPT_URL, (server_.origin + call.path).c_str());
  curl_easy_setopt(easy, CURLOPT_RESOLVE, resolve_.get());
  const auto limit = std::chrono::ceil<std::chrono::milliseconds>(call.timeout).count();
  curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, static_cast<long>(limit));
  curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, static_cast<long>(limit));
  std::vector<std::string> headers = call.headers;
  headers.push_back("Expect:");  // libcurl would wait for 100 Continue before long bodies.
  transfer.headers = ListOf(headers);
  curl_easy_setopt(easy, CURLOPT_HTTPHEADER, transfer.headers.get());
  curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, &TakeBody);
  curl_easy_setopt(easy, CURLOPT_WRITEDATA, &transfer);
  if (call.body.empty()) return;
  curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(call.body.size()));
  curl_easy_setopt(easy, CURLOPT_POSTFIELDS, call.body.data());
}

void HttpLoadClient::Pool::Send(HttpCall call, std::shared_ptr<HttpExchange> exchange) {
  if (cancelled_) return exchange->OnEnd(Cancelled("stopped"), {}, SteadyClock().Now());
  auto transfer = std::make_unique<Transfer>(
      Transfer{.call = std::move(call), .exchange = std::move(exchange)});
  PENSTOCK_CHECK(transfer->easy != nullptr);
  Configure(*transfer);
  CURL* const easy = transfer->easy.get();
  transfer->exchange->OnStart(SteadyClock().Now());
  transfers_[easy] = std::move(transfer);
  PENSTOCK_CHECK(curl_multi_add_handle(multi_, easy) == CURLM_OK);
  // Starts it now instead of at the next expiry of the timer.
  int running = 0;
  curl_multi_socket_action(multi_, CURL_SOCKET_TIMEOUT, 0, &running);
  EndFinished();
}

void HttpLoadClient::Pool::EndFinished() {
  int left = 0;
  while (const CURLMsg* message = curl_multi_info_read(multi_, &left)) {
    if (message->msg != CURLMSG_DONE) continue;
    const auto found = transfers_.find(message->easy_handle);
    if (found == transfers_.end()) continue;
    const absl::Status status = StatusOf(message->data.result, message->easy_handle);
    End(*found->second, status);
  }
}

void HttpLoadClient::Pool::End(Transfer& transfer, const absl::Status& status) {
  const auto ended = transfers_.extract(transfer.easy.get());
  curl_multi_remove_handle(multi_, transfer.easy.get());
  transfer.ReadHead();
  transfer.exchange->OnEnd(status, transfer.reply, SteadyClock().Now());
}

void HttpLoadClient::Pool::CancelAll() {
  cancelled_ = true;
  while (!transfers_.empty()) End(*transfers_.begin()->second, Cancelled("stopped"));
}

absl::StatusOr<std::unique_ptr<HttpLoadClient>> HttpLoadClient::Connect(const std::string& host,
                                                                        uint16_t port) {
  PENSTOCK_CHECK(curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK);
  absl::StatusOr<Server> server = FindServer(host, port);
  absl::StatusOr<std::shared_ptr<EventLoop>> loop = EventLoop::Create();
  if (!server.ok() || !loop.ok()) {
    curl_global_cleanup();
    return server.ok() ? loop.status() : server.status();
  }
  const auto pool = std::make_shared<Pool>(*loop, *std::move(server));
  RETURN_IF_ERROR(pool->WatchTimer());
  (*loop)->Start();
  return std::unique_ptr<HttpLoadClient>(new HttpLoadClient(pool));
}

HttpLoadClient::~HttpLoadClient() { pool_->loop().Stop(); }

void HttpLoadClient::Send(HttpCall call, std::shared_ptr<HttpExchange> exchange) {
  const auto shared = std::make_shared<HttpCall>(std::move(call));
  pool_->loop().Post([pool = pool_.get(), shared, exchange = std::move(exchange)] {
    pool->Send(std::move(*shared), exchange);
  });
}

void HttpLoadClient::CancelAll() {
  pool_->loop().Post([pool = pool_.get()] { pool->CancelAll(); });
}

}  // namespace penstock
