#include "kvstore/wire/wire_loopback.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

#include "base/check.h"

namespace penstock {
namespace {

// One pending message. Guarded by its link's mutex, except the fields that are constant after Put.
struct Transfer {
  enum class State { kQueued, kAnnounced, kCopying, kLanded };

  std::span<const std::byte> head() const { return std::span(header).first(header_size); }

  std::array<std::byte, kWireHeaderMax> header;
  size_t header_size = 0;
  std::span<const std::byte> payload;
  std::function<void(absl::Status)> done;
  std::byte* target = nullptr;
  State state = State::kQueued;
  bool ended = false;
};

struct Link;

}  // namespace

// The thread of one wire and its task queue. Shared by the wire, the hub and the links that lead to
// it, because a link may outlive its target wire.
class LoopbackCore {
 public:
  using Task = std::function<void()>;

  // An empty `device_copy` means host memory only.
  LoopbackCore(WireReceiver& receiver, LoopbackHub::Copy device_copy)
      : receiver_(receiver), device_copy_(std::move(device_copy)), thread_([this] { Run(); }) {}

  // Runs `task` on the wire's thread. False once the wire is destroyed.
  bool Post(Task task, Duration delay = Duration::zero()) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    if (stopping_) return false;
    tasks_.emplace(std::chrono::steady_clock::now() + delay, std::move(task));
    changed_.NotifyOne();
    return true;
  }

  // Runs the tasks that are due, ends the thread and drops the other tasks.
  void Stop() EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyOne();
    }
    thread_.join();
    // A remaining task refers to its link, and the link refers to this core: dropping the tasks
    // breaks the cycle.
    std::multimap<TimePoint, Task> left;
    MutexLock lock(mutex_);
    left.swap(tasks_);
  }

  void AddIncoming(const std::shared_ptr<Link>& link) EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    std::erase_if(incoming_, [](const std::weak_ptr<Link>& other) { return other.expired(); });
    incoming_.push_back(link);
  }
  void BreakIncoming() EXCLUDES(mutex_);

  WireReceiver& receiver() { return receiver_; }
  bool takes_device_memory() const { return device_copy_ != nullptr; }
  absl::StatusOr<std::byte*> Announce(const Transfer& transfer) {
    if (!takes_device_memory())
      return receiver_.OnAnnounced(transfer.head(), transfer.payload.size());
    ASSIGN_OR_RETURN(const WireTarget target,
                     receiver_.OnAnnouncedAnywhere(transfer.head(), transfer.payload.size()));
    return target.data;
  }
  void Copy(std::byte* to, std::span<const std::byte> from) const {
    if (from.empty()) return;
    if (takes_device_memory()) return device_copy_(to, from.data(), from.size());
    std::memcpy(to, from.data(), from.size());
  }
  std::thread::id thread_id() const { return thread_.get_id(); }
  std::atomic<bool> reachable{true};
  std::atomic<int64_t> delay_ns{0};

 private:
  void Run() EXCLUDES(mutex_) {
    for (Task task = Next(); task; task = Next()) task();
  }

  Task Next() EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (true) {
      const auto now = std::chrono::steady_clock::now();
      const bool any = !tasks_.empty();
      if (any && tasks_.begin()->first <= now) {
        return std::move(tasks_.extract(tasks_.begin()).mapped());
      }
      if (stopping_) return nullptr;
      if (any) {
        changed_.WaitFor(mutex_, tasks_.begin()->first - now);
      } else {
        changed_.Wait(mutex_);
      }
    }
  }

  WireReceiver& receiver_;
  const LoopbackHub::Copy device_copy_;
  Mutex mutex_;
  CondVar changed_;
  // By due time; equal times keep their order. Bounded by the senders' WireLimits.
  std::multimap<TimePoint, Task> tasks_ GUARDED_BY(mutex_);
  std::vector<std::weak_ptr<Link>> incoming_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

namespace {

// The state shared by both ends of a lane. Shared ownership, because tasks on either wire's thread
// may outlive the lane.
struct Link : std::enable_shared_from_this<Link> {
  Link(std::shared_ptr<LoopbackCore> from, std::shared_ptr<LoopbackCore> to, WireBudget& wires)
      : sender(std::move(from)), receiver(std::move(to)), budget(wires) {}

  using TransferRef = std::shared_ptr<Transfer>;

  void Announce(const TransferRef& transfer) EXCLUDES(mutex);
  void Land(const TransferRef& transfer) EXCLUDES(mutex);
  void End(const TransferRef& transfer, const absl::Status& status) EXCLUDES(mutex);
  // Refuses further Puts and ends the pending ones.
  void Close(const absl::Status& status) EXCLUDES(mutex);

  const std::shared_ptr<LoopbackCore> sender;
  const std::shared_ptr<LoopbackCore> receiver;
  WireBudget& budget;  // the sending wire's; used only while the lane exists
  Mutex mutex;
  CondVar changed;
  bool open GUARDED_BY(mutex) = true;
  std::vector<TransferRef> transfers GUARDED_BY(mutex);  // pending
  size_t done_pending GUARDED_BY(mutex) = 0;             // ended, but `done` has not returned
};

void Link::Announce(const TransferRef& transfer) {
  {
    MutexLock lock(mutex);
    if (transfer->ended) return;
  }
  auto target = receiver->Announce(*transfer);
  if (!target.ok()) {
    End(transfer, Unavailable("the peer refused the message: {}", Message(target.status())));
    return;
  }
  bool lost = false;
  {
    MutexLock lock(mutex);
    lost = transfer->ended;
    transfer->target = *target;
    transfer->state = Transfer::State::kAnnounced;
  }
  if (lost) {
    receiver->receiver().OnLost(transfer->head(), *target);
    return;
  }
  const Duration delay(receiver->delay_ns.load());
  if (delay == Duration::zero()) {
    Land(transfer);
  } else {
    receiver->Post([self = shared_from_this(), transfer] { self->Land(transfer); }, delay);
  }
}

void Link::Land(const TransferRef& transfer) {
  {
    MutexLock lock(mutex);
    if (transfer->ended) return;  // End has posted OnLost already.
    transfer->state = Transfer::State::kCopying;
  }
  const size_t size = transfer->payload.size();
  receiver->Copy(transfer->target, transfer->payload);
  {
    MutexLock lock(mutex);
    transfer->state = Transfer::State::kLanded;
    changed.NotifyAll();
  }
  receiver->receiver().OnLanded(transfer->head(), std::span(transfer->target, size));
  End(transfer, absl::OkStatus());
}

void Link::End(const TransferRef& transfer, const absl::Status& status) {
  MutexLock lock(mutex);
  // The receiver's thread is reading the sender's buffer, so wait until the copy ends.
  while (transfer->state == Transfer::State::kCopying) changed.Wait(mutex);
  if (transfer->ended) return;
  transfer->ended = true;
  if (transfer->state == Transfer::State::kAnnounced) {
    receiver->Post([self = shared_from_this(), transfer] {
      self->receiver->receiver().OnLost(transfer->head(), transfer->target);
    });
  }
  std::erase(transfers, transfer);
  ++done_pending;
  const bool posted = sender->Post([self = shared_from_this(), transfer, status] {
    self->budget.Give(transfer->payload.size());
    transfer->done(status);
    transfer->done = nullptr;
    MutexLock relock(self->mutex);
    --self->done_pending;
    self->changed.NotifyAll();
  });
  PENSTOCK_CHECK(posted, "a lane has outlived its wire");
}

void Link::Close(const absl::Status& status) {
  std::vector<TransferRef> under_way;
  {
    MutexLock lock(mutex);
    open = false;
    under_way = transfers;
  }
  for (const TransferRef& transfer : under_way) End(transfer, status);
}

class LoopbackLane final : public WireLane {
 public:
  explicit LoopbackLane(std::shared_ptr<Link> link) : link_(std::move(link)) {
    link_->budget.LaneOpened();
  }

  ~LoopbackLane() override {
    PENSTOCK_CHECK(std::this_thread::get_id() != link_->sender->thread_id(),
                   "a lane is destroyed on its wire's own thread");
    link_->Close(Cancelled("the lane was closed"));
    MutexLock lock(link_->mutex);
    while (link_->done_pending > 0) link_->changed.Wait(link_->mutex);
    link_->budget.LaneClosed();
  }

  absl::Status Put(std::span<const std::byte> header, std::span<const std::byte> payload,
                   std::function<void(absl::Status)> done) override {
    RETURN_IF_ERROR(CheckPutSizes(header.size(), payload.size()));
    auto transfer = std::make_shared<Transfer>();
    std::copy(header.begin(), header.end(), transfer->header.begin());
    transfer->header_size = header.size();
    transfer->payload = payload;
    transfer->done = std::move(done);
    MutexLock lock(link_->mutex);
    if (!link_->open) return Unavailable("the lane is broken; connect again");
    RETURN_IF_ERROR(link_->budget.Take(payload.size()));
    link_->transfers.push_back(transfer);
    if (link_->receiver->reachable) {
      // Posted under the lock, so announcements are in the order of Put. If the receiver is being
      // destroyed, BreakIncoming ends the transfer.
      link_->receiver->Post([link = link_, transfer] { link->Announce(transfer); });
    }
    return absl::OkStatus();
  }

  bool TakesDeviceMemory() const override { return link_->receiver->takes_device_memory(); }
  absl::Status PutFromDevice(std::span<const std::byte> header, std::span<const std::byte> payload,
                             std::function<void(absl::Status)> done) override {
    PENSTOCK_CHECK(TakesDeviceMemory());
    return Put(header, payload, std::move(done));
  }
  std::string transport() const override { return "loopback"; }

 private:
  const std::shared_ptr<Link> link_;
};

}  // namespace

void LoopbackCore::BreakIncoming() {
  std::vector<std::weak_ptr<Link>> links;
  {
    MutexLock lock(mutex_);
    links = incoming_;
  }
  for (const auto& weak : links) {
    if (const auto link = weak.lock()) link->Close(Unavailable("the peer is gone"));
  }
}

class LoopbackWire final : public Wire {
 public:
  LoopbackWire(LoopbackHub& hub, WireReceiver& receiver, const WireLimits& limits)
      : hub_(hub), budget_(limits) {
    MutexLock lock(hub_.mutex_);
    core_ = std::make_shared<LoopbackCore>(receiver, hub_.device_copy_);
    address_ = fmt::format("loopback:{}", hub_.next_++);
    hub_.cores_[address_] = core_;
  }

  ~LoopbackWire() override {
    PENSTOCK_CHECK_EQ(budget_.lanes(), 0);
    {
      MutexLock lock(hub_.mutex_);
      hub_.cores_.erase(address_);
    }
    core_->BreakIncoming();
    core_->Stop();
  }

  std::string address() const override { return address_; }

  absl::StatusOr<std::unique_ptr<WireLane>> Connect(const std::string& address,
                                                    int64_t timeout_ms) override {
    MutexLock lock(hub_.mutex_);
    const auto found = hub_.cores_.find(address);
    if (found == hub_.cores_.end() || !found->second->reachable) {
      return Unavailable("wire: no peer at {} within {} ms", address, timeout_ms);
    }
    auto link = std::make_shared<Link>(core_, found->second, budget_);
    found->second->AddIncoming(link);
    return std::make_unique<LoopbackLane>(std::move(link));
  }

 private:
  LoopbackHub& hub_;
  std::shared_ptr<LoopbackCore> core_;
  WireBudget budget_;
  std::string address_;
};

void LoopbackHub::SetDelay(Duration delay) {
  MutexLock lock(mutex_);
  for (const auto& [address, core] : cores_) core->delay_ns = delay.count();
}

void LoopbackHub::SetDeviceCopy(Copy copy) {
  MutexLock lock(mutex_);
  device_copy_ = std::move(copy);
}

void LoopbackHub::BreakLanes(const std::string& address) {
  std::shared_ptr<LoopbackCore> core;
  {
    MutexLock lock(mutex_);
    const auto found = cores_.find(address);
    if (found == cores_.end()) return;
    core = found->second;
  }
  core->BreakIncoming();
}

void LoopbackHub::SetReachable(const std::string& address, bool reachable) {
  MutexLock lock(mutex_);
  const auto found = cores_.find(address);
  if (found != cores_.end()) found->second->reachable = reachable;
}

std::unique_ptr<Wire> MakeLoopbackWire(LoopbackHub& hub, WireReceiver& receiver,
                                       const WireLimits& limits) {
  return std::make_unique<LoopbackWire>(hub, receiver, limits);
}

}  // namespace penstock
