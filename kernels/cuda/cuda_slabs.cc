#include "kernels/cuda/cuda_slabs.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/page_pieces.h"
#include "kernels/cuda/slabs.h"

namespace penstock::cuda {
namespace {

constexpr size_t kUnit = 16;  // granularity of MoveSlab and of checksums, in bytes
// Most tasks that share one wait: a wait takes longer than a slab's work, above all when two
// processes share a GPU and take turns.
constexpr size_t kTasksAtOnce = 16;

size_t Summed(size_t bytes) { return bytes / kUnit * kUnit; }

}  // namespace

absl::StatusOr<std::unique_ptr<CudaSlabs>> CudaSlabs::Create(const CudaDevice& device,
                                                             const PagedKv& pages,
                                                             const Options& options,
                                                             SpreadPages* spread) {
  std::unique_ptr<CudaSlabs> slabs(new CudaSlabs(device, pages, options, spread));
  RETURN_IF_ERROR(slabs->Open());
  return slabs;
}

absl::StatusOr<CudaSlabs::LaunchBuffers> CudaSlabs::CreateBuffers() const {
  constexpr const char* kWhat = "slabs of KV";
  // A slab holds at most this many ids of pages or of their pieces.
  const size_t ids_bytes =
      (options_.slab_bytes_max / SlabPieceBytes(pages_.layout) + 1) * sizeof(uint32_t);
  const size_t partials_bytes =
      static_cast<size_t>(SlabChunks(static_cast<int64_t>(options_.slab_bytes_max))) *
      sizeof(uint32_t);
  LaunchBuffers buffers;
  ASSIGN_OR_RETURN(buffers.ids, DeviceBuffer::Create(ids_bytes, kWhat));
  ASSIGN_OR_RETURN(buffers.partials, DeviceBuffer::Create(partials_bytes, kWhat));
  ASSIGN_OR_RETURN(buffers.host_ids, PinnedBuffer::Create(ids_bytes, kWhat));
  ASSIGN_OR_RETURN(buffers.host_partials, PinnedBuffer::Create(partials_bytes, kWhat));
  ASSIGN_OR_RETURN(buffers.tail, PinnedBuffer::Create(kUnit, kWhat));
  return buffers;
}

absl::StatusOr<std::vector<CudaSlabs::LaunchBuffers>> CudaSlabs::CreateAllBuffers() const {
  std::vector<LaunchBuffers> all;
  for (size_t i = 0; i < kTasksAtOnce; ++i) {
    ASSIGN_OR_RETURN(LaunchBuffers buffers, CreateBuffers());
    all.push_back(std::move(buffers));
  }
  return all;
}

absl::StatusOr<CudaSlabs::Lane> CudaSlabs::OpenLane(bool high_priority) const {
  Lane lane{.stream = CreateStream(high_priority), .done = CreateSleepyEvent(), .mover = nullptr};
  if (spread_ == nullptr) return lane;
  auto mover = spread_->OpenMover(kTasksAtOnce, options_.slab_bytes_max, high_priority);
  device_.Select();
  if (mover.ok()) {
    lane.mover = *std::move(mover);
    return lane;
  }
  CloseLane(lane);
  return mover.status();
}

void CudaSlabs::CloseLane(Lane& lane) {
  DestroyEvent(lane.done);
  DestroyStream(lane.stream);
}

absl::Status CudaSlabs::Open() {
  device_.Select();
  ASSIGN_OR_RETURN(buffers_, CreateAllBuffers());
  {
    MutexLock lock(gather_mutex_);
    ASSIGN_OR_RETURN(gather_buffers_, CreateAllBuffers());
    ASSIGN_OR_RETURN(gather_, OpenLane(/*high_priority=*/true));
  }
  ASSIGN_OR_RETURN(lane_, OpenLane(/*high_priority=*/false));
  RETURN_IF_ERROR(TakeStatus("streams for slabs of KV"));
  thread_ = std::thread([this] { Run(); });
  return absl::OkStatus();
}

CudaSlabs::~CudaSlabs() {
  if (thread_.joinable()) {
    Drain();
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    thread_.join();
  }
  device_.Select();
  MutexLock lock(gather_mutex_);
  for (Lane* lane : {&gather_, &lane_}) CloseLane(*lane);
}

std::byte* CudaSlabs::Allocate(size_t bytes) {
  device_.Select();
  auto* const memory = static_cast<std::byte*>(AllocateForWires(bytes));
  if (memory == nullptr) TakeError();  // The caller reports it.
  if (memory == nullptr || spread_ == nullptr || spread_->OnAllocated(memory, bytes)) return memory;
  FreeForWires(memory, bytes);
  return nullptr;
}

void CudaSlabs::Free(std::byte* memory, size_t bytes) {
  if (spread_ != nullptr) spread_->OnFreed(memory);
  device_.Select();
  FreeForWires(memory, bytes);
}

// Mapped, then locked: memory of the driver's own allocator is not certain to be readable by
// another process.
std::byte* CudaSlabs::AllocatePinned(size_t bytes) {
  device_.Select();
  void* const memory =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return nullptr;
  madvise(memory, bytes, MADV_HUGEPAGE);  // advice; failure is ignored
  if (PinHost(memory, bytes)) return static_cast<std::byte*>(memory);
  TakeError();  // The caller reports it.
  munmap(memory, bytes);
  return nullptr;
}

void CudaSlabs::FreePinned(std::byte* memory, size_t bytes) {
  device_.Select();
  UnpinHost(memory);
  munmap(memory, bytes);
}

// Enqueues what MoveSlab does of a task: the copy between pages and slab, the checksum, or both.
void CudaSlabs::EnqueueMove(const Task& task, const LaunchBuffers& buffers,
                            const Lane& lane) const {
  const bool copies = !task.pages.empty() && lane.mover == nullptr;
  SlabPieces pieces{.bytes = Summed(task.total()), .ids = {}};
  if (copies) {
    pieces = SlabPiecesOf(pages_, task.pages, task.offset, task.bytes,
                          task.scatter ? PageAccess::kWrite : PageAccess::kRead);
  }
  const size_t ids_bytes = pieces.ids.size() * sizeof(uint32_t);
  PENSTOCK_CHECK_LE(ids_bytes, buffers.ids.bytes());
  std::ranges::copy(pieces.ids, buffers.host_ids.as<uint32_t>());
  CopyToDevice(buffers.ids.as<void>(), buffers.host_ids.as<void>(), ids_bytes, lane.stream);
  const SlabParams params{.arena = pieces.arena,
                          .block_stride = pieces.stride,
                          .offset = pieces.offset,
                          .piece_bytes = static_cast<uint32_t>(pieces.bytes),
                          .blocks = static_cast<uint32_t>(copies ? pieces.ids.size() : 1),
                          .block_ids = buffers.ids.as<uint32_t>(),
                          .slab = task.slab,
                          .partials = task.scatter ? nullptr : buffers.partials.as<uint32_t>(),
                          .scatter = task.scatter};
  if (pieces.bytes > 0) MoveSlab(params, options_.processors, lane.stream);
}

void CudaSlabs::Enqueue(const Task& task, const LaunchBuffers& buffers, const Lane& lane) const {
  PENSTOCK_CHECK_LE(task.total(), options_.slab_bytes_max);
  const bool spread = lane.mover != nullptr && !task.pages.empty();
  const size_t summed = Summed(task.total()), tail = task.total() - summed;
  PENSTOCK_CHECK(tail == 0 || task.pages.empty());
  if (task.pinned != nullptr && task.pages.empty()) {
    CopyToDevice(task.slab, task.pinned, task.total(), lane.stream);
  }
  if (!spread || !task.scatter) EnqueueMove(task, buffers, lane);
  if (task.pinned != nullptr && !task.pages.empty()) {
    CopyToHost(task.pinned, task.slab, task.total(), lane.stream);
  }
  if (task.scatter) return;
  const auto chunks = static_cast<size_t>(SlabChunks(static_cast<int64_t>(summed)));
  CopyToHost(buffers.host_partials.as<void>(), buffers.partials.as<void>(),
             chunks * sizeof(uint32_t), lane.stream);
  CopyToHost(buffers.tail.as<void>(), task.slab + summed, tail, lane.stream);
}

// Copies between slabs and pages that are spread over several GPUs, before the tasks' other work is
// enqueued. No stream waits for another GPU's: streams share hardware queues, and compute, whose
// GPUs wait for each other (NCCL), could be queued behind such a wait.
void CudaSlabs::MoveSpread(std::span<const Task> tasks, const Lane& lane) {
  if (lane.mover == nullptr) return;
  std::vector<SpreadPages::Move> moves;
  for (const Task& task : tasks) {
    if (task.pages.empty()) continue;
    moves.push_back({.pieces = {.pages = task.pages, .offset = task.offset, .bytes = task.bytes},
                     .slab = task.slab,
                     .scatter = task.scatter});
  }
  if (moves.empty()) return;
  PENSTOCK_CHECK_EQ(Message(lane.mover->MoveAll(moves)), "");
}

// Reads the checksum of a task that has completed.
uint32_t CudaSlabs::ChecksumOf(const Task& task, const LaunchBuffers& buffers) {
  const size_t summed = Summed(task.total());
  const auto chunks = static_cast<size_t>(SlabChunks(static_cast<int64_t>(summed)));
  const uint32_t checksum =
      SlabChecksum({buffers.host_partials.as<uint32_t>(), chunks}, static_cast<int64_t>(summed));
  return ContinueChecksum(checksum, {buffers.tail.as<std::byte>(), task.total() - summed});
}

// Waits for the lane. Ends the process after a device error: the pages are lost with the GPU.
void CudaSlabs::Await(const Lane& lane, const char* what) {
  RecordEvent(lane.done, lane.stream);
  SynchronizeEvent(lane.done);
  PENSTOCK_CHECK_EQ(Message(TakeStatus(what)), "");
}

size_t CudaSlabs::gathered_at_once() const { return kTasksAtOnce; }

void CudaSlabs::Gather(std::span<Gathering> slabs) {
  device_.Select();
  MutexLock lock(gather_mutex_);
  while (!slabs.empty()) {
    const auto some = slabs.first(std::min(slabs.size(), kTasksAtOnce));
    GatherSome(some);
    slabs = slabs.subspan(some.size());
  }
}

void CudaSlabs::GatherSome(std::span<Gathering> slabs) {
  std::vector<Task> tasks;
  for (const Gathering& one : slabs) {
    tasks.push_back({.pages = {one.pieces.pages.begin(), one.pieces.pages.end()},
                     .offset = one.pieces.offset,
                     .bytes = one.pieces.bytes,
                     .slab = one.slab,
                     .pinned = one.pinned});
  }
  MoveSpread(tasks, gather_);
  for (size_t i = 0; i < tasks.size(); ++i) Enqueue(tasks[i], gather_buffers_[i], gather_);
  Await(gather_, "gathering KV pages");
  for (size_t i = 0; i < slabs.size(); ++i) {
    slabs[i].crc = ChecksumOf(tasks[i], gather_buffers_[i]);
  }
}

void CudaSlabs::ReadSlab(std::span<const std::byte> slab, std::byte* pinned) {
  device_.Select();
  MutexLock lock(gather_mutex_);
  CopyToHost(pinned, slab.data(), slab.size(), gather_.stream);
  Await(gather_, "copying a slab of KV");
}

void CudaSlabs::SumFromHost(const std::byte* pinned, std::span<std::byte> slab,
                            std::function<void(uint32_t crc)> done) {
  Add({.bytes = slab.size(),
       .slab = slab.data(),
       .pinned = const_cast<std::byte*>(pinned),  // a sum only reads it
       .done = std::move(done)});
}

void CudaSlabs::Sum(std::span<const std::byte> slab, std::function<void(uint32_t crc)> done) {
  Add({.bytes = slab.size(),
       .slab = const_cast<std::byte*>(slab.data()),  // a sum only reads it
       .done = std::move(done)});
}

void CudaSlabs::Scatter(const Pieces& pieces, const std::byte* slab, std::function<void()> done) {
  PENSTOCK_CHECK(!pieces.pages.empty());
  Add({.pages = {pieces.pages.begin(), pieces.pages.end()},
       .offset = pieces.offset,
       .bytes = pieces.bytes,
       .slab = const_cast<std::byte*>(slab),  // a scatter only reads it
       .scatter = true,
       .done = [done = std::move(done)](uint32_t) { done(); }});
}

void CudaSlabs::Add(Task task) {
  MutexLock lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.NotifyAll();
}

void CudaSlabs::Drain() {
  MutexLock lock(mutex_);
  while (!tasks_.empty() || running_ > 0) changed_.Wait(mutex_);
}

// Waits for tasks; returns none when the thread must end.
std::vector<CudaSlabs::Task> CudaSlabs::NextTasks() {
  std::vector<Task> tasks;
  MutexLock lock(mutex_);
  while (!stopping_ && tasks_.empty()) changed_.Wait(mutex_);
  while (!tasks_.empty() && tasks.size() < kTasksAtOnce) {
    tasks.push_back(std::move(tasks_.front()));
    tasks_.pop_front();
  }
  running_ = tasks.size();
  return tasks;
}

void CudaSlabs::Run() {
  device_.Select();
  for (auto tasks = NextTasks(); !tasks.empty(); tasks = NextTasks()) {
    MoveSpread(tasks, lane_);
    for (size_t i = 0; i < tasks.size(); ++i) Enqueue(tasks[i], buffers_[i], lane_);
    Await(lane_, "slabs of KV");
    for (size_t i = 0; i < tasks.size(); ++i) {
      tasks[i].done(tasks[i].scatter ? 0 : ChecksumOf(tasks[i], buffers_[i]));
    }
    tasks.clear();  // Release the callbacks' captures before Drain returns.
    MutexLock lock(mutex_);
    running_ = 0;
    changed_.NotifyAll();
  }
}

}  // namespace penstock::cuda
