// NCCL as lanes use it (kvstore/wire/nccl/nccl_communicator.cc), in a communicator of one rank that
// sends to itself: NCCL refuses two ranks on one GPU. It shows that the library loads, takes our
// declarations and our configuration, polls to readiness, moves GPU memory to page-locked
// host memory whole and in the order of the stream, and ends. It shows nothing of networks, of a
// peer's death, or of rates.

#include <cstring>
#include <string>
#include <vector>

#include "kernels/cuda/runtime.h"
#include "tests/cuda/gpu/nccl_calls.h"
#include "tests/cuda/gpu/suite.h"

namespace penstock::cuda {
namespace {

constexpr size_t kBytes = size_t{8} << 20;

// The resources of a run, released in the reverse order.
class SelfSend {
 public:
  explicit SelfSend(const nccl::Functions& calls) : calls_(calls) {}
  ~SelfSend();

  // Empty: all of it came.
  std::string Run();

 private:
  bool Settle(nccl::Result result);

  const nccl::Functions& calls_;
  nccl::Comm* comm_ = nullptr;
  void* stream_ = CreateStream(/*high_priority=*/true);
  void* event_ = CreateEvent();
  char* from_ = static_cast<char*>(AllocateForWires(kBytes));
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
  FreeForWires(from_, kBytes);
  FreePinned(to_);
}

bool SelfSend::Settle(nccl::Result result) { return SettleNccl(calls_, comm_, result); }

std::string SelfSend::Run() {
  if (from_ == nullptr || to_ == nullptr) return "finds no memory";
  nccl::UniqueId id;
  if (calls_.get_unique_id(&id) != nccl::kSuccess) return "no id";
  nccl::Config config;
  config.blocking = 0;
  config.min_ctas = 1;
  config.max_ctas = 4;
  config.split_share = 0;
  if (!Settle(calls_.comm_init_rank_config(&comm_, 1, id, 0, &config))) return "does not open";
  sound_ = true;
  std::vector<char> sent(kBytes);
  for (size_t i = 0; i < kBytes; ++i) sent[i] = static_cast<char>(i * 2654435761u >> 13);
  CopyToDevice(from_, sent.data(), kBytes, stream_);
  // Two pieces of odd sizes: order, and nothing beside them.
  const size_t first = kBytes / 3;
  const size_t second = kBytes - first - 4096;
  std::memset(to_, 0x5a, kBytes);
  Synchronize(stream_);
  for (const auto& [offset, bytes] : {std::pair(size_t{0}, first), std::pair(first, second)}) {
    calls_.group_start();
    calls_.send(from_ + offset, bytes, nccl::kUint8, 0, comm_, stream_);
    calls_.recv(to_ + offset, bytes, nccl::kUint8, 0, comm_, stream_);
    sound_ = Settle(calls_.group_end());
    if (!sound_) return "does not enqueue";
  }
  RecordEvent(event_, stream_);
  sound_ = AwaitEvent(event_);
  if (!sound_) return "does not move";
  if (std::memcmp(sent.data(), to_, first + second) != 0) return "moves other bytes";
  for (size_t i = first + second; i < kBytes; ++i) {
    if (to_[i] != 0x5a) return "writes past the end";
  }
  return "";
}

}  // namespace

void CheckNccl(const char* path, Report& report) {
  nccl::Functions calls{};
  std::string why;
  if (!LoadNccl(path, calls, why)) {
    report.not_run.push_back("nccl self-send: " + why);
    return;
  }
  int version = 0;
  const bool answers = calls.get_version(&version) == nccl::kSuccess;
  const std::string wrong = answers ? SelfSend(calls).Run() : "says no version";
  report.checks.push_back(
      {"nccl " + std::to_string(version) + " self-send " + wrong, wrong.empty() ? 0.0 : 1.0, 0.5});
}

}  // namespace penstock::cuda
