#pragma once

#include <memory>

namespace grpc {
class CallbackGenericService;
class Server;
}  // namespace grpc

namespace penstock {

// Keeps gRPC's callback threads alive during its lifetime. gRPC 1.51 joins them when the last
// channel or server is destroyed, on the thread that destroys it; if that is a callback thread, it
// would join itself, and the process aborts. A process with channels but no gRPC server owns one of
// these, and destroys it after its channels on a thread that is not gRPC's.
class CallbackThreads {
 public:
  CallbackThreads();
  ~CallbackThreads();

 private:
  const std::unique_ptr<grpc::CallbackGenericService> nothing_;
  std::unique_ptr<grpc::Server> server_;  // has no port
};

}  // namespace penstock
