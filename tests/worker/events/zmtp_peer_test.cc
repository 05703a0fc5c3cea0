#include "worker/events/zmtp_peer.h"

#include <gtest/gtest.h>

#include "tests/worker/events/zmtp_text.h"

namespace penstock {
namespace {

using Code = absl::StatusCode;

Code CodeOf(const std::string& bytes) { return ZmtpPeer().Take(bytes).code(); }

TEST(ZmtpPeerTest, GreetsAtOnce) {
  ZmtpPeer peer;
  const std::string greeting = peer.TakeOutput();
  EXPECT_EQ(greeting, std::string("\xff\0\0\0\0\0\0\0\0\x7f\3\0NULL", 16) + std::string(48, '\0'));
  EXPECT_TRUE(peer.TakeOutput().empty());
}

TEST(ZmtpPeerTest, ASubscriberMeetsAPublisher) {
  ZmtpPeer peer;
  peer.TakeOutput();
  ASSERT_TRUE(peer.Take(Greeting() + Ready("SUB")).ok());
  EXPECT_EQ(peer.TakeOutput(), std::string("\4\31\5READY\13Socket-Type\0\0\0\3PUB", 27));
  EXPECT_EQ(peer.kind(), ZmtpPeer::Kind::kSubscriber);
  EXPECT_FALSE(peer.Subscribes("kv@a"));
  ASSERT_TRUE(peer.Take(Subscription("kv@") + Subscription("kv@a")).ok());
  EXPECT_TRUE(peer.Subscribes("kv@a"));
  EXPECT_TRUE(peer.Subscribes("kv@b"));
  EXPECT_FALSE(peer.Subscribes("kv"));
  ASSERT_TRUE(peer.Take(Subscription("kv@", false)).ok());
  EXPECT_TRUE(peer.Subscribes("kv@a"));
  EXPECT_FALSE(peer.Subscribes("kv@b"));
  ASSERT_TRUE(peer.Take(Subscription("unknown", false) + Subscription("")).ok());
  EXPECT_TRUE(peer.Subscribes("anything"));
}

TEST(ZmtpPeerTest, ARequesterMeetsARouter) {
  for (const char* type : {"REQ", "DEALER"}) {
    ZmtpPeer peer;
    peer.TakeOutput();
    ASSERT_TRUE(peer.Take(Greeting() + Ready(type)).ok());
    EXPECT_EQ(peer.TakeOutput(), std::string("\4\34\5READY\13Socket-Type\0\0\0\6ROUTER", 30));
    ASSERT_TRUE(peer.Take(Request(3) + Request(UINT64_MAX)).ok());
    EXPECT_EQ(peer.TakeRequest(), 3u);
    EXPECT_EQ(peer.TakeRequest(), UINT64_MAX);
    EXPECT_EQ(peer.TakeRequest(), std::nullopt);
  }
}

TEST(ZmtpPeerTest, BytesMayComeInAnyPieces) {
  const std::string all = Greeting() + Ready("SUB") + Subscription("kv@") + Command("\4PINGxxctx");
  for (size_t piece = 1; piece < all.size(); ++piece) {
    ZmtpPeer peer;
    std::string output;
    for (size_t at = 0; at < all.size(); at += piece) {
      ASSERT_TRUE(peer.Take(std::string_view(all).substr(at, piece)).ok()) << piece;
      output += peer.TakeOutput();
    }
    EXPECT_TRUE(peer.Subscribes("kv@a"));
    EXPECT_EQ(output.substr(output.size() - 10), std::string("\4\10\4PONGctx", 10));
  }
}

TEST(ZmtpPeerTest, OtherProtocolsAreRefusedWithTheirFirstBytes) {
  EXPECT_EQ(CodeOf("G"), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf("GET / HTTP/1.1\r\n\r\n"), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf("\x16\x03\x01"), Code::kInvalidArgument);  // TLS
  EXPECT_EQ(CodeOf(std::string(64, '\xff')), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(std::string("\xff\0\0\0\0\0\0\0\1\x7f\1", 11)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting(2)), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting(3, 0, "CURVE")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting(3, 0, "NULLX")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting(4)), Code::kOk);  // a later one falls back
}

TEST(ZmtpPeerTest, MessagesBeforeReadyAndOtherSocketsAreRefused) {
  EXPECT_EQ(CodeOf(Greeting() + Subscription("")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting() + Command("\4PINGxx")), Code::kInvalidArgument);
  for (const char* type : {"PUB", "PUSH", "ROUTER", "", "sub"}) {
    EXPECT_EQ(CodeOf(Greeting() + Ready(type)), Code::kInvalidArgument) << type;
  }
  EXPECT_EQ(CodeOf(Greeting() + Command("\5READY")), Code::kInvalidArgument);
  EXPECT_EQ(
      CodeOf(Greeting() + Command(std::string("\5READY\13Socket-Type\xff\xff\xff\xffSUB", 25))),
      Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting() + Ready("SUB") + Ready("SUB")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting() + Command("\5ERROR")), Code::kInvalidArgument);
  EXPECT_EQ(CodeOf(Greeting() + Command("\xff")), Code::kInvalidArgument);
}

TEST(ZmtpPeerTest, WrongMessagesAreRefused) {
  const std::string sub = Greeting() + Ready("SUB"), req = Greeting() + Ready("REQ");
  EXPECT_EQ(CodeOf(sub + std::string("\0\0", 2)), Code::kInvalidArgument);    // empty
  EXPECT_EQ(CodeOf(sub + std::string("\0\1\2", 3)), Code::kInvalidArgument);  // neither 0 nor 1
  EXPECT_EQ(CodeOf(sub + std::string("\1\1\1", 3)), Code::kInvalidArgument);  // two frames
  EXPECT_EQ(CodeOf(sub + std::string("\x80\0", 2)), Code::kInvalidArgument);  // unknown flag
  EXPECT_EQ(CodeOf(sub + std::string("\5\1x", 3)), Code::kInvalidArgument);   // command and more
  EXPECT_EQ(CodeOf(req + std::string("\0\0", 2)), Code::kInvalidArgument);    // no second frame
  EXPECT_EQ(CodeOf(req + std::string("\1\1x", 3)), Code::kInvalidArgument);   // no delimiter
  EXPECT_EQ(CodeOf(req + std::string("\1\0\0\4abcd", 8)), Code::kInvalidArgument);  // not 8 bytes
}

TEST(ZmtpPeerTest, EverythingHasALimit) {
  const std::string sub = Greeting() + Ready("SUB"), req = Greeting() + Ready("REQ");
  // The length alone is enough: nothing is kept until the frame is complete.
  EXPECT_EQ(CodeOf(sub + std::string("\2\0\0\0\0\0\0\1\1", 9)), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(sub + std::string("\2\0\0\0\0\0\0\1\0", 9)), Code::kOk);  // 256 bytes will come
  EXPECT_EQ(CodeOf(sub + "\2\xff\xff\xff\xff\xff\xff\xff\xff"), Code::kResourceExhausted);
  EXPECT_EQ(CodeOf(Greeting() + std::string("\6\0\0\0\0\0\0\2\1", 9)), Code::kResourceExhausted);
  std::string many = sub;
  for (size_t i = 0; i < ZmtpPeer::kTopicsMax; ++i) many += Subscription("same");
  EXPECT_EQ(CodeOf(many), Code::kOk);
  EXPECT_EQ(CodeOf(many + Subscription("same")), Code::kResourceExhausted);
  many = req;
  for (size_t i = 0; i < ZmtpPeer::kRequestsMax; ++i) many += Request(i);
  EXPECT_EQ(CodeOf(many), Code::kOk);
  EXPECT_EQ(CodeOf(many + Request(0)), Code::kResourceExhausted);
}

TEST(ZmtpPeerTest, LongFramesHaveALongLength) {
  std::string frame;
  AppendZmtpFrame(frame, std::string(255, 'x'), /*more=*/true);
  EXPECT_EQ(frame.substr(0, 3), "\1\xffx");
  frame.clear();
  AppendZmtpFrame(frame, std::string(256, 'x'), /*more=*/false);
  EXPECT_EQ(frame.substr(0, 10), std::string("\2\0\0\0\0\0\0\1\0x", 10));
}

}  // namespace
}  // namespace penstock
