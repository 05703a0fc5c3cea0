// The control stream of a handoff over real gRPC, against peers that misbehave.
#include "worker/handoff/handoff_service.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>

#include "base/rpc/rpc_server.h"
#include "kvstore/handoff/handoff_types.h"
#include "proto/handoff.grpc.pb.h"
#include "tests/support/wait_until.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr HandoffKey kKey{.session = 1, .epoch = 0, .nonce = 2};

TEST(HandoffServiceTest, APeerThatAsksAndDoesNotReadIsDropped) {
  const SteadyClock clock;
  const auto pool = *BlockPool::Create(kLayout, 8);
  KvReceiver receiver({}, {.model_fingerprint = 9, .layout = kLayout}, clock, *pool);
  receiver.SetWireAddress(std::string(16 << 10, 'a'));  // fills the connection's window soon
  std::atomic<bool> failed = false;
  ASSERT_TRUE(receiver
                  .Expect({.key = kKey,
                           .tokens = 16,
                           .blocks = 1,
                           .on_admitted = [] {},
                           .on_committed = [](ReceivedKv) {},
                           .on_failed = [&](const absl::Status&) { failed = true; }})
                  .ok());
  HandoffService service(receiver);
  const auto server = RpcServer::Start({.listen = "127.0.0.1:0", .services = {service.service()}});
  ASSERT_TRUE(server.ok()) << server.status();

  v1::HandoffSenderMessage offer;
  SetSessionKey(kKey, offer.mutable_key());
  offer.mutable_offer()->set_model_fingerprint(9);
  offer.mutable_offer()->set_layout_fingerprint(kLayout.Fingerprint());
  offer.mutable_offer()->set_tokens(16);
  const auto stub = v1::HandoffTarget::NewStub(
      grpc::CreateChannel((*server)->endpoint(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  const auto stream = stub->Handoff(&context);
  int offers = 0;
  while (offers < 5000 && stream->Write(offer)) ++offers;
  EXPECT_LT(offers, 5000) << "the worker keeps an answer to each of them";
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_TRUE(WaitUntil([&] { return failed.load(); }));
  EXPECT_TRUE(WaitUntil([&] { return pool->blocks_reserved() == 0; }));
}

}  // namespace
}  // namespace penstock
