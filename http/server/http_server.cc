#include "http/server/http_server.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/log/log.h"
#include "base/net/client_network.h"
#include "base/net/reserved_acceptor.h"
#include "http/listening_socket.h"

namespace penstock {
namespace {

constexpr int kAcceptsAtOnce = 64;
// File descriptors that stay reserved for workers, logs and files.
constexpr rlim_t kKeptDescriptors = 128;

uint32_t ConnectionLimit(const HttpServerOptions& options) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return options.max_connections;
  if (limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit);
    getrlimit(RLIMIT_NOFILE, &limit);
  }
  const rlim_t room = limit.rlim_cur > 2 * kKeptDescriptors ? limit.rlim_cur - kKeptDescriptors
                                                            : limit.rlim_cur / 2;
  return static_cast<uint32_t>(std::min<rlim_t>(options.max_connections, room / options.sharers));
}

// Idle connections that were asked to close and still count, beside max_connections.
constexpr uint32_t kClosingConnections = 32;

}  // namespace

// Accepts connections. If descriptors or connections run out, clients receive a refusal and are
// closed.
class HttpServer::Listener final : public EventLoop::Watcher {
 public:
  Listener(HttpServer& server, EventLoop& loop, int fd)
      : server_(server),
        loop_(loop),
        fd_(fd),
        acceptor_([this](int client) { Refuse(client); }),
        refusal_(RefusalBytes(server.options_.protocols, server.context_.handler,
                              "the server has as many connections as it may; try again in a "
                              "second")) {}
  ~Listener() override { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  void OnReady(uint32_t) override {
    if (server_.context_.closing) return loop_.Modify(fd_, 0);  // until the next tick
    for (int i = 0; i < kAcceptsAtOnce; ++i) {
      const ReservedAcceptor::Step step = acceptor_.Accept(fd_);
      switch (step.kind) {
        case ReservedAcceptor::Step::Kind::kAccepted:
          Take(step.connection, ClientNetwork(step.peer));
          break;
        case ReservedAcceptor::Step::Kind::kRefused:
          break;
        case ReservedAcceptor::Step::Kind::kNothing:
          return;
        case ReservedAcceptor::Step::Kind::kExhausted:
          return Pause();
      }
    }
  }

  void OnTick(TimePoint) override {
    if (server_.context_.closing) return loop_.Remove(fd_);  // the last reference to this listener
    if (!paused_ || !acceptor_.Restore()) return;
    paused_ = false;
    loop_.Modify(fd_, EPOLLIN);
  }

 private:
  void Take(int connection, const std::string& client) {
    if (!server_.TakeConnection(connection, client)) Refuse(connection);
  }

  void Refuse(int client) const {
    server_.context_.metrics.OnLimit(EdgeLimit::kConnections);
    if (server_.tls_ == nullptr) {  // Over TLS, a refusal would require a handshake.
      [[maybe_unused]] const ssize_t sent =
          send(client, refusal_.data(), refusal_.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      shutdown(client, SHUT_WR);
    }
    close(client);
  }

  // Until the next tick.
  void Pause() {
    paused_ = true;
    loop_.Modify(fd_, 0);
  }

  HttpServer& server_;
  EventLoop& loop_;
  const int fd_;
  ReservedAcceptor acceptor_;
  const std::string refusal_;
  bool paused_ = false;
};

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options,
                                                              HttpHandler& handler,
                                                              EdgeMetrics& metrics,
                                                              const Clock& clock) {
  HttpServerOptions limited = options;
  limited.max_connections = ConnectionLimit(options);
  if (limited.max_connections < options.max_connections) {
    LogWarning("http_connections_limited",
               "at most {} connections on {}: the process can open no more files; raise ulimit -n",
               limited.max_connections, options.listen);
  }
  std::unique_ptr<HttpServer> server(new HttpServer(limited, handler, metrics, clock));
  if (options.tls != nullptr) {
    ASSIGN_OR_RETURN(server->tls_,
                     TlsSockets::Create(options.tls, {.protocols = AlpnNames(options.protocols)}));
  }
  RETURN_IF_ERROR(server->Listen());
  return server;
}

HttpServer::HttpServer(const HttpServerOptions& options, HttpHandler& handler, EdgeMetrics& metrics,
                       const Clock& clock)
    : options_(options),
      bodies_(options.body_bytes_max),
      context_{.handler = handler,
               .run = [this](Job job) { return jobs_.TryPush(std::move(job)); },
               .bodies = bodies_,
               .limits = options.limits,
               .http2 = options.http2,
               .times = options.times,
               .clock = clock,
               .metrics = metrics},
      jobs_(options.max_queued) {}

absl::Status HttpServer::Listen() {
  ASSIGN_OR_RETURN(const int fd, ListenOn(options_.listen, options_.listen_flag, &endpoint_));
  for (uint32_t i = 0; i < options_.loops; ++i) {
    auto loop = EventLoop::Create();
    if (!loop.ok()) {
      close(fd);
      return loop.status();
    }
    loops_.push_back(*std::move(loop));
  }
  RETURN_IF_ERROR(
      loops_.front()->Add(fd, EPOLLIN, std::make_shared<Listener>(*this, *loops_.front(), fd)));
  for (const auto& loop : loops_) loop->Start();
  for (uint32_t i = 0; i < options_.handlers; ++i) {
    handlers_.emplace_back([this] { RunHandlers(); });
  }
  return absl::OkStatus();
}

HttpServer::~HttpServer() {
  // Loops first: closing a connection notifies its request, which a handler thread may be using.
  for (const auto& loop : loops_) loop->Stop();
  jobs_.Close();
  for (std::thread& handler : handlers_) handler.join();
}

bool HttpServer::Finish(Duration limit) {
  const auto deadline = std::chrono::steady_clock::now() + limit;
  context_.closing = true;
  MutexLock lock(mutex_);
  while (connections_ > 0) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    closed_.WaitFor(mutex_, left);
  }
  return true;
}

void HttpServer::OnClosed() {
  MutexLock lock(mutex_);
  --connections_;
  closed_.NotifyAll();
}

void HttpServer::RunHandlers() {
  while (true) {
    std::optional<Job> job = jobs_.Pop(std::chrono::hours(1));
    if (job) {
      (*job)();
    } else if (jobs_.closed()) {
      return;
    }
  }
}

bool HttpServer::TakeConnection(int fd, const std::string& client) {
  const uint32_t open = connections_;
  if (open >= options_.max_connections) {
    const bool may_replace = open < options_.max_connections + kClosingConnections;
    if (!may_replace || !idle_->CloseOne()) return false;
    context_.metrics.OnLimit(EdgeLimit::kConnections);
  }
  Adopt(fd, client);
  return true;
}

void HttpServer::Adopt(int fd, const std::string& client) {
  const int one = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
  std::unique_ptr<Socket> socket = tls_ == nullptr ? MakePlainSocket(fd) : tls_->Accept(fd);
  if (socket == nullptr) return context_.metrics.OnLimit(EdgeLimit::kHandshake);  // out of memory
  ++connections_;
  std::shared_ptr<EventLoop> loop = loops_[next_loop_++ % loops_.size()];
  auto connection = std::make_shared<Connection>(Connection::Args{
      .loop = *loop, .context = context_, .socket = std::move(socket), .on_closed = [this] {
        OnClosed();
      }});
  // A handler may outlive this server, so the function owns the loop, and the connection only
  // weakly.
  const auto on_loop = [loop,
                        weak = std::weak_ptr<Connection>(connection)](void (Connection::*act)()) {
    return [loop, weak, act] {
      loop->Post([weak, act] {
        if (const std::shared_ptr<Connection> alive = weak.lock()) (alive.get()->*act)();
      });
    };
  };
  auto member =
      std::make_shared<IdleConnections::Member>(idle_, client, on_loop(&Connection::CloseIfIdle));
  auto protocol = std::make_shared<std::unique_ptr<Protocol>>(
      ChooseProtocol(options_.protocols, context_, on_loop(&Connection::OnWake), client));
  loop->Post([connection, member, protocol] {
    connection->Open(std::move(*protocol), [member](bool idle) { member->SetIdle(idle); });
  });
}

}  // namespace penstock
