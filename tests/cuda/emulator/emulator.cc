#include "tests/cuda/emulator/emulator.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/device/device.cuh"
#include "tests/cuda/emulator/arithmetic.h"
#include "tests/cuda/emulator/fiber.h"

namespace penstock::cuda {
namespace emulator {
namespace {

constexpr size_t kSharedBytesMax = 227 << 10;  // limit of a block on sm_90

enum class Collective { kNone, kSync, kLoad, kLoadTransposed, kTranspose, kMma, kShuffle, kBallot };

struct Warp {
  Lane lanes[kLanes];
  Collective collective = Collective::kNone;
  uint32_t argument = 0;  // must be equal in all lanes
  int arrived = 0;
  uint32_t generation = 0;
};

struct Copy {
  void* to;
  const void* from;
  bool valid;
};

struct Thread {
  Fiber fiber;
  bool done = true;
  bool at_barrier = false;
  std::vector<Copy> open;
  std::vector<std::vector<Copy>> groups;
};

void Perform(const Copy& copy) {
  if (copy.valid) {
    std::memcpy(copy.to, copy.from, 16);
  } else {
    std::memset(copy.to, 0, 16);
  }
}

struct Schedule {
  Copies copies = Copies::kLate;
  Order order = Order::kAscending;
  int64_t launches = 0;
};
thread_local Schedule schedule;

// Marks functions that switch between emulated threads. They run millions of times and are not code
// of a kernel, so sanitizers leave them out.
#define PENSTOCK_UNWATCHED __attribute__((no_sanitize("address", "undefined")))

// One launch; its blocks run one after the other on the same fibers.
class Machine {
 public:
  Machine(const LaunchShape& shape, const std::function<void()>& body)
      : shape_(shape), body_(body), caller_(Fiber::Caller()) {
    PENSTOCK_CHECK_GT(shape.threads, 0);
    PENSTOCK_CHECK_EQ(shape.threads % kLanes, 0);
    PENSTOCK_CHECK_LE(shape.threads, 1024);
    PENSTOCK_CHECK_LE(shape.shared_bytes, kSharedBytesMax);
    for (int i = 0; i < shape.threads; ++i) threads_.push_back(std::make_unique<Thread>());
    // Exactly the requested size, so that a sanitizer detects accesses outside.
    memory_.reset(static_cast<uint8_t*>(
        std::aligned_alloc(128, std::max<size_t>(128, (shape.shared_bytes + 127) / 128 * 128))));
  }

  void RunBlock(int x, int y, int z);
  void Enter();  // runs on a fiber

  int thread() const { return thread_; }
  PENSTOCK_UNWATCHED Thread& self() { return *threads_[thread_]; }
  PENSTOCK_UNWATCHED Warp& warp() { return warps_[thread_ / kLanes]; }
  PENSTOCK_UNWATCHED Lane& lane() { return warp().lanes[thread_ % kLanes]; }
  uint8_t* shared() const { return memory_.get(); }
  void CheckShared(const void* p) const;

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
  PENSTOCK_UNWATCHED void Yield();
  PENSTOCK_UNWATCHED int Next() const;  // the thread that runs next

  const LaunchShape shape_;
  const std::function<void()>& body_;
  std::unique_ptr<Fiber> caller_;
  std::vector<std::unique_ptr<Thread>> threads_;
  std::vector<Warp> warps_;
  std::unique_ptr<uint8_t, Free> memory_;
  int thread_ = 0;
  int alive_ = 0;
  int at_barrier_ = 0;
  uint32_t barrier_generation_ = 0;
  int64_t fruitless_yields_ = 0;
};

thread_local Machine* machine = nullptr;

void EnterFiber() { machine->Enter(); }

void Machine::RunBlock(int x, int y, int z) {
  block[0] = x, block[1] = y, block[2] = z;
  // 0xffff is a NaN in bf16, f16 and e4m3 alike.
  std::memset(memory_.get(), 0xff, shape_.shared_bytes);
  warps_.assign(shape_.threads / kLanes, Warp{});
  alive_ = shape_.threads;
  at_barrier_ = 0;
  fruitless_yields_ = 0;
  for (const auto& thread : threads_) {
    thread->done = false;
    thread->at_barrier = false;
    thread->open.clear();
    thread->groups.clear();
    thread->fiber.Start(&EnterFiber);
  }
  thread_ = schedule.order == Order::kDescending ? shape_.threads - 1 : 0;
  Fiber::Switch(*caller_, self().fiber);
}

void Machine::Enter() {
  body_();
  self().done = true;
  --alive_;
  fruitless_yields_ = 0;
  Yield();
  PENSTOCK_CHECK(false, "a thread went on after its end");
}

void Machine::Yield() {
  const int from = thread_;
  if (alive_ == 0) Fiber::Switch(threads_[from]->fiber, *caller_);
  PENSTOCK_CHECK(++fruitless_yields_ < 4 * int64_t{shape_.threads} + 8,
                 "a barrier or a collective that some threads never reach");
  const int next = Next();
  if (next == from) return;
  thread_ = next;
  Fiber::Switch(threads_[from]->fiber, threads_[next]->fiber);
}

int Machine::Next() const {
  const int count = shape_.threads;
  if (schedule.order == Order::kWarpByWarp) {
    const int first = thread_ / kLanes * kLanes;
    for (int i = 1; i < kLanes; ++i) {
      const int lane = first + (thread_ - first + i) % kLanes;
      if (!threads_[lane]->done && !threads_[lane]->at_barrier) return lane;
    }
  }
  const int step = schedule.order == Order::kDescending ? count - 1 : 1;
  int next = (thread_ + step) % count;
  while (threads_[next]->done) next = (next + step) % count;
  return next;
}

void Machine::SyncBlock() {
  const uint32_t generation = barrier_generation_;
  if (++at_barrier_ == shape_.threads) {
    at_barrier_ = 0;
    ++barrier_generation_;
    fruitless_yields_ = 0;
    for (const auto& thread : threads_) thread->at_barrier = false;
    return;
  }
  self().at_barrier = true;
  while (barrier_generation_ == generation) Yield();
}

bool Machine::Arrive(Collective collective, uint32_t argument) {
  Warp& w = warp();
  if (w.arrived == 0) {
    w.collective = collective;
    w.argument = argument;
  }
  PENSTOCK_CHECK(w.collective == collective && w.argument == argument,
                 "lanes of a warp call different collectives");
  const uint32_t generation = w.generation;
  if (++w.arrived == kLanes) return true;
  while (w.generation == generation) Yield();
  return false;
}

void Machine::Release() {
  warp().arrived = 0;
  ++warp().generation;
  fruitless_yields_ = 0;
}

void Machine::CheckShared(const void* p) const {
  const auto offset = static_cast<const uint8_t*>(p) - memory_.get();
  PENSTOCK_CHECK(offset >= 0 && offset + 16 <= static_cast<int64_t>(shape_.shared_bytes),
                 "an address outside of the block's shared memory");
  PENSTOCK_CHECK_EQ(offset % 16, 0);
}

void Load(uint32_t (&r)[4], const void* row, bool transposed) {
  machine->CheckShared(row);
  std::memcpy(machine->lane().row, row, 16);
  const auto kind = transposed ? Collective::kLoadTransposed : Collective::kLoad;
  if (machine->Arrive(kind, 0)) {
    ApplyLoad(machine->warp().lanes, transposed);
    machine->Release();
  }
  std::copy_n(machine->lane().out, 4, r);
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

int ThreadX() { return machine->thread(); }
int BlockX() { return machine->block[0]; }
int BlockY() { return machine->block[1]; }
int BlockZ() { return machine->block[2]; }
uint8_t* SharedMemory() { return machine->shared(); }

void SyncWarp() {
  if (machine->Arrive(Collective::kSync, 0)) machine->Release();
}
void SyncBlock() { machine->SyncBlock(); }

void CopyAsync16(void* shared, const void* global, bool valid) {
  machine->CheckShared(shared);
  PENSTOCK_CHECK_EQ(reinterpret_cast<uintptr_t>(global) % 16, uintptr_t{0});
  const emulator::Copy copy{shared, global, valid};
  if (emulator::schedule.copies == emulator::Copies::kEarly) return emulator::Perform(copy);
  machine->self().open.push_back(copy);
}

void CommitCopies() {
  emulator::Thread& self = machine->self();
  self.groups.push_back(std::move(self.open));
  self.open.clear();
}

void WaitForCopies(int pending) {
  auto& groups = machine->self().groups;
  while (static_cast<int>(groups.size()) > pending) {
    for (const emulator::Copy& copy : groups.front()) emulator::Perform(copy);
    groups.erase(groups.begin());
  }
}

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

void MmaOf(bool bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulator::Lane& lane = machine->lane();
  std::copy_n(a, 4, lane.in);
  lane.in[4] = b0;
  lane.in[5] = b1;
  lane.accumulator = c;
  if (machine->Arrive(Collective::kMma, bf16 ? 1 : 0)) {
    emulator::ApplyMma(machine->warp().lanes, bf16);
    machine->Release();
  }
}

uint32_t Shuffle(uint32_t v, int lane) {
  machine->lane().in[0] = v;
  if (machine->Arrive(Collective::kShuffle, 0)) {
    for (emulator::Lane& each : machine->warp().lanes) each.out[0] = each.in[0];
    machine->Release();
  }
  return machine->warp().lanes[lane & 31].out[0];
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
