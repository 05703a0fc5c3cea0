#include "kernels/cuda/sharded/peer_access.h"

#include <algorithm>
#include <span>

#include "kernels/cuda/slabs.h"

namespace penstock::cuda {
namespace {

constexpr size_t kBytes = size_t{1} << 20;
constexpr int kProcessors = 8;
constexpr std::string_view kWhat = "peer access between GPUs";

// Device memory that other GPUs access.
struct SharedMemoryKind {
  static constexpr std::string_view kName = "device memory";
  static void* Allocate(size_t bytes) { return AllocateForWires(bytes); }
  static void Free(void* data) { FreeForWires(data, kBytes); }
};
using SharedBuffer = CudaMemory<SharedMemoryKind>;

// Words that differ from their neighbours and from those of another seed.
void FillWords(std::span<uint32_t> words, uint32_t seed) {
  for (size_t i = 0; i < words.size(); ++i) {
    words[i] = (static_cast<uint32_t>(i) + seed) * 2654435761u;
  }
}

// One try: memory of the owner, memory of the other GPU, and host memory to fill and compare them.
class PeerTry {
 public:
  PeerTry(const CudaDevice& device, const CudaDevice& owner) : device_(device), owner_(owner) {}
  ~PeerTry() {
    own_ = DeviceBuffer();
    id_ = DeviceBuffer();
    owner_.Select();
  }
  PeerTry(const PeerTry&) = delete;
  PeerTry& operator=(const PeerTry&) = delete;

  absl::Status Open() {
    owner_.Select();
    ASSIGN_OR_RETURN(shared_, SharedBuffer::Create(kBytes, kWhat));
    ASSIGN_OR_RETURN(sent_, PinnedBuffer::Create(kBytes, kWhat));
    ASSIGN_OR_RETURN(arrived_, PinnedBuffer::Create(kBytes, kWhat));
    device_.Select();
    ASSIGN_OR_RETURN(own_, DeviceBuffer::Create(kBytes, kWhat));
    ASSIGN_OR_RETURN(id_, DeviceBuffer::Create(sizeof(uint32_t), kWhat));
    FillDevice(id_.as<void>(), 0, sizeof(uint32_t), device_.stream());
    Synchronize(device_.stream());
    return TakeStatus(kWhat);
  }
  // The other GPU writes what the owner reads.
  absl::Status Write() {
    FillWords({sent_.as<uint32_t>(), kBytes / sizeof(uint32_t)}, 1);
    Fill(device_, own_.as<void>());
    Move(/*scatter=*/false);
    return Compare(owner_, shared_.as<void>(), "wrote to");
  }
  // The owner writes what the other GPU reads.
  absl::Status Read() {
    FillWords({sent_.as<uint32_t>(), kBytes / sizeof(uint32_t)}, 7);
    Fill(owner_, shared_.as<void>());
    Move(/*scatter=*/true);
    return Compare(device_, own_.as<void>(), "read from");
  }

 private:
  void Fill(const CudaDevice& device, void* to) {
    device.Select();
    CopyToDevice(to, sent_.as<void>(), kBytes, device.stream());
    Synchronize(device.stream());
  }
  // Copies between the two memories with the kernel that copies slabs.
  void Move(bool scatter) {
    device_.Select();
    MoveSlabPart({.arena = own_.as<std::byte>(),
                  .blocks = 1,
                  .layers = 1,
                  .block_ids = id_.as<uint32_t>(),
                  .layer_bytes = kBytes,
                  .codes_bytes = kBytes,
                  .slab = shared_.as<std::byte>(),
                  .scatter = scatter},
                 kProcessors, device_.stream());
    Synchronize(device_.stream());
  }
  absl::Status Compare(const CudaDevice& device, const void* from, std::string_view what) {
    device.Select();
    CopyToHost(arrived_.as<void>(), from, kBytes, device.stream());
    Synchronize(device.stream());
    RETURN_IF_ERROR(TakeStatus(kWhat));
    const auto* sent = sent_.as<std::byte>();
    if (std::equal(sent, sent + kBytes, arrived_.as<std::byte>())) return absl::OkStatus();
    return DataLoss("bytes that cuda:{} {} cuda:{}'s memory did not arrive", device_.index(), what,
                    owner_.index());
  }

  const CudaDevice& device_;
  const CudaDevice& owner_;
  SharedBuffer shared_;
  DeviceBuffer own_, id_;
  PinnedBuffer sent_, arrived_;
};

}  // namespace

absl::Status TryPeerAccess(const CudaDevice& device, const CudaDevice& owner) {
  device.Select();
  const bool enabled = EnablePeerAccess(owner.index());
  const std::string reason = enabled ? "" : TakeReason();
  owner.Select();
  if (!enabled) {
    return Unavailable("cuda:{} cannot access cuda:{}'s memory ({})", device.index(), owner.index(),
                       reason);
  }
  PeerTry one(device, owner);
  RETURN_IF_ERROR(one.Open());
  RETURN_IF_ERROR(one.Write());
  return one.Read();
}

}  // namespace penstock::cuda
