#include "base/rpc/callback_threads.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <future>

namespace penstock {
namespace {

TEST(CallbackThreads, TheLastChannelMayGoInACallback) {
  KeepCallbackThreads();
  for (int i = 0; i < 20; ++i) {
    auto channel = grpc::CreateChannel("127.0.0.1:1", grpc::InsecureChannelCredentials());
    auto stub = std::make_unique<grpc::GenericStub>(std::move(channel));
    auto context = std::make_unique<grpc::ClientContext>();
    context->set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(1));
    const grpc::Slice empty("");
    const grpc::ByteBuffer request(&empty, 1);
    grpc::ByteBuffer response;
    std::promise<void> gone;
    grpc::GenericStub& caller = *stub;
    grpc::ClientContext& called = *context;
    caller.UnaryCall(&called, "/a.B/C", grpc::StubOptions(), &request, &response,
                     [&gone, &stub, &context](const grpc::Status& status) {
                       EXPECT_FALSE(status.ok());
                       context.reset();
                       stub.reset();
                       gone.set_value();
                     });
    gone.get_future().wait();
  }
}

}  // namespace
}  // namespace penstock
