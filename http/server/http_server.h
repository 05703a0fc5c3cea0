#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/queue.h"
#include "base/tls/tls_socket.h"
#include "http/connection.h"
#include "http/server/idle_connections.h"
#include "http/server/protocol_choice.h"

namespace penstock {

// Options of HttpServer::Start.
struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string listen_flag = "--http_listen";   // name of the flag, for error messages
  std::shared_ptr<TlsIdentity> tls = nullptr;  // null: no TLS
  uint32_t loops = 2;                          // event loop threads
  uint32_t handlers = 2;                       // handler threads
  uint32_t max_connections = 4096;
  uint32_t sharers = 1;               // servers that share the process's file descriptors
  uint32_t max_queued = 1024;         // requests queued for handler threads
  size_t body_bytes_max = 256 << 20;  // limit for all connections together
  Protocols protocols = Protocols::kHttp1And2;
  HttpLimits limits;
  Http2Limits http2;
  EdgeTimes times;
};

// An HTTP server with a fixed number of threads: a slow client costs bounded memory and no thread.
// Any thread may call it.
//
// This room, http/server, accepts connections and chooses their protocol. It may use base/,
// base/log, base/net, http/, http/http1 and http/http2 only. It does not know routes or the API.
class HttpServer {
 public:
  // `handler`, `metrics` and `clock` outlive the server. Returns RESOURCE_EXHAUSTED if the address
  // cannot be bound, and the errors of TlsSockets::Create.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler& handler,
                                                           EdgeMetrics& metrics,
                                                           const Clock& clock);
  // Closes every connection; the handlers of open requests are notified that their clients have
  // left.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Stops accepting, and closes idle connections. Answers are sent completely before that, to slow
  // clients too. Returns false if this is not finished within `limit`.
  bool Finish(Duration limit) EXCLUDES(mutex_);

  // host:port with the port that was bound.
  const std::string& endpoint() const { return endpoint_; }
  uint32_t connections() const { return connections_.load(); }
  // Connections that wait for their clients.
  size_t idle_connections() const { return idle_->count(); }
  // Bytes of request bodies in memory.
  size_t body_bytes() const { return bodies_.reserved(); }

 private:
  class Listener;
  using Job = std::function<void()>;

  HttpServer(const HttpServerOptions& options, HttpHandler& handler, EdgeMetrics& metrics,
             const Clock& clock);
  absl::Status Listen();
  void RunHandlers();
  // Takes a new connection, or returns false if the port is full of connections with requests.
  bool TakeConnection(int fd, const std::string& client);
  void Adopt(int fd, const std::string& client);
  void OnClosed() EXCLUDES(mutex_);

  const HttpServerOptions options_;
  BodyBudget bodies_;
  EdgeContext context_;
  std::unique_ptr<TlsSockets> tls_;  // null: no TLS
  BoundedQueue<Job> jobs_;
  std::atomic<uint32_t> connections_{0};
  const std::shared_ptr<IdleConnections> idle_ = std::make_shared<IdleConnections>();
  Mutex mutex_;
  CondVar closed_;  // signalled when a connection closes
  std::string endpoint_;
  std::vector<std::shared_ptr<EventLoop>> loops_;
  std::vector<std::thread> handlers_;
  size_t next_loop_ = 0;  // used on the listener's thread
};

}  // namespace penstock
