#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/net/reserved_acceptor.h"
#include "base/status.h"

namespace penstock {

// Accepts the connections of a gRPC server on a thread of its own. gRPC 1.51's own listener accepts
// nothing more once the process has run out of descriptors (CVE-2023-4785). This one leaves a
// reserve of descriptors to the rest of the process: connections that would need it are closed at
// once, and the next ones are accepted as soon as descriptors are free again.
class ConnectionAcceptor {
 public:
  // Receives an accepted connection and owns it from then on; the first socket is the listening
  // one.
  using Take = std::function<void(int listener, int connection)>;

  // Listens on host:port; port 0 selects a free one, and 0.0.0.0 or [::] is every address of both
  // kinds. Returns RESOURCE_EXHAUSTED if no address can be bound.
  static absl::StatusOr<std::unique_ptr<ConnectionAcceptor>> Listen(const std::string& listen);
  ~ConnectionAcceptor();  // Calls Stop.

  uint16_t port() const { return port_; }
  // Begins to accept. Call it once.
  void Start(Take take);
  // Stops listening. `take` is not called afterwards. May be called again.
  void Stop();

 private:
  ConnectionAcceptor();
  absl::Status Bind(const std::string& host, uint16_t port);
  void Run();
  void TakeOne(ReservedAcceptor& acceptor, int listener);
  void Refuse(int connection);
  void LogRefusal();

  const SteadyClock clock_;
  std::vector<int> listeners_;
  uint16_t port_ = 0;
  int stop_ = -1;  // an eventfd
  Take take_;
  std::thread thread_;

  TimePoint logged_{};  // used by the thread only
};

}  // namespace penstock
