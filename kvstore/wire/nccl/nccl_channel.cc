#include "kvstore/wire/nccl/nccl_channel.h"

#include <cstring>
#include <deque>
#include <list>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/log/log.h"
#include "base/mutex.h"

namespace penstock {
namespace {

// NCCL offers nothing to wait on, so the thread polls.
constexpr Duration kPollInterval = std::chrono::microseconds(50);
// Extra time for an ended lane's thread, beyond the steps that have their own limits.
constexpr Duration kGrace = std::chrono::seconds(1);

// The state shared by a channel, its thread and its context. It outlives them if NCCL never returns
// from a call.
struct Shared {
  struct Post {
    size_t slot = 0;
    size_t bytes = 0;
  };

  // Constant.
  std::shared_ptr<const NcclLibrary> library;
  std::shared_ptr<const TransferDevice> device;
  NcclOptions options;
  NcclEnd end = NcclEnd::kSender;
  std::string id;  // the receiver's

  // Used on the loop's thread only.
  NcclChannel::Events events;
  bool muted = false;

  // Used on the channel's thread until on_ready, then also on the loop's.
  std::vector<std::byte*> slots;

  Mutex mutex;
  CondVar changed;
  WireLoop* loop GUARDED_BY(mutex) = nullptr;  // null once the loop may be gone
  std::deque<Post> posts GUARDED_BY(mutex);
  bool stop GUARDED_BY(mutex) = false;
  bool failed GUARDED_BY(mutex) = false;
  bool peer_stopped GUARDED_BY(mutex) = false;
  bool ended GUARDED_BY(mutex) = false;
};

void PostEvent(const std::shared_ptr<Shared>& shared,
               std::function<void(NcclChannel::Events&)> call) {
  MutexLock lock(shared->mutex);
  if (shared->loop == nullptr) return;
  shared->loop->Post([shared, call = std::move(call)] {
    if (!shared->muted) call(shared->events);
  });
}

// Waits at most kPollInterval; false when the channel was stopped.
bool Pause(Shared& shared) {
  MutexLock lock(shared.mutex);
  shared.changed.WaitFor(shared.mutex, kPollInterval);
  return !shared.stop;
}

// The code that runs on a channel's thread.
class Worker {
 public:
  explicit Worker(std::shared_ptr<Shared> shared)
      : shared_(std::move(shared)),
        communicator_({.library = *shared_->library,
                       .device = *shared_->device,
                       .times = shared_->options.times,
                       .pause = [state = shared_.get()] { return Pause(*state); }}) {}

  void Run();

 private:
  absl::Status Open();
  absl::Status AllocateSlots();
  absl::Status Serve();
  absl::StatusOr<std::optional<Shared::Post>> NextPost();
  absl::Status PostPiece(const Shared::Post& post);
  absl::Status TakeMoved();
  bool WaitUntilBothStopped();
  void Close(bool failed);

  const std::shared_ptr<Shared> shared_;
  NcclCommunicator communicator_;
  std::deque<size_t> posted_;  // slots in the order of posting
};

void Worker::Run() {
  shared_->device->Select();
  absl::Status status = Open();
  if (status.ok()) {
    PostEvent(shared_, [](NcclChannel::Events& events) { events.on_ready(); });
    status = Serve();
  }
  PostEvent(shared_, [status = std::move(status)](NcclChannel::Events& events) {
    events.on_failed(status);
  });
  Close(WaitUntilBothStopped());
  MutexLock lock(shared_->mutex);
  shared_->ended = true;
  shared_->changed.NotifyAll();
}

absl::Status Worker::AllocateSlots() {
  for (size_t i = 0; i < shared_->options.slots; ++i) {
    std::byte* slot = shared_->device->AllocatePinned(shared_->options.slot_bytes);
    if (slot == nullptr) {
      return ResourceExhausted("{} bytes of page-locked memory cannot be allocated",
                               shared_->options.slot_bytes);
    }
    shared_->slots.push_back(slot);
  }
  return absl::OkStatus();
}

absl::Status Worker::Open() {
  RETURN_IF_ERROR(AllocateSlots());
  nccl::UniqueId id{};
  if (shared_->end == NcclEnd::kReceiver) {
    std::memcpy(&id, shared_->id.data(), sizeof(id));
  } else {
    ASSIGN_OR_RETURN(id, communicator_.NewId());
    std::string text(id.internal, sizeof(id.internal));
    PostEvent(shared_,
              [text = std::move(text)](NcclChannel::Events& events) { events.on_id(text); });
  }
  return communicator_.Open(id, shared_->end);
}

// Serves posts until the channel stops (CANCELLED) or fails.
absl::Status Worker::Serve() {
  while (true) {
    ASSIGN_OR_RETURN(const auto post, NextPost());
    if (post) RETURN_IF_ERROR(PostPiece(*post));
    RETURN_IF_ERROR(TakeMoved());
  }
}

absl::StatusOr<std::optional<Shared::Post>> Worker::NextPost() {
  MutexLock lock(shared_->mutex);
  if (communicator_.posted() > 0) {
    if (shared_->posts.empty()) shared_->changed.WaitFor(shared_->mutex, kPollInterval);
  } else {
    while (!shared_->stop && shared_->posts.empty()) shared_->changed.Wait(shared_->mutex);
  }
  if (shared_->stop) return Cancelled("the lane was closed");
  if (shared_->posts.empty()) return std::nullopt;
  const Shared::Post post = shared_->posts.front();
  shared_->posts.pop_front();
  return post;
}

absl::Status Worker::PostPiece(const Shared::Post& post) {
  RETURN_IF_ERROR(communicator_.Post(shared_->slots[post.slot], post.bytes));
  posted_.push_back(post.slot);
  PostEvent(shared_, [slot = post.slot](NcclChannel::Events& events) { events.on_posted(slot); });
  return absl::OkStatus();
}

absl::Status Worker::TakeMoved() {
  while (true) {
    ASSIGN_OR_RETURN(const bool moved, communicator_.TakeMoved());
    if (!moved) return absl::OkStatus();
    PostEvent(shared_,
              [slot = posted_.front()](NcclChannel::Events& events) { events.on_moved(slot); });
    posted_.pop_front();
  }
}

// Returns true when either end has failed.
bool Worker::WaitUntilBothStopped() {
  MutexLock lock(shared_->mutex);
  while (!shared_->stop) shared_->changed.Wait(shared_->mutex);
  const TimePoint deadline = std::chrono::steady_clock::now() + shared_->options.times.close;
  while (!shared_->peer_stopped) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return true;
    shared_->changed.WaitFor(shared_->mutex, left);
  }
  return shared_->failed;
}

void Worker::Close(bool failed) {
  if (communicator_.Close(failed)) {
    for (std::byte* slot : shared_->slots) shared_->device->FreePinned(slot);
    return;
  }
  LogError("nccl_not_aborted",
           "NCCL has not ended a communicator: {} bytes of page-locked memory stay taken, because "
           "it may still write to them",
           shared_->slots.size() * shared_->options.slot_bytes);
}

class Channel final : public NcclChannel {
 public:
  explicit Channel(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {}
  ~Channel() override {
    Stop(/*failed=*/false);
    PeerStopped();
  }

  std::byte* slot(size_t index) override { return shared_->slots[index]; }
  void Post(size_t slot, size_t bytes) override {
    PENSTOCK_CHECK_LE(bytes, shared_->options.slot_bytes);
    MutexLock lock(shared_->mutex);
    shared_->posts.push_back({.slot = slot, .bytes = bytes});
    shared_->changed.NotifyAll();
  }
  void Stop(bool failed) override {
    shared_->muted = true;
    MutexLock lock(shared_->mutex);
    shared_->stop = true;
    shared_->failed |= failed;
    shared_->changed.NotifyAll();
  }
  void PeerStopped() override {
    MutexLock lock(shared_->mutex);
    shared_->peer_stopped = true;
    shared_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<Shared> shared_;
};

class Context final : public NcclContext {
 public:
  Context(const NcclOptions& options, std::shared_ptr<const NcclLibrary> library,
          std::shared_ptr<const TransferDevice> device, WireLoop& loop)
      : options_(options), library_(std::move(library)), device_(std::move(device)), loop_(loop) {}
  ~Context() override;

  const std::string& version() const override { return library_->version(); }
  const NcclOptions& options() const override { return options_; }
  std::unique_ptr<NcclChannel> NewSender(NcclChannel::Events events) override {
    return New(NcclEnd::kSender, "", std::move(events));
  }
  std::unique_ptr<NcclChannel> NewReceiver(const std::string& id,
                                           NcclChannel::Events events) override {
    PENSTOCK_CHECK_EQ(id.size(), sizeof(nccl::UniqueId));
    return New(NcclEnd::kReceiver, id, std::move(events));
  }

 private:
  struct Running {
    std::shared_ptr<Shared> shared;
    std::thread thread;
  };

  std::unique_ptr<NcclChannel> New(NcclEnd end, const std::string& id, NcclChannel::Events events);
  static bool WaitForEnd(Shared& shared, TimePoint deadline);

  const NcclOptions options_;
  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<const TransferDevice> device_;
  WireLoop& loop_;
  std::list<Running> running_;  // includes some that have ended
};

std::unique_ptr<NcclChannel> Context::New(NcclEnd end, const std::string& id,
                                          NcclChannel::Events events) {
  running_.remove_if([](Running& running) {
    const bool ended = WaitForEnd(*running.shared, TimePoint());
    if (ended) running.thread.join();
    return ended;
  });
  auto shared = std::make_shared<Shared>();
  shared->library = library_;
  shared->device = device_;
  shared->options = options_;
  shared->end = end;
  shared->id = id;
  shared->events = std::move(events);
  {
    MutexLock lock(shared->mutex);
    shared->loop = &loop_;
  }
  running_.push_back({shared, std::thread([shared] { Worker(shared).Run(); })});
  return std::make_unique<Channel>(std::move(shared));
}

bool Context::WaitForEnd(Shared& shared, TimePoint deadline) {
  MutexLock lock(shared.mutex);
  while (!shared.ended) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    shared.changed.WaitFor(shared.mutex, left);
  }
  return true;
}

Context::~Context() {
  // The time for both ends to stop, for revoking pending operations, and for destroying the
  // communicator.
  const TimePoint deadline = std::chrono::steady_clock::now() + 3 * options_.times.close + kGrace;
  for (Running& running : running_) {
    if (WaitForEnd(*running.shared, deadline)) {
      running.thread.join();
      continue;
    }
    LogError("nccl_not_aborted",
             "NCCL does not return from a call; its thread is leaked until the worker restarts");
    {
      MutexLock lock(running.shared->mutex);
      running.shared->loop = nullptr;
    }
    running.thread.detach();  // docs/adr/0024-nccl-lane.md
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclContext>> NcclContext::Open(
    const NcclOptions& options, std::shared_ptr<const TransferDevice> device, WireLoop& loop) {
  ASSIGN_OR_RETURN(auto library, NcclLibrary::Load(options.library));
  return std::make_unique<Context>(options, std::move(library), std::move(device), loop);
}

}  // namespace penstock
