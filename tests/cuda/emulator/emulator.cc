#include "tests/cuda/emulator/emulator.h"

#include <algorithm>
#include <memory>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/device/device.cuh"
#include "tests/cuda/emulator/arithmetic.h"
#include "tests/cuda/emulator/fiber.h"

namespace penstock::cuda {
namespace emulator {
namespace {

constexpr uint32_t kAllLanes = ~0u;
constexpr size_t kSharedBytesMax = kSharedBytesOfAll;

enum class Collective { kNone, kSync, kLoad, kLoadTransposed, kTranspose, kMma, kShuffle, kBallot };

struct Warp {
  Lane lanes[kLanes];
  Collective collective = Collective::kNone;
  uint32_t argument = 0;  // must be equal in all lanes
  int arrived = 0;
  uint32_t ready = kAllLanes;  // a bit for each lane that neither waits nor has ended
};

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

void Perform(const Copy& copy) {
  if (copy.valid) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

// A thread's asynchronous copies, in groups, as cp.async.commit_group makes them.
class CopyQueue {
 public:
  void Clear() {
    copies_.clear();
    group_ends_.clear();
  }
  void Add(const Copy& copy) { copies_.push_back(copy); }
  void Commit() { group_ends_.push_back(copies_.size()); }

  // Performs the oldest groups until at most `pending` are left.
  void Wait(size_t pending) {
    if (group_ends_.size() <= pending) return;
    const size_t groups = group_ends_.size() - pending, count = group_ends_[groups - 1];
    for (size_t i = 0; i < count; ++i) Perform(copies_[i]);
    copies_.erase(copies_.begin(), copies_.begin() + static_cast<ptrdiff_t>(count));
    group_ends_.erase(group_ends_.begin(), group_ends_.begin() + static_cast<ptrdiff_t>(groups));
    for (size_t& end : group_ends_) end -= count;
  }

 private:
  std::vector<Copy> copies_;
  std::vector<size_t> group_ends_;
};

struct Thread {
  Fiber fiber;
  CopyQueue copies;
};

struct Schedule {
  Copies copies = Copies::kLate;
  Order order = Order::kAscending;
  int64_t launches = 0;
};
thread_local Schedule schedule;

// Marks functions that switch between emulated threads or pass registers between them. They run
// millions of times and are not code of a kernel, so sanitizers leave them out.
#define PENSTOCK_UNWATCHED __attribute__((no_sanitize("address", "undefined")))

// One launch; its blocks run one after the other on the same fibers.
class Machine {
 public:
  Machine(const LaunchShape& shape, const std::function<void()>& body)
      : shape_(shape), body_(body), caller_(Fiber::Caller()) {
    PENSTOCK_CHECK_GT(shape.threads, 0);
    PENSTOCK_CHECK_EQ(shape.threads % kLanes, 0);
    PENSTOCK_CHECK_LE(shape.threads, 1024);
    thread_storage_ = std::vector<Thread>(static_cast<size_t>(shape.threads));
    warp_storage_.resize(static_cast<size_t>(shape.threads / kLanes));
    threads_ = thread_storage_.data();
    warps_ = warp_storage_.data();
    PENSTOCK_CHECK_LE(shape.shared_bytes, kSharedBytesMax);
    // Exactly the requested size, so that a sanitizer detects accesses outside.
    memory_.reset(static_cast<uint8_t*>(
        std::aligned_alloc(128, std::max<size_t>(128, (shape.shared_bytes + 127) / 128 * 128))));
    shared_ = memory_.get();
  }

  void RunBlock(int x, int y, int z);
  void Enter();  // runs on a fiber

  PENSTOCK_UNWATCHED int thread() const { return thread_; }
  PENSTOCK_UNWATCHED Thread& self() { return threads_[thread_]; }
  PENSTOCK_UNWATCHED Warp& warp() { return warps_[thread_ / kLanes]; }
  PENSTOCK_UNWATCHED Lane& lane() { return warp().lanes[thread_ % kLanes]; }
  PENSTOCK_UNWATCHED uint8_t* shared() const { return shared_; }
  PENSTOCK_UNWATCHED void CheckShared(const void* p) const;

  int block[3] = {};

  PENSTOCK_UNWATCHED void SyncBlock();
  // Returns true in the lane that arrives last: it performs the collective for all lanes and then
  // calls Release().
  PENSTOCK_UNWATCHED bool Arrive(Collective collective, uint32_t argument);
  PENSTOCK_UNWATCHED void Release();

 private:
  struct Free {
    void operator()(uint8_t* p) const { std::free(p); }
  };
  PENSTOCK_UNWATCHED void Wait();       // lets others run until this thread is ready again
  PENSTOCK_UNWATCHED int Next() const;  // the thread that runs next

  const LaunchShape shape_;
  const std::function<void()>& body_;
  std::unique_ptr<Fiber> caller_;
  std::vector<Thread> thread_storage_;
  std::vector<Warp> warp_storage_;
  Thread* threads_ = nullptr;  // by pointer, because a call to a container would be watched
  Warp* warps_ = nullptr;
  std::unique_ptr<uint8_t, Free> memory_;
  uint8_t* shared_ = nullptr;
  int thread_ = 0;
  int alive_ = 0;
  int at_barrier_ = 0;
};

thread_local Machine* machine = nullptr;

void EnterFiber() { machine->Enter(); }

void Machine::RunBlock(int x, int y, int z) {
  block[0] = x, block[1] = y, block[2] = z;
  // 0xffff is a NaN in bf16, f16 and e4m3 alike.
  std::memset(memory_.get(), 0xff, shape_.shared_bytes);
  for (Warp& each : warp_storage_) each.arrived = 0, each.ready = kAllLanes;
  alive_ = shape_.threads;
  at_barrier_ = 0;
  for (Thread& thread : thread_storage_) {
    thread.copies.Clear();
    thread.fiber.Start(&EnterFiber);
  }
  thread_ = schedule.order == Order::kDescending ? shape_.threads - 1 : 0;
  Fiber::Switch(*caller_, self().fiber);
}

void Machine::Enter() {
  body_();
  if (--alive_ == 0) Fiber::Switch(self().fiber, *caller_);
  Wait();
  PENSTOCK_CHECK(false, "a thread went on after its end");
}

void Machine::Wait() {
  Fiber& from = self().fiber;
  warp().ready &= ~(1u << thread_ % kLanes);
  thread_ = Next();
  if (thread_ + 1 < shape_.threads) Fiber::Expect(threads_[thread_ + 1].fiber);
  Fiber::Switch(from, self().fiber);
}

int Machine::Next() const {
  const int count = shape_.threads / kLanes, own = thread_ / kLanes;
  const bool descending = schedule.order == Order::kDescending;
  const uint32_t below = (1u << thread_ % kLanes) - 1;
  // The rest of this warp comes first and, unless it runs as far as it can, its beginning last.
  uint32_t lanes = warps_[own].ready & (descending ? below : ~below);
  if (lanes == 0 && schedule.order == Order::kWarpByWarp) lanes = warps_[own].ready;
  int next = own;
  for (int i = 1; lanes == 0 && i <= count; ++i) {
    next = (own + (descending ? count - i : i)) % count;
    lanes = warps_[next].ready;
  }
  PENSTOCK_CHECK(lanes != 0, "a barrier or a collective that some threads never reach");
  return next * kLanes + (descending ? 31 - __builtin_clz(lanes) : __builtin_ctz(lanes));
}

void Machine::SyncBlock() {
  if (++at_barrier_ < shape_.threads) return Wait();
  at_barrier_ = 0;
  for (int i = 0; i < shape_.threads / kLanes; ++i) warps_[i].ready = kAllLanes;
}

bool Machine::Arrive(Collective collective, uint32_t argument) {
  Warp& w = warp();
  if (w.arrived == 0) {
    w.collective = collective;
    w.argument = argument;
  }
  PENSTOCK_CHECK(w.collective == collective && w.argument == argument,
                 "lanes of a warp call different collectives");
  if (++w.arrived == kLanes) return true;
  Wait();
  return false;
}

void Machine::Release() {
  warp().arrived = 0;
  warp().ready = kAllLanes;
}

void Machine::CheckShared(const void* p) const {
  const auto offset = static_cast<const uint8_t*>(p) - shared_;
  PENSTOCK_CHECK(offset >= 0 && offset + 16 <= static_cast<int64_t>(shape_.shared_bytes),
                 "an address outside of the block's shared memory");
  PENSTOCK_CHECK_EQ(offset % 16, 0);
}

PENSTOCK_UNWATCHED void Load(uint32_t (&r)[4], const void* row, bool transposed) {
  machine->CheckShared(row);
  Lane& lane = machine->lane();
  std::memcpy(lane.row, row, 16);
  const auto kind = transposed ? Collective::kLoadTransposed : Collective::kLoad;
  if (machine->Arrive(kind, 0)) {
    ApplyLoad(machine->warp().lanes, transposed);
    machine->Release();
  }
  for (int i = 0; i < 4; ++i) r[i] = lane.out[i];
}

}  // namespace

ScopedSchedule::ScopedSchedule(Copies copies, Order order)
    : copies_before_(schedule.copies), order_before_(schedule.order) {
  schedule.copies = copies;
  schedule.order = order;
}

ScopedSchedule::~ScopedSchedule() {
  schedule.copies = copies_before_;
  schedule.order = order_before_;
}

void Run(const LaunchShape& shape, const std::function<void()>& thread) {
  PENSTOCK_CHECK(machine == nullptr, "a kernel launches a kernel");
  ++schedule.launches;
  Machine launch(shape, thread);
  machine = &launch;
  for (int z = 0; z < shape.z; ++z) {
    for (int y = 0; y < shape.y; ++y) {
      for (int x = 0; x < shape.x; ++x) launch.RunBlock(x, y, z);
    }
  }
  machine = nullptr;
}

int64_t LaunchCount() { return schedule.launches; }

}  // namespace emulator

using emulator::Collective;
using emulator::machine;

PENSTOCK_UNWATCHED int ThreadX() { return machine->thread(); }
PENSTOCK_UNWATCHED int BlockX() { return machine->block[0]; }
PENSTOCK_UNWATCHED int BlockY() { return machine->block[1]; }
PENSTOCK_UNWATCHED int BlockZ() { return machine->block[2]; }
PENSTOCK_UNWATCHED uint8_t* SharedMemory() { return machine->shared(); }

PENSTOCK_UNWATCHED void SyncWarp() {
  if (machine->Arrive(Collective::kSync, 0)) machine->Release();
}
PENSTOCK_UNWATCHED void SyncBlock() { machine->SyncBlock(); }

void CopyAsync16(void* shared, const void* global, bool valid) {
  machine->CheckShared(shared);
  PENSTOCK_CHECK_EQ(reinterpret_cast<uintptr_t>(global) % 16, uintptr_t{0});
  const emulator::Copy copy{shared, global, valid};
  if (emulator::schedule.copies == emulator::Copies::kEarly) return emulator::Perform(copy);
  machine->self().copies.Add(copy);
}

void CommitCopies() { machine->self().copies.Commit(); }

void WaitForCopies(int pending) { machine->self().copies.Wait(static_cast<size_t>(pending)); }

void LoadMatrix4(uint32_t (&r)[4], const void* row) { emulator::Load(r, row, false); }
void LoadMatrix4Transposed(uint32_t (&r)[4], const void* row) { emulator::Load(r, row, true); }

uint32_t TransposeMatrix(uint32_t cells) {
  machine->lane().in[0] = cells;
  if (machine->Arrive(Collective::kTranspose, 0)) {
    emulator::ApplyTranspose(machine->warp().lanes);
    machine->Release();
  }
  return machine->lane().out[0];
}

PENSTOCK_UNWATCHED void MmaOf(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                              uint32_t b1) {
  emulator::Lane& lane = machine->lane();
  for (int i = 0; i < 4; ++i) lane.in[i] = a[i];
  lane.in[4] = b0;
  lane.in[5] = b1;
  lane.accumulator = c;
  if (machine->Arrive(Collective::kMma, bf16 ? 1 : 0)) {
    emulator::ApplyMma(machine->warp().lanes, bf16);
    machine->Release();
  }
}

PENSTOCK_UNWATCHED uint32_t Shuffle(uint32_t v, int lane) {
  emulator::Lane* const lanes = machine->warp().lanes;
  machine->lane().in[0] = v;
  if (machine->Arrive(Collective::kShuffle, 0)) {
    for (int i = 0; i < emulator::kLanes; ++i) lanes[i].out[0] = lanes[i].in[0];
    machine->Release();
  }
  return lanes[lane & 31].out[0];
}

uint32_t ShuffleXor(uint32_t v, int mask) { return Shuffle(v, (machine->thread() & 31) ^ mask); }

uint32_t Ballot(bool b) {
  machine->lane().in[0] = b ? 1 : 0;
  if (machine->Arrive(Collective::kBallot, 0)) {
    uint32_t mask = 0;
    for (int i = 0; i < emulator::kLanes; ++i) mask |= machine->warp().lanes[i].in[0] << i;
    for (emulator::Lane& each : machine->warp().lanes) each.out[0] = mask;
    machine->Release();
  }
  return machine->lane().out[0];
}

uint32_t PackBf16(float low, float high) {
  return emulator::FloatToBf16(low) | emulator::FloatToBf16(high) << 16;
}
uint32_t PackHalf(float low, float high) {
  return emulator::FloatToHalf(low) | emulator::FloatToHalf(high) << 16;
}
float LowHalf(uint32_t halves) { return emulator::HalfToFloat(halves & 0xffffu); }
float HighHalf(uint32_t halves) { return emulator::HalfToFloat(halves >> 16); }
uint32_t E4m3ToHalves(uint32_t codes) {
  return PackHalf(emulator::E4m3ToFloat(codes & 0xff), emulator::E4m3ToFloat(codes >> 8 & 0xff));
}
uint32_t PackE4m3(float low, float high) {
  return emulator::FloatToE4m3(low) | emulator::FloatToE4m3(high) << 8;
}
namespace {
// Calls choose(x, y) for the bf16 in each half of two words; a NaN wins.
template <class Choose>
uint32_t ChooseBf16(uint32_t a, uint32_t b, const Choose& choose) {
  uint32_t r = 0;
  for (int half = 0; half < 2; ++half) {
    const uint32_t x = a >> (16 * half) & 0xffffu, y = b >> (16 * half) & 0xffffu;
    const float first = BitsToFloat(x << 16), second = BitsToFloat(y << 16);
    const bool nan = std::isnan(first) || std::isnan(second);
    r |= (nan ? 0x7fffu : choose(first, second) ? x : y) << (16 * half);
  }
  return r;
}
}  // namespace
uint32_t MinBf16(uint32_t a, uint32_t b) {
  return ChooseBf16(a, b, [](float x, float y) { return x < y; });
}
uint32_t MaxBf16(uint32_t a, uint32_t b) {
  return ChooseBf16(a, b, [](float x, float y) { return x > y; });
}
// The product is exact in double precision. A sum that no f32 holds gets an odd f32 beside it,
// which is then rounded as the sum would be.
uint32_t MultiplyAddBf16(uint32_t a, uint32_t b, uint32_t c) {
  const auto one = [](uint32_t x, uint32_t y, uint32_t z) {
    const double sum = double{BitsToFloat(x << 16)} * BitsToFloat(y << 16) + BitsToFloat(z << 16);
    const auto nearest = static_cast<float>(sum);
    uint32_t bits = FloatToBits(nearest);
    if (nearest != sum && std::isfinite(nearest)) {
      if (std::abs(double{nearest}) > std::abs(sum)) --bits;
      bits |= 1;
    }
    return emulator::FloatToBf16(BitsToFloat(bits));
  };
  return one(a & 0xffff, b & 0xffff, c & 0xffff) | one(a >> 16, b >> 16, c >> 16) << 16;
}
uint32_t Permute(uint32_t a, uint32_t b, uint32_t selector) {
  const uint64_t bytes = uint64_t{b} << 32 | a;
  uint32_t r = 0;
  for (int i = 0; i < 4; ++i) {
    const int byte = static_cast<int>(selector >> (4 * i) & 7);
    r |= static_cast<uint32_t>(bytes >> (8 * byte) & 0xff) << (8 * i);
  }
  return r;
}
Words4 LoadStreaming(const void* p) {
  PENSTOCK_CHECK_EQ(reinterpret_cast<uintptr_t>(p) % 16, uintptr_t{0});
  Words4 words;
  std::memcpy(&words, p, sizeof(words));
  return words;
}

}  // namespace penstock::cuda
