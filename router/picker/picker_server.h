#pragma once

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/queue.h"
#include "base/rpc/rpc_server.h"
#include "router/picker/picker_metrics.h"
#include "router/picker/processing.h"

namespace penstock {

struct PickerServerOptions {
  std::string listen;
  std::shared_ptr<TlsIdentity> tls = nullptr;       // nullptr: plaintext
  std::string endpoint;                             // ip:port that gateways are given
  HttpLimits limits;                                // of a request
  size_t body_bytes_max = 256 << 20;                // request bodies of all streams together
  uint32_t streams_max = 2048;                      // further requests are refused with status 503
  uint32_t decisions_queued_max = 1024;             // likewise
  Duration body_wait = std::chrono::seconds(30);    // until a stream's request is complete
  Duration stream_max = std::chrono::seconds(660);  // from then to the end of its response
};

// The gRPC port of the endpoint picker. gRPC's threads move messages; two threads of its own parse
// bodies and decide. Any thread.
class PickerServer {
 public:
  // `rule`, `metrics` and `clock` outlive the server. Errors of RpcServer::Start.
  static absl::StatusOr<std::unique_ptr<PickerServer>> Start(const PickerServerOptions& options,
                                                             PickRule& rule, PickerMetrics& metrics,
                                                             const Clock& clock);
  ~PickerServer();
  PickerServer(const PickerServer&) = delete;
  PickerServer& operator=(const PickerServer&) = delete;

  const std::string& endpoint() const { return server_->endpoint(); }
  // Sets the health of the service; the health of `liveness` does not depend on it.
  void SetServing(bool serving);
  // Refuses new streams; open ones may end within `grace`. Call it once.
  void Stop(Duration grace);

 private:
  class Service;
  class Stream;
  using Job = std::function<void()>;

  PickerServer(const PickerServerOptions& options, PickRule& rule, PickerMetrics& metrics,
               const Clock& clock);
  void RunDecisions();

  const PickerServerOptions options_;
  PickRule& rule_;
  PickerMetrics& metrics_;
  const Clock& clock_;
  BodyBudget bodies_;
  std::atomic<uint32_t> streams_{0};
  BoundedQueue<Job> decisions_;
  std::unique_ptr<Service> service_;
  std::unique_ptr<RpcServer> server_;
  std::vector<std::thread> threads_;
};

}  // namespace penstock
