#include "kvstore/wire/nccl/nccl_channel.h"

#include <list>
#include <thread>
#include <utility>

#include "base/check.h"
#include "base/log/log.h"
#include "kvstore/wire/nccl/nccl_thread.h"

namespace penstock {
namespace {

// Extra time for an ended lane's thread, beyond the steps that have their own limits.
constexpr Duration kGrace = std::chrono::seconds(1);

class Channel final : public NcclChannel {
 public:
  explicit Channel(std::shared_ptr<NcclShared> shared) : shared_(std::move(shared)) {}
  ~Channel() override {
    Stop(/*failed=*/false);
    PeerStopped();
    MutexLock lock(shared_->mutex);
    shared_->closed = true;
    shared_->changed.NotifyAll();
  }

  std::byte* slot(size_t index) override { return shared_->slots[index]; }
  void Post(const Piece& piece) override {
    PENSTOCK_CHECK_LE(piece.bytes, shared_->options.slot_bytes);
    MutexLock lock(shared_->mutex);
    shared_->pieces.push_back(piece);
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
  void WhenQuiet(std::function<void()> call) override {
    {
      MutexLock lock(shared_->mutex);
      PENSTOCK_CHECK(shared_->stop);
      if (!shared_->quiet) return shared_->when_quiet.push_back(std::move(call));
    }
    call();
  }
  void Read(std::span<const std::byte> from, OnRead done) override {
    MutexLock lock(shared_->mutex);
    PENSTOCK_CHECK(shared_->stop);
    shared_->reads.push_back({.from = from, .done = std::move(done)});
    shared_->changed.NotifyAll();
  }

 private:
  const std::shared_ptr<NcclShared> shared_;
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
    std::shared_ptr<NcclShared> shared;
    std::thread thread;
  };

  std::unique_ptr<NcclChannel> New(NcclEnd end, const std::string& id, NcclChannel::Events events);
  static bool WaitForEnd(NcclShared& shared, TimePoint deadline);
  static bool IsDone(NcclShared& shared);
  void RunWhenQuiet(NcclShared& shared);

  const NcclOptions options_;
  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<const TransferDevice> device_;
  WireLoop& loop_;
  std::list<Running> running_;  // includes some that have ended
};

std::unique_ptr<NcclChannel> Context::New(NcclEnd end, const std::string& id,
                                          NcclChannel::Events events) {
  running_.remove_if([](Running& running) {
    const bool done = IsDone(*running.shared);
    if (done) running.thread.join();
    return done;
  });
  auto shared = std::make_shared<NcclShared>();
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
  running_.push_back({shared, std::thread([shared] { NcclThread(shared).Run(); })});
  return std::make_unique<Channel>(std::move(shared));
}

bool Context::WaitForEnd(NcclShared& shared, TimePoint deadline) {
  MutexLock lock(shared.mutex);
  while (!shared.ended) {
    const Duration left = deadline - std::chrono::steady_clock::now();
    if (left <= Duration::zero()) return false;
    shared.changed.WaitFor(shared.mutex, left);
  }
  return true;
}

// True when nothing is left to do for an ended channel.
bool Context::IsDone(NcclShared& shared) {
  MutexLock lock(shared.mutex);
  return shared.ended && shared.when_quiet.empty();
}

// Reports what waits for copies that have not ended: the wire does not exist any longer.
void Context::RunWhenQuiet(NcclShared& shared) {
  std::vector<WireLoop::Task> calls;
  {
    MutexLock lock(shared.mutex);
    calls.swap(shared.when_quiet);
  }
  for (WireLoop::Task& call : calls) loop_.Post(std::move(call));
}

Context::~Context() {
  // The time for both ends to stop, for revoking pending operations, for destroying the
  // communicator, and for the GPU's copies.
  const TimePoint deadline = std::chrono::steady_clock::now() + 4 * options_.times.close + kGrace;
  for (Running& running : running_) {
    if (WaitForEnd(*running.shared, deadline)) {
      running.thread.join();
      RunWhenQuiet(*running.shared);
      continue;
    }
    LogError("nccl_not_aborted",
             "NCCL does not return from a call; its thread is leaked until the worker restarts");
    {
      MutexLock lock(running.shared->mutex);
      running.shared->loop = nullptr;
    }
    running.thread.detach();  // docs/adr/0024-nccl-lane.md
    RunWhenQuiet(*running.shared);
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<NcclContext>> NcclContext::Open(
    const NcclOptions& options, std::shared_ptr<const TransferDevice> device, WireLoop& loop) {
  ASSIGN_OR_RETURN(auto library, NcclLibrary::Load(options.library));
  return std::make_unique<Context>(options, std::move(library), std::move(device), loop);
}

}  // namespace penstock
