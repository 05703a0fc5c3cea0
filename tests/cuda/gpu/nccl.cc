// NCCL as lanes use it (kvstore/nccl_communicator.cc), in a communicator of one rank that sends to
// itself: NCCL refuses two ranks on one GPU. It shows that the library loads, takes our
// declarations and our configuration, polls to readiness, moves page-locked memory whole and in the
// order of the stream, and ends. It shows nothing of networks, of a peer's death, or of rates.

#include <dlfcn.h>

#include <chrono>
#include <cstring>
#include <string>
#include <thread>

#include "kernels/cuda/runtime.h"
#include "kvstore/nccl_abi.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

constexpr size_t kBytes = size_t{8} << 20;
constexpr auto kPatience = std::chrono::seconds(30);

// What a run needs, ended in the reverse order.
class SelfSend {
 public:
  explicit SelfSend(const nccl::Functions& calls) : calls_(calls) {}
  ~SelfSend();

  // Empty: all of it came.
  std::string Run();

 private:
  bool Settle(nccl::Result result);
  bool Await(void* event) const;

  const nccl::Functions& calls_;
  nccl::Comm* comm_ = nullptr;
  void* stream_ = CreateStream(/*high_priority=*/true);
  void* event_ = CreateEvent();
  char* from_ = static_cast<char*>(AllocatePinned(kBytes));
  char* to_ = static_cast<char*>(AllocatePinned(kBytes));
  bool sound_ = false;
};

SelfSend::~SelfSend() {
  if (comm_ != nullptr && sound_ && Settle(calls_.comm_finalize(comm_))) {
    calls_.comm_destroy(comm_);
  } else if (comm_ != nullptr) {
    calls_.comm_abort(comm_);
  }
  DestroyEvent(event_);
  DestroyStream(stream_);
  FreePinned(from_);
  FreePinned(to_);
}

bool SelfSend::Settle(nccl::Result result) {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (result == nccl::kInProgress && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::yield();
    if (calls_.comm_get_async_error(comm_, &result) != nccl::kSuccess) return false;
  }
  return result == nccl::kSuccess;
}

bool SelfSend::Await(void* event) const {
  const auto deadline = std::chrono::steady_clock::now() + kPatience;
  while (!EventReached(event)) {
    if (std::chrono::steady_clock::now() > deadline || TakeError() != nullptr) return false;
    std::this_thread::yield();
  }
  return true;
}

std::string SelfSend::Run() {
  if (from_ == nullptr || to_ == nullptr) return "finds no page-locked memory";
  nccl::UniqueId id;
  if (calls_.get_unique_id(&id) != nccl::kSuccess) return "no id";
  nccl::Config config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = 4;
  config.split_share = 0;
  if (!Settle(calls_.comm_init_rank_config(&comm_, 1, id, 0, &config))) return "does not open";
  sound_ = true;
  for (size_t i = 0; i < kBytes; ++i) from_[i] = static_cast<char>(i * 2654435761u >> 13);
  // Two pieces of odd sizes: order, and nothing beside them.
  const size_t first = kBytes / 3;
  const size_t second = kBytes - first - 4096;
  std::memset(to_, 0x5a, kBytes);
  for (const auto& [offset, bytes] : {std::pair(size_t{0}, first), std::pair(first, second)}) {
    calls_.group_start();
    calls_.send(from_ + offset, bytes, nccl::kUint8, 0, comm_, stream_);
    calls_.recv(to_ + offset, bytes, nccl::kUint8, 0, comm_, stream_);
    sound_ = Settle(calls_.group_end());
    if (!sound_) return "does not enqueue";
  }
  RecordEvent(event_, stream_);
  sound_ = Await(event_);
  if (!sound_) return "does not move";
  if (std::memcmp(from_, to_, first + second) != 0) return "moves other bytes";
  for (size_t i = first + second; i < kBytes; ++i) {
    if (to_[i] != 0x5a) return "writes past the end";
  }
  return "";
}

}  // namespace

void CheckNccl(const char* path, Report& report) {
  void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
  if (library == nullptr) {
    report.not_run.push_back(std::string("nccl self-send: ") + dlerror());
    return;
  }
  nccl::Functions calls{};
  bool whole = true;
  nccl::VisitFunctions(calls, [&](const char* name, auto& function, bool needed) {
    void* found = dlsym(library, name);
    std::memcpy(&function, &found, sizeof(found));
    whole = whole && (found != nullptr || !needed);
  });
  std::string wrong = "lacks functions";
  int version = 0;
  if (whole && calls.get_version(&version) == nccl::kSuccess) wrong = SelfSend(calls).Run();
  report.checks.push_back(
      {"nccl " + std::to_string(version) + " self-send " + wrong, wrong.empty() ? 0.0 : 1.0, 0.5});
}

}  // namespace penstock::cuda
