#pragma once

#include <memory>

namespace grpc {
class CallbackGenericService;
class Server;
}  // namespace grpc

namespace penstock {

// Keeps gRPC's threads for callbacks for as long as it lives. gRPC 1.51 ends them with the last
// channel or server that uses them, on the thread that lets go of it: where that is one of them, it
// waits for itself in vain, and the process aborts. Whoever has channels but no gRPC server has one
// of these, and destroys it after them, on a thread of its own.
class CallbackThreads {
 public:
  CallbackThreads();
  ~CallbackThreads();

 private:
  const std::unique_ptr<grpc::CallbackGenericService> nothing_;
  std::unique_ptr<grpc::Server> server_;  // without a port
};

}  // namespace penstock
