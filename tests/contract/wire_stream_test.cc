#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <random>

#include "kvstore/wire/net/address.h"
#include "kvstore/wire/stream/frame_seal.h"
#include "kvstore/wire/stream/stream_input.h"
#include "tests/contract/tcp_proxy.h"
#include "tests/contract/wire_support.h"

namespace penstock {
namespace {

const std::string kSecret(32, 'k');

std::vector<std::byte> RandomBytes(size_t size, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<std::byte> bytes(size);
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
  return bytes;
}

// A frame as it lies on the link.
struct Sealed {
  std::vector<std::byte> head, body;
  std::array<std::byte, kSealTagBytes> tag{};
};

Sealed SealNext(FrameSeal& seal, uint32_t number) {
  Sealed sealed{.head = RandomBytes(kStreamFrameBytes, number), .body = RandomBytes(1000, number)};
  seal.Seal(sealed.head, sealed.body, sealed.body.data(), sealed.tag);
  return sealed;
}

absl::Status Open(FrameSeal& seal, Sealed sealed) {
  return seal.Open(sealed.head, sealed.body, sealed.tag);
}

TEST(FrameSeal, OpensWhatWasSealed) {
  FrameSeal seal(kSecret, StreamDirection::kFromCaller);
  FrameSeal open(kSecret, StreamDirection::kFromCaller);
  for (uint32_t number = 0; number < 5; ++number) {
    Sealed sealed = SealNext(seal, number);
    EXPECT_NE(sealed.body, RandomBytes(1000, number));
    ASSERT_TRUE(open.Open(sealed.head, sealed.body, sealed.tag).ok()) << number;
    EXPECT_EQ(sealed.body, RandomBytes(1000, number));
  }
}

TEST(FrameSeal, NoticesEveryChangedBit) {
  FrameSeal seal(kSecret, StreamDirection::kFromCaller);
  const Sealed good = SealNext(seal, 1);
  const auto opens = [](const Sealed& sealed) {
    FrameSeal open(kSecret, StreamDirection::kFromCaller);
    return Open(open, sealed).ok();
  };
  ASSERT_TRUE(opens(good));
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    Sealed bad = good;
    const std::span<std::byte> parts[] = {bad.head, bad.body, bad.tag};
    const std::span<std::byte> part = parts[i % 3];
    part[random() % part.size()] ^= static_cast<std::byte>(1u << random() % 8);
    EXPECT_FALSE(opens(bad)) << i;
  }
}

TEST(FrameSeal, RefusesFramesOutOfTheirPlace) {
  FrameSeal seal(kSecret, StreamDirection::kFromCaller);
  const Sealed first = SealNext(seal, 1);
  const Sealed second = SealNext(seal, 2);
  FrameSeal twice(kSecret, StreamDirection::kFromCaller);
  ASSERT_TRUE(Open(twice, first).ok());
  EXPECT_FALSE(Open(twice, first).ok());
  FrameSeal left_out(kSecret, StreamDirection::kFromCaller);
  EXPECT_FALSE(Open(left_out, second).ok());
  FrameSeal turned(kSecret, StreamDirection::kToCaller);
  EXPECT_FALSE(Open(turned, first).ok());
  FrameSeal of_another_lane(std::string(32, 'x'), StreamDirection::kFromCaller);
  EXPECT_FALSE(Open(of_another_lane, first).ok());
}

TEST(FrameSeal, ChangesItsKeyInTime) {
  FrameSeal seal(kSecret, StreamDirection::kToCaller, FrameSeal::kFramesOfKey - 2);
  FrameSeal open(kSecret, StreamDirection::kToCaller, FrameSeal::kFramesOfKey - 2);
  for (uint32_t number = 0; number < 4; ++number) {
    EXPECT_TRUE(Open(open, SealNext(seal, number)).ok()) << number;
  }
  // The same number under another key.
  FrameSeal first(kSecret, StreamDirection::kToCaller, 0);
  FrameSeal later(kSecret, StreamDirection::kToCaller, FrameSeal::kFramesOfKey);
  EXPECT_NE(SealNext(first, 1).body, SealNext(later, 1).body);
}

TEST(FrameSeal, ProvesTheSecretWithoutShowingIt) {
  EXPECT_EQ(StreamProof(kSecret), StreamProof(kSecret));
  EXPECT_NE(StreamProof(kSecret), StreamProof(std::string(32, 'x')));
  EXPECT_NE(std::memcmp(StreamProof(kSecret).data(), kSecret.data(), 32), 0);
}

// Frames of both kinds, as the other end sends them.
std::vector<std::byte> Stream(const std::string& secret, std::span<const std::byte> part) {
  std::optional<FrameSeal> seal;
  if (!secret.empty()) seal.emplace(secret, StreamDirection::kFromCaller);
  std::vector<std::byte> bytes;
  const auto add = [&](const StreamFrame& frame, std::vector<std::byte> body) {
    std::array<std::byte, kSealTagBytes> tag{};
    if (seal) seal->Seal(BytesOf(frame), body, body.data(), tag);
    const auto head = BytesOf(frame);
    bytes.insert(bytes.end(), head.begin(), head.end());
    bytes.insert(bytes.end(), body.begin(), body.end());
    if (seal) bytes.insert(bytes.end(), tag.begin(), tag.end());
  };
  add({.kind = StreamFrame::Kind::kMessage,
       .header_bytes = 8,
       .body_bytes = 18,
       .id = 1,
       .value = 10},
      RandomBytes(18, 1));
  add({.kind = StreamFrame::Kind::kWanted, .id = 7}, {});
  add({.kind = StreamFrame::Kind::kPart, .body_bytes = static_cast<uint32_t>(part.size()), .id = 2},
      {part.begin(), part.end()});
  add({.kind = StreamFrame::Kind::kRefused, .id = 8}, {});
  return bytes;
}

class StreamInputTest : public testing::TestWithParam<std::string> {};

TEST_P(StreamInputTest, TakesFramesApartHoweverTheyArrive) {
  const std::vector<std::byte> part = RandomBytes(5000, 9);
  const std::vector<std::byte> stream = Stream(GetParam(), part);
  std::mt19937 random(4);
  for (int round = 0; round < 50; ++round) {
    std::vector<std::byte> target(part.size());
    std::vector<StreamFrame::Kind> kinds;
    StreamInput input(GetParam(), StreamDirection::kFromCaller,
                      {.target_of = [&](const StreamFrame&) -> absl::StatusOr<std::byte*> {
                         return target.data();
                       },
                       .on_frame =
                           [&](const StreamFrame& frame, std::span<const std::byte> body) {
                             kinds.push_back(frame.kind);
                             if (kinds.size() == 1) {
                               const auto expected = RandomBytes(18, 1);
                               EXPECT_TRUE(std::equal(body.begin(), body.end(), expected.begin(),
                                                      expected.end()));
                             }
                             return absl::OkStatus();
                           }});
    for (size_t at = 0; at < stream.size();) {
      size_t left = std::min<size_t>(stream.size() - at, 1 + random() % (round < 25 ? 40 : 9000));
      size_t taken = 0;
      for (const iovec& room : input.Room()) {
        const size_t count = std::min(left, room.iov_len);
        if (count > 0) std::memcpy(room.iov_base, stream.data() + at + taken, count);
        taken += count;
        left -= count;
      }
      ASSERT_GT(taken, 0u);
      ASSERT_TRUE(input.Filled(taken).ok());
      at += taken;
    }
    EXPECT_THAT(kinds, testing::ElementsAre(StreamFrame::Kind::kMessage, StreamFrame::Kind::kWanted,
                                            StreamFrame::Kind::kPart, StreamFrame::Kind::kRefused));
    EXPECT_EQ(target, part);
  }
}

INSTANTIATE_TEST_SUITE_P(Seals, StreamInputTest, testing::Values("", kSecret),
                         [](const auto& lane) { return lane.param.empty() ? "plain" : "sealed"; });

TEST(StreamFrameTest, RefusesWhatNoFrameMayBe) {
  const auto parses = [](const StreamFrame& frame) {
    return ParseStreamFrame(BytesOf(frame)).ok();
  };
  using Kind = StreamFrame::Kind;
  EXPECT_TRUE(parses({.kind = Kind::kWanted, .id = 1}));
  EXPECT_FALSE(parses({.magic = 1, .kind = Kind::kWanted, .id = 1}));
  EXPECT_FALSE(parses({.kind = static_cast<Kind>(9), .id = 1}));
  EXPECT_FALSE(parses({.kind = Kind::kWanted, .id = 0}));
  EXPECT_FALSE(parses({.kind = Kind::kRefused, .body_bytes = 1, .id = 1}));
  EXPECT_FALSE(parses({.kind = Kind::kMessage, .header_bytes = 129, .body_bytes = 129, .id = 1}));
  EXPECT_FALSE(parses({.kind = Kind::kMessage, .body_bytes = 5, .id = 1, .value = 6}));
  EXPECT_FALSE(parses({.kind = Kind::kMessage, .id = 1, .value = kWirePayloadMax + 1}));
  EXPECT_FALSE(parses({.kind = Kind::kPart, .id = 1}));
  EXPECT_FALSE(parses({.kind = Kind::kPart, .body_bytes = kStreamPartBytes + 1, .id = 1}));
  EXPECT_FALSE(parses({.kind = Kind::kPart, .body_bytes = 8, .id = 1, .value = 8}));
  EXPECT_FALSE(parses({.kind = Kind::kPart, .body_bytes = 8, .id = 1, .value = kWirePayloadMax}));
}

// Somebody on the path between two wires.
class WireOnThePath : public testing::TestWithParam<std::string> {
 protected:
  // Its address leads through the proxy.
  static std::string Through(TcpProxy& proxy, const Wire& wire) {
    auto address = ParseWireAddress(wire.address());
    EXPECT_TRUE(address.ok());
    address->endpoint = proxy.endpoint();
    return FormatWireAddress(*address);
  }
  static std::string EndpointOf(const Wire& wire) {
    return ParseWireAddress(wire.address())->endpoint;
  }
  static std::unique_ptr<Wire> Make(WireReceiver& receiver) {
    auto wire = MakeTestWire(GetParam(), receiver);
    EXPECT_TRUE(wire.ok()) << wire.status();
    return *std::move(wire);
  }

  TestReceiver receiver_;
  TestReceiver nobody_;
};

TEST_P(WireOnThePath, AProxyThatChangesNothingIsNotNoticed) {
  const auto target = Make(receiver_);
  const auto source = Make(nobody_);
  TcpProxy proxy(EndpointOf(*target), [](const TcpProxy::Chunk&) {});
  TestSender sent;
  auto lane = source->Connect(Through(proxy, *target), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  for (uint64_t i = 0; i < 4; ++i) {
    ASSERT_TRUE(sent.Put(**lane, MakeMessage(i, 600'000)).ok());
  }
  ASSERT_TRUE(sent.WaitDone(4));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 4u);
  EXPECT_EQ(proxy.connections(), 2u);  // the handshake's and the link's
  receiver_.ExpectSound();
}

// Every kind of byte is hit: of hello, of headers, of bodies, of tags; in both directions.
TEST_P(WireOnThePath, AChangedByteEndsTheLaneAndNeverLands) {
  if (GetParam() != "sealed") GTEST_SKIP() << "a plain lane's bytes are the slab's check's to hold";
  std::mt19937 random(8);
  int broken = 0;
  for (int round = 0; round < 60; ++round) {
    TestReceiver receiver;
    const auto target = Make(receiver);
    const auto source = Make(nobody_);
    const bool to_target = round % 4 != 0;
    // The first 64 bytes are the link's hello, then come frames; early offsets hit small ones.
    const size_t offset = to_target ? random() % (round % 2 == 0 ? 700'000 : 400) : random() % 150;
    bool changed = false;
    TcpProxy proxy(EndpointOf(*target), [&](const TcpProxy::Chunk& chunk) {
      if (chunk.connection != 1 || chunk.to_target != to_target || offset < chunk.offset) return;
      if (offset >= chunk.offset + chunk.bytes.size()) return;
      chunk.bytes[offset - chunk.offset] ^= 0x40;
      changed = true;
    });
    TestSender sent;
    auto lane = source->Connect(Through(proxy, *target), 10'000);
    size_t puts = 0;
    for (uint64_t i = 0; lane.ok() && i < 3; ++i) {
      puts += sent.Put(**lane, MakeMessage(i, 300'000)).ok() ? 1 : 0;
    }
    ASSERT_TRUE(sent.WaitDone(puts)) << "round " << round << ", offset " << offset;
    if (lane.ok()) lane->reset();
    ASSERT_TRUE(receiver.WaitSettled());
    receiver.ExpectSound();  // what landed is whole
    proxy.Stop();
    if (!changed) continue;
    ++broken;
    EXPECT_LT(sent.count(absl::StatusCode::kOk), 3u) << "round " << round << ", offset " << offset;
  }
  EXPECT_GT(broken, 40);
}

TEST_P(WireOnThePath, ACutConnectionEndsTheLane) {
  std::mt19937 random(9);
  for (int round = 0; round < 12; ++round) {
    TestReceiver receiver;
    const auto target = Make(receiver);
    const auto source = Make(nobody_);
    const size_t offset = random() % 800'000;
    TcpProxy proxy(EndpointOf(*target), [&](const TcpProxy::Chunk& chunk) {
      if (chunk.connection == 1 && chunk.to_target && offset < chunk.offset + chunk.bytes.size()) {
        proxy.CutAll();
      }
    });
    TestSender sent;
    auto lane = source->Connect(Through(proxy, *target), 10'000);
    size_t puts = 0;
    for (uint64_t i = 0; lane.ok() && i < 3; ++i) {
      puts += sent.Put(**lane, MakeMessage(i, 300'000)).ok() ? 1 : 0;
    }
    ASSERT_TRUE(sent.WaitDone(puts));
    ASSERT_TRUE(receiver.WaitSettled());
    // The answer to what landed may be lost, and nothing else.
    EXPECT_LE(sent.count(absl::StatusCode::kOk), receiver.landed());
    EXPECT_LT(sent.count(absl::StatusCode::kOk), 3u);
    receiver.ExpectSound();
  }
}

// A recorded lane cannot be played again: a lane's name is used once, and its keys are this lane's.
TEST_P(WireOnThePath, ARecordedLaneCannotBePlayedAgain) {
  const auto target = Make(receiver_);
  const auto source = Make(nobody_);
  Mutex mutex;
  std::vector<std::string> recorded(2);
  TcpProxy proxy(EndpointOf(*target), [&](const TcpProxy::Chunk& chunk) {
    MutexLock lock(mutex);
    if (chunk.to_target)
      recorded.at(chunk.connection).append(chunk.bytes.data(), chunk.bytes.size());
  });
  TestSender sent;
  auto lane = source->Connect(Through(proxy, *target), 10'000);
  ASSERT_TRUE(lane.ok()) << lane.status();
  ASSERT_TRUE(sent.Put(**lane, MakeMessage(1, 100'000)).ok());
  ASSERT_TRUE(sent.WaitDone(1));
  ASSERT_EQ(receiver_.landed(), 1u);
  {
    MutexLock lock(mutex);
    for (const std::string& bytes : recorded) ExpectClosesAfter(EndpointOf(*target), bytes);
  }
  EXPECT_EQ(receiver_.landed(), 1u);
  EXPECT_EQ(receiver_.announced(), 1u);
  ASSERT_TRUE(sent.Put(**lane, MakeMessage(2, 100'000)).ok());  // The lane goes on.
  ASSERT_TRUE(sent.WaitDone(2));
  EXPECT_EQ(sent.count(absl::StatusCode::kOk), 2u);
}

INSTANTIATE_TEST_SUITE_P(Lanes, WireOnThePath, testing::Values("tcp", "sealed"),
                         [](const auto& lane) { return lane.param; });

}  // namespace
}  // namespace penstock
