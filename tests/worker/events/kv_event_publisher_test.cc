#include "worker/events/kv_event_publisher.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <nlohmann/json.hpp>

#include "base/lifecycle.h"
#include "kvstore/manager/kv_cache_manager.h"
#include "tests/support/wait_until.h"
#include "tests/worker/events/zmtp_text.h"

namespace penstock {
namespace {

constexpr KvLayout kLayout{.layers = 1, .kv_heads = 1, .head_dim = 8, .block_tokens = 16};
constexpr int64_t kPool = 64;
constexpr char kTopic[] = "kv@w@m";
constexpr char kEnd[] = "(the end)";
using Frames = std::vector<std::string>;

// A peer of ZeroMQ, or a stranger.
class Caller {
 public:
  explicit Caller(const std::string& endpoint, int receive_bytes = 0)
      : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    if (receive_bytes > 0) {
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_bytes, sizeof(receive_bytes));
    }
    const timeval patience{.tv_sec = 60, .tv_usec = 0};
    setsockopt(fd_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const int one = 1;
    setsockopt(fd_, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    sockaddr_in address{.sin_family = AF_INET,
                        .sin_port = htons(ParseHostPort(endpoint)->port),
                        .sin_addr = {.s_addr = htonl(INADDR_LOOPBACK)}};
    EXPECT_EQ(connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
  }
  Caller(const std::string& endpoint, const std::string& type) : Caller(endpoint) {
    Say(Greeting() + Ready(type));
    Read(64);  // its greeting
    EXPECT_EQ(Frame().substr(1, 5), "READY");
  }
  ~Caller() { close(fd_); }
  Caller(const Caller&) = delete;
  Caller& operator=(const Caller&) = delete;

  void Say(const std::string& bytes) {
    EXPECT_EQ(send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  // Exactly so many bytes, or fewer before the end.
  std::string Read(size_t count) {
    std::string bytes(count, '\0');
    size_t have = 0;
    while (have < count) {
      const ssize_t got = recv(fd_, bytes.data() + have, count - have, 0);
      if (got <= 0) break;
      have += static_cast<size_t>(got);
    }
    bytes.resize(have);
    return bytes;
  }
  std::string Frame(bool* more = nullptr) {
    const std::string flags = Read(1);
    if (flags.empty()) return kEnd;
    if (more != nullptr) *more = (flags[0] & 1) != 0;
    uint64_t length = 0;
    for (const char byte : Read((flags[0] & 2) != 0 ? 8 : 1)) {
      length = length << 8 | static_cast<uint8_t>(byte);
    }
    return Read(length);
  }
  Frames Message() {
    Frames frames;
    for (bool more = true; more;) frames.push_back(Frame(&more));
    return frames;
  }
  bool ClosedByOther() {
    std::string byte(1, '\0');
    ssize_t got = 1;
    while (got > 0) got = recv(fd_, byte.data(), 1, 0);
    return got == 0 || errno == ECONNRESET;
  }

 private:
  const int fd_;
};

uint64_t Number(const std::string& bytes) {
  uint64_t number = 0;
  for (const char byte : bytes) number = number << 8 | static_cast<uint8_t>(byte);
  return number;
}

nlohmann::json EventsIn(const std::string& payload) {
  return nlohmann::json::from_msgpack(payload.begin(), payload.end())[1];
}

class KvEventPublisherTest : public ::testing::Test {
 protected:
  static absl::StatusOr<std::unique_ptr<KvEventPublisher>> Open(KvCacheManager& cache,
                                                                KvEventMetrics& metrics,
                                                                const std::string& listen) {
    return KvEventPublisher::Start(
        {.listen = listen, .topic = kTopic},
        std::make_unique<KvEventSource>([&cache] { return cache.Subscribe(); }, *cache.tokens()),
        metrics);
  }
  void Serve(uint32_t seed) {
    const PromptBlocks prompt = cache_->NameBlocks("", std::vector<uint32_t>(16, seed));
    auto admission = cache_->Admit(prompt, {.held_max = 1, .blocks = 1});
    ASSERT_TRUE(admission.has_value());
    std::vector<BlockRef> pages = std::move(admission->held);
    for (BlockRef& page : admission->credit.Take(admission->credit.blocks())) {
      pages.push_back(std::move(page));
    }
    cache_->Insert(admission->access, prompt, pages);
  }
  // Each as a batch of its own.
  void ServeOneByOne(uint32_t first, uint32_t last) {
    ASSERT_TRUE(WaitUntil([&] { return metrics_.batches.Value() > 0; }));  // AllBlocksCleared
    for (uint32_t seed = first; seed <= last; ++seed) {
      const double before = metrics_.batches.Value();
      Serve(seed);
      ASSERT_TRUE(WaitUntil([&] { return metrics_.batches.Value() > before; }));
    }
  }
  std::unique_ptr<Caller> Subscriber(const std::string& topic = "kv@") {
    const double before = metrics_.subscribers.Value();
    auto caller = std::make_unique<Caller>(publisher_->endpoint(), "SUB");
    caller->Say(Subscription(topic));
    // A subscription has no answer, but a ping behind it has one.
    caller->Say(Command("\4PINGxx"));
    std::string frame = caller->Frame();  // perhaps of batches that come before the answer
    while (frame != "\4PONG" && frame != kEnd) frame = caller->Frame();
    EXPECT_EQ(frame, "\4PONG");
    EXPECT_GT(metrics_.subscribers.Value(), before);
    return caller;
  }

  ManualClock clock_;
  std::unique_ptr<BlockPool> pool_ = *BlockPool::Create(kLayout, kPool);
  std::unique_ptr<KvCacheManager> cache_ = *KvCacheManager::Create(
      *pool_, clock_,
      {.policy = "lru", .model_fingerprint = 1, .kv_format = "bf16", .keep_tokens = true});
  MetricsRegistry registry_;
  KvEventMetrics metrics_{registry_};
  std::unique_ptr<KvEventPublisher> publisher_ = *Open(*cache_, metrics_, "127.0.0.1:0");
};

TEST_F(KvEventPublisherTest, EverySubscriberOfTheTopicGetsEveryBatch) {
  ASSERT_TRUE(WaitUntil([&] { return metrics_.batches.Value() == 1; }));  // AllBlocksCleared
  const auto first = Subscriber("kv@"), second = Subscriber(""), other = Subscriber("kv@other");
  Serve(1);
  for (Caller* caller : {first.get(), second.get()}) {
    const Frames message = caller->Message();
    ASSERT_EQ(message.size(), 3u);
    EXPECT_EQ(message[0], kTopic);
    EXPECT_EQ(message[1].size(), 8u);
    EXPECT_EQ(Number(message[1]), 1u);
    const nlohmann::json event = EventsIn(message[2])[0];
    EXPECT_EQ(event[0], "BlockStored");
    EXPECT_EQ(event[3], std::vector<uint32_t>(16, 1));
  }
  other->Say(Command("\4PINGxx"));
  EXPECT_EQ(other->Frame(), "\4PONG");  // and nothing before it
  EXPECT_EQ(metrics_.stored.Value(), 1);
  EXPECT_EQ(metrics_.subscribers.Value(), 3);
}

TEST_F(KvEventPublisherTest, WhoMissedBatchesAsksForThem) {
  ServeOneByOne(1, 5);
  for (const char* type : {"REQ", "DEALER"}) {
    Caller caller(publisher_->endpoint(), type);
    caller.Say(Request(4));
    for (uint64_t number = 4; number <= 5; ++number) {
      const Frames reply = caller.Message();
      ASSERT_EQ(reply.size(), 3u);
      EXPECT_EQ(reply[0], "");
      EXPECT_EQ(Number(reply[1]), number);
      EXPECT_EQ(EventsIn(reply[2])[0][3][0], number);
    }
    EXPECT_EQ(caller.Message(), (Frames{"", std::string(8, '\xff'), ""}));
    caller.Say(Request(100));
    EXPECT_EQ(caller.Message(), (Frames{"", std::string(8, '\xff'), ""}));
    caller.Say(Request(0));
    EXPECT_EQ(EventsIn(caller.Message()[2])[0][0], "AllBlocksCleared");
  }
  EXPECT_GE(metrics_.replays.Value(), 4);
}

TEST_F(KvEventPublisherTest, WhoSaysGarbageIsClosedAndOthersGoOn) {
  const auto subscriber = Subscriber();
  for (const std::string& words :
       {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(5000, '\xff'), std::string(5000, '\0'),
        Greeting() + std::string(5000, '\6'), Greeting() + Ready("SUB") + std::string(5000, '\7'),
        Greeting() + Ready("REQ") + std::string(64, '\2'), Greeting(1)}) {
    const double before = metrics_.refused.Value();
    Caller stranger(publisher_->endpoint());
    stranger.Say(words);
    EXPECT_TRUE(stranger.ClosedByOther());
    EXPECT_TRUE(WaitUntil([&] { return metrics_.refused.Value() == before + 1; }));
  }
  Serve(1);
  EXPECT_EQ(subscriber->Message()[0], kTopic);
}

TEST_F(KvEventPublisherTest, SilentStrangersKeepNoSubscriberOut) {
  const auto early = Subscriber();
  std::vector<std::unique_ptr<Caller>> strangers;
  for (size_t i = 0; i < 3 * KvEventPublisher::kConnectionsMax; ++i) {
    strangers.push_back(std::make_unique<Caller>(publisher_->endpoint()));
  }
  const auto late = Subscriber();
  EXPECT_GE(metrics_.refused.Value(), 2 * KvEventPublisher::kConnectionsMax);
  Serve(1);
  EXPECT_EQ(early->Message()[0], kTopic);
  EXPECT_EQ(late->Message()[0], kTopic);
}

TEST_F(KvEventPublisherTest, SubscribersBeyondTheLimitAreRefused) {
  std::vector<std::unique_ptr<Caller>> all;
  while (all.size() < KvEventPublisher::kConnectionsMax) all.push_back(Subscriber());
  Caller one_more(publisher_->endpoint());
  EXPECT_TRUE(one_more.ClosedByOther());
  all.clear();
  EXPECT_TRUE(WaitUntil([&] { return metrics_.subscribers.Value() == 0; }));
  Serve(1);
  Subscriber();
}

// It misses batches, which their numbers show, and nobody waits for it.
TEST_F(KvEventPublisherTest, ASlowSubscriberMissesBatches) {
  Caller slow(publisher_->endpoint(), /*receive_bytes=*/4096);
  slow.Say(Greeting() + Ready("SUB") + Subscription(""));
  ASSERT_TRUE(WaitUntil([&] { return metrics_.subscribers.Value() == 1; }));
  // Short prompts that displace each other, until its queue of 8 MiB is full.
  for (uint32_t seed = 1; metrics_.dropped.Value() == 0; ++seed) {
    ASSERT_LT(seed, 3'000'000u);
    Serve(seed);
  }
  const auto fast = Subscriber();
  Serve(5'000'000);
  EXPECT_EQ(fast->Message()[0], kTopic);
}

TEST_F(KvEventPublisherTest, ANewPublisherCountsFromZeroAndClearsTheIndex) {
  ServeOneByOne(1, 3);
  const std::string endpoint = publisher_->endpoint();
  publisher_.reset();
  publisher_ = *Open(*cache_, metrics_, endpoint);
  Caller caller(endpoint, "DEALER");
  ASSERT_TRUE(WaitUntil([&] { return metrics_.cleared.Value() == 2; }));
  caller.Say(Request(0));
  const Frames reply = caller.Message();
  EXPECT_EQ(Number(reply[1]), 0u);
  const nlohmann::json events = EventsIn(reply[2]);
  EXPECT_EQ(events[0][0], "AllBlocksCleared");
  EXPECT_EQ(events.size(), 4u);  // and what is cached
}

TEST_F(KvEventPublisherTest, APortInUseIsAnErrorThatNamesTheFlag) {
  const auto second = Open(*cache_, metrics_, publisher_->endpoint());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_NE(second.status().message().find("kv_events_listen"), absl::string_view::npos);
}

}  // namespace
}  // namespace penstock
