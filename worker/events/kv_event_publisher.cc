#include "worker/events/kv_event_publisher.h"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "http/listening_socket.h"

namespace penstock {
namespace {

constexpr std::chrono::milliseconds kPollEvery{10};
constexpr int kAcceptsAtATime = 16;
constexpr size_t kBatchBlocks = 4096;  // about; a batch ends with the event that reaches it

size_t BlocksOf(const KvEvent& event) {
  if (const auto* stored = std::get_if<KvBlocksStored>(&event)) return stored->hashes.size();
  if (const auto* removed = std::get_if<KvBlocksRemoved>(&event)) return removed->hashes.size();
  return 1;
}

// The number of leading events that make one batch.
size_t BatchIn(std::span<const KvEvent> events) {
  size_t blocks = 0;
  size_t count = 0;
  while (count < events.size() && blocks < kBatchBlocks) blocks += BlocksOf(events[count++]);
  return count;
}

double SecondsSinceEpoch() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

}  // namespace

// Accepts connections while descriptors last.
class KvEventPublisher::Listener final : public EventLoop::Watcher {
 public:
  Listener(KvEventPublisher& publisher, int fd)
      : publisher_(publisher), fd_(fd), acceptor_([this](int client) { Refuse(client); }) {}
  ~Listener() override { close(fd_); }
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  void OnReady(uint32_t) override {
    for (int i = 0; i < kAcceptsAtATime; ++i) {
      const ReservedAcceptor::Step step = acceptor_.Accept(fd_);
      if (step.kind == ReservedAcceptor::Step::Kind::kNothing) return;
      if (step.kind == ReservedAcceptor::Step::Kind::kAccepted) {
        publisher_.TakeConnection(step.connection);
      } else if (step.kind == ReservedAcceptor::Step::Kind::kExhausted) {
        paused_ = true;
        return publisher_.loop_->Modify(fd_, 0);
      }
    }
  }
  void OnTick(TimePoint) override {
    if (!paused_ || !acceptor_.Restore()) return;
    paused_ = false;
    publisher_.loop_->Modify(fd_, EPOLLIN);
  }

 private:
  void Refuse(int client) const {
    publisher_.metrics_.refused.Increment();
    close(client);
  }

  KvEventPublisher& publisher_;
  const int fd_;
  ReservedAcceptor acceptor_;
  bool paused_ = false;  // until the next tick
};

// Looks for news of the cache, which tells nobody that it has some.
class KvEventPublisher::Pulse final : public EventLoop::Watcher {
 public:
  Pulse(KvEventPublisher& publisher, int timer) : publisher_(publisher), timer_(timer) {}
  ~Pulse() override { close(timer_); }
  Pulse(const Pulse&) = delete;
  Pulse& operator=(const Pulse&) = delete;

  void OnReady(uint32_t) override {
    uint64_t passed = 0;
    [[maybe_unused]] const ssize_t taken = read(timer_, &passed, sizeof(passed));
    publisher_.PublishNews();
  }
  void OnTick(TimePoint) override {}

 private:
  KvEventPublisher& publisher_;
  const int timer_;
};

absl::StatusOr<std::unique_ptr<KvEventPublisher>> KvEventPublisher::Start(
    Options options, std::unique_ptr<KvEventSource> source, KvEventMetrics& metrics) {
  std::unique_ptr<KvEventPublisher> publisher(
      new KvEventPublisher(std::move(options), std::move(source), metrics));
  RETURN_IF_ERROR(publisher->Open());
  return publisher;
}

KvEventPublisher::KvEventPublisher(Options options, std::unique_ptr<KvEventSource> source,
                                   KvEventMetrics& metrics)
    : options_(std::move(options)), source_(std::move(source)), metrics_(metrics) {}

KvEventPublisher::~KvEventPublisher() {
  if (loop_ != nullptr) loop_->Stop();
}

absl::Status KvEventPublisher::Open() {
  ASSIGN_OR_RETURN(loop_, EventLoop::Create());
  ASSIGN_OR_RETURN(const int listener, ListenOn(options_.listen, "--kv_events_listen", &endpoint_));
  RETURN_IF_ERROR(loop_->Add(listener, EPOLLIN, std::make_shared<Listener>(*this, listener)));
  const int timer = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
  if (timer < 0) return ResourceExhausted("cannot create a timer: {}", strerror(errno));
  const timespec every{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kPollEvery).count()};
  const itimerspec times{.it_interval = every, .it_value = every};
  timerfd_settime(timer, 0, &times, nullptr);
  RETURN_IF_ERROR(loop_->Add(timer, EPOLLIN, std::make_shared<Pulse>(*this, timer)));
  loop_->Start();
  return absl::OkStatus();
}

void KvEventPublisher::PublishNews() {
  const std::vector<KvEvent> events = source_->Take();
  std::span<const KvEvent> rest = events;
  while (!rest.empty()) {
    const size_t count = BatchIn(rest);
    PublishBatch(rest.first(count));
    rest = rest.subspan(count);
  }
}

void KvEventPublisher::PublishBatch(std::span<const KvEvent> events) {
  for (const KvEvent& event : events) metrics_.Count(event);
  metrics_.batches.Increment();
  const KvEventLog::Batch& batch = log_.Append(
      EncodeKvEvents(events, SecondsSinceEpoch(), options_.block_tokens, options_.form));
  std::string message;
  AppendZmtpFrame(message, options_.topic, /*more=*/true);
  AppendZmtpSequence(message, batch.sequence, /*more=*/true);
  AppendZmtpFrame(message, *batch.payload, /*more=*/false);
  const auto shared = std::make_shared<const std::string>(std::move(message));
  // A connection that closes leaves the list.
  const auto connections = connections_;
  for (const auto& connection : connections) connection->Publish(shared);
}

void KvEventPublisher::TakeConnection(int fd) {
  if (connections_.size() >= kConnectionsMax && !MakeRoom()) {
    metrics_.refused.Increment();
    close(fd);
    return;
  }
  const auto connection = std::make_shared<KvEventConnection>(
      KvEventConnection::Parts{
          .loop = *loop_, .topic = options_.topic, .log = log_, .metrics = metrics_},
      fd, [this, fd] {
        std::erase_if(connections_, [fd](const auto& one) { return one->fd() == fd; });
      });
  if (!loop_->Add(fd, EPOLLIN, connection).ok()) return metrics_.refused.Increment();
  connections_.push_back(connection);
  connection->Greet();
}

// Closes the oldest connection that has not shaken hands: strangers that are silent keep no
// subscriber out.
bool KvEventPublisher::MakeRoom() {
  const auto silent = std::find_if(connections_.begin(), connections_.end(),
                                   [](const auto& connection) { return !connection->ready(); });
  if (silent == connections_.end()) return false;
  const std::shared_ptr<KvEventConnection> connection = *silent;
  connection->Refuse();
  return true;
}

}  // namespace penstock
