#include "lab/load/http_client.h"

#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <set>

#include "http/socket.h"

namespace penstock {
namespace {

constexpr int kConnectTimeoutMs = 5000;  // of the first try

struct Address {
  sockaddr_storage storage{};
  socklen_t length = 0;
};

// A socket whose connection is under way, or the error number, negated.
int BeginConnect(const Address& address) {
  const int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd < 0) return -errno;
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  if (connect(fd, reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0 ||
      errno == EINPROGRESS) {
    return fd;
  }
  const int error = errno;
  close(fd);
  return -error;
}

int SocketError(int fd) {
  int error = 0;
  socklen_t size = sizeof(error);
  getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  return error;
}

// 0, or the error number.
int TryConnect(const Address& address) {
  const int fd = BeginConnect(address);
  if (fd < 0) return -fd;
  pollfd waiting = {.fd = fd, .events = POLLOUT, .revents = 0};
  const int ready = poll(&waiting, 1, kConnectTimeoutMs);
  const int error = ready == 0 ? ETIMEDOUT : SocketError(fd);
  close(fd);
  return error;
}

absl::StatusOr<Address> FindAddress(const std::string& host, uint16_t port) {
  const addrinfo hints = {.ai_flags = AI_NUMERICSERV, .ai_socktype = SOCK_STREAM};
  addrinfo* found = nullptr;
  const int failed = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  if (failed != 0) return Unavailable("{} has no address: {}", host, gai_strerror(failed));
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(found, freeaddrinfo);
  int error = 0;
  for (const addrinfo* each = found; each != nullptr; each = each->ai_next) {
    Address address{.length = each->ai_addrlen};
    std::memcpy(&address.storage, each->ai_addr, each->ai_addrlen);
    error = TryConnect(address);
    if (error == 0) return address;
  }
  return Unavailable("nobody answers at {}:{}: {}", host, port, strerror(error));
}

struct Request {
  std::string bytes;
  TimePoint deadline;
  std::shared_ptr<HttpExchange> exchange;
};

TimePoint Now() { return std::chrono::steady_clock::now(); }

}  // namespace

// The connections. All but the methods of HttpLoadClient run on the loop's thread.
class HttpLoadClient::Pool : public std::enable_shared_from_this<Pool> {
 public:
  class Connection;

  Pool(std::shared_ptr<EventLoop> loop, const Address& address)
      : loop_(std::move(loop)), address_(address) {}

  void Send(Request request);
  void CancelAll();
  EventLoop& loop() { return *loop_; }

 private:
  friend class Connection;
  void Open(Request request);
  static void Refuse(const Request& request, const absl::Status& status);

  const std::shared_ptr<EventLoop> loop_;
  const Address address_;
  std::set<std::shared_ptr<Connection>> all_;
  std::vector<std::shared_ptr<Connection>> idle_;
  bool cancelled_ = false;
};

class HttpLoadClient::Pool::Connection : public EventLoop::Watcher,
                                         public std::enable_shared_from_this<Connection> {
 public:
  Connection(Pool& pool, int fd) : pool_(pool), socket_(MakePlainSocket(fd)) {}

  void Begin(Request request);
  void OnReady(uint32_t events) override;
  void OnTick(TimePoint now) override;
  void Cancel();
  int fd() const { return socket_->fd(); }

 private:
  void Write();
  void Read();
  void End(const absl::Status& status);
  void TakeBytes(std::string_view bytes);
  // The server has closed an idle connection just when it was used again: that is no failure.
  bool MayTryAgain() const { return used_before_ && !heard_; }
  void Lost(std::string_view what);
  void Close();

  Pool& pool_;
  const std::unique_ptr<Socket> socket_;
  std::optional<Request> request_;
  std::optional<HttpResponseParser> response_;
  TimePoint now_;
  size_t written_ = 0;
  bool connecting_ = true;
  bool used_before_ = false;
  bool heard_ = false;
};

// ---------------------------------------------------------------- Connection

void HttpLoadClient::Pool::Connection::Begin(Request request) {
  request_ = std::move(request);
  response_.emplace(
      [this](std::string_view bytes) { request_->exchange->OnBody(*response_, bytes, now_); });
  written_ = 0;
  heard_ = false;
  if (!connecting_) Write();
}

void HttpLoadClient::Pool::Connection::OnReady(uint32_t events) {
  now_ = Now();
  const auto self = shared_from_this();
  if (connecting_) {
    const int error = SocketError(fd());
    if (error != 0) return End(Unavailable("connect: {}", strerror(error)));
    if ((events & EPOLLOUT) == 0) return;
    connecting_ = false;
  }
  if (request_ && (events & EPOLLOUT) != 0) Write();
  if ((events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) Read();
}

void HttpLoadClient::Pool::Connection::OnTick(TimePoint now) {
  now_ = now;
  if (request_ && now > request_->deadline) End(DeadlineExceeded("no end within the time limit"));
}

void HttpLoadClient::Pool::Connection::Cancel() {
  now_ = Now();
  if (!request_) return Close();
  End(Cancelled("stopped"));
}

void HttpLoadClient::Pool::Connection::Write() {
  const std::string& bytes = request_->bytes;
  while (written_ < bytes.size()) {
    const Socket::Result result = socket_->Write(std::string_view(bytes).substr(written_));
    if (result.kind == Socket::Result::Kind::kWouldBlock) {
      return pool_.loop().Modify(fd(), EPOLLIN | EPOLLOUT);
    }
    // What the server said before it closed is still to be read.
    if (result.kind != Socket::Result::Kind::kBytes) break;
    written_ += result.bytes;
  }
  pool_.loop().Modify(fd(), EPOLLIN);
}

void HttpLoadClient::Pool::Connection::Read() {
  const std::span<char> buffer = pool_.loop().scratch();
  while (true) {
    const Socket::Result result = socket_->Read(buffer);
    if (result.kind == Socket::Result::Kind::kWouldBlock) return;
    if (!request_) return Close();  // idle, and closed by the server
    if (result.kind == Socket::Result::Kind::kBroken) return Lost("the connection was reset");
    if (result.kind == Socket::Result::Kind::kEnd) {
      response_->TakeEnd();
      if (!response_->done()) return Lost(response_->error());
      return End(absl::OkStatus());
    }
    TakeBytes({buffer.data(), result.bytes});
    if (!request_ || result.bytes < buffer.size()) return;
  }
}

void HttpLoadClient::Pool::Connection::TakeBytes(std::string_view bytes) {
  heard_ = true;
  response_->Take(bytes);
  if (response_->failed()) return End(DataLoss("{}", response_->error()));
  if (response_->done()) End(absl::OkStatus());
}

void HttpLoadClient::Pool::Connection::Lost(std::string_view what) {
  if (!MayTryAgain()) return End(Unavailable("{}", what));
  Request again = *std::move(request_);
  request_.reset();
  Pool& pool = pool_;
  Close();
  pool.Open(std::move(again));
}

void HttpLoadClient::Pool::Connection::End(const absl::Status& status) {
  const auto self = shared_from_this();
  const Request ended = *std::move(request_);
  request_.reset();
  const bool reusable = status.ok() && response_->keep_alive() && written_ == ended.bytes.size();
  ended.exchange->OnEnd(status, *response_, now_);
  if (!reusable) return Close();
  used_before_ = true;
  pool_.idle_.push_back(self);
}

void HttpLoadClient::Pool::Connection::Close() {
  const auto self = shared_from_this();
  pool_.loop().Remove(fd());
  std::erase(pool_.idle_, self);
  pool_.all_.erase(self);
}

// ---------------------------------------------------------------- Pool

void HttpLoadClient::Pool::Refuse(const Request& request, const absl::Status& status) {
  const HttpResponseParser none([](std::string_view) {});
  request.exchange->OnEnd(status, none, Now());
}

void HttpLoadClient::Pool::Send(Request request) {
  if (cancelled_) return Refuse(request, Cancelled("stopped"));
  request.exchange->OnStart(Now());
  if (idle_.empty()) return Open(std::move(request));
  const std::shared_ptr<Connection> connection = idle_.back();
  idle_.pop_back();
  connection->Begin(std::move(request));
}

void HttpLoadClient::Pool::Open(Request request) {
  const int fd = BeginConnect(address_);
  if (fd < 0) return Refuse(request, Unavailable("connect: {}", strerror(-fd)));
  const auto connection = std::make_shared<Connection>(*this, fd);
  const absl::Status watched = loop_->Add(fd, EPOLLIN | EPOLLOUT, connection);
  if (!watched.ok()) return Refuse(request, watched);
  all_.insert(connection);
  connection->Begin(std::move(request));
}

void HttpLoadClient::Pool::CancelAll() {
  cancelled_ = true;
  const auto all = all_;
  for (const auto& connection : all) connection->Cancel();
}

// ---------------------------------------------------------------- HttpLoadClient

absl::StatusOr<std::unique_ptr<HttpLoadClient>> HttpLoadClient::Connect(const std::string& host,
                                                                        uint16_t port) {
  ASSIGN_OR_RETURN(const Address address, FindAddress(host, port));
  ASSIGN_OR_RETURN(const std::shared_ptr<EventLoop> loop, EventLoop::Create());
  loop->Start();
  return std::unique_ptr<HttpLoadClient>(new HttpLoadClient(std::make_shared<Pool>(loop, address)));
}

HttpLoadClient::~HttpLoadClient() {
  CancelAll();
  pool_->loop().Stop();
}

void HttpLoadClient::Send(std::string request, Duration timeout,
                          std::shared_ptr<HttpExchange> exchange) {
  const auto shared =
      std::make_shared<Request>(Request{std::move(request), Now() + timeout, std::move(exchange)});
  pool_->loop().Post([pool = pool_, shared] { pool->Send(std::move(*shared)); });
}

void HttpLoadClient::CancelAll() {
  pool_->loop().Post([pool = pool_] { pool->CancelAll(); });
}

}  // namespace penstock
