#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/queue.h"
#include "http/connection.h"
#include "http/server/protocol_choice.h"
#include "http/tls_socket.h"

namespace penstock {

struct HttpServerOptions {
  std::string listen = "127.0.0.1:0";
  std::string listen_flag = "--http_listen";   // that says it, for errors
  std::shared_ptr<TlsIdentity> tls = nullptr;  // null: plain
  uint32_t loops = 2;                          // threads that move bytes
  uint32_t handlers = 2;                       // threads that read requests
  uint32_t max_connections = 4096;
  uint32_t sharers = 1;               // servers that share what the process may open
  uint32_t max_queued = 1024;         // requests that wait for a handler thread
  size_t body_bytes_max = 256 << 20;  // of all connections together
  Protocols protocols = Protocols::kHttp1And2;
  HttpLimits limits;
  Http2Limits http2;
  EdgeTimes times;
};

// An HTTP server on a few threads: any number of slow clients cost memory within their bounds and
// no thread. Any thread.
class HttpServer {
 public:
  // What it refers to outlives it. RESOURCE_EXHAUSTED when the address cannot be bound; errors of
  // TlsAcceptor.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Start(const HttpServerOptions& options,
                                                           HttpHandler& handler,
                                                           EdgeMetrics& metrics,
                                                           const Clock& clock);
  // Closes every connection: requests that are under way are told that their clients have left.
  ~HttpServer();
  HttpServer(const HttpServer&) = delete;
  HttpServer& operator=(const HttpServer&) = delete;

  // Takes no more connections and closes those that have nothing to send: what was answered is sent
  // before that, to slow clients too. False when that has taken `limit`.
  bool Finish(Duration limit) EXCLUDES(mutex_);

  // host:port with the port that was really bound.
  const std::string& endpoint() const { return endpoint_; }
  uint32_t connections() const { return connections_.load(); }
  // Of request bodies that are held.
  size_t body_bytes() const { return bodies_.taken(); }

 private:
  class Listener;
  using Job = std::function<void()>;

  HttpServer(const HttpServerOptions& options, HttpHandler& handler, EdgeMetrics& metrics,
             const Clock& clock);
  absl::Status Listen();
  void RunHandlers();
  void Adopt(int fd);
  void OnClosed() EXCLUDES(mutex_);

  const HttpServerOptions options_;
  BodyBudget bodies_;
  EdgeContext context_;
  std::unique_ptr<TlsAcceptor> tls_;  // null: plain
  BoundedQueue<Job> jobs_;
  std::atomic<uint32_t> connections_{0};
  Mutex mutex_;
  CondVar closed_;  // a connection
  std::string endpoint_;
  std::vector<std::shared_ptr<EventLoop>> loops_;
  std::vector<std::thread> handlers_;
  size_t next_loop_ = 0;  // the listener's thread
};

}  // namespace penstock
