#include "kernels/buffer.h"

#include <sys/mman.h>

#include "base/check.h"

namespace penstock {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

Buffer::Buffer(size_t bytes) {
  if (bytes == 0) return;
  // The kernel aligns a mapping to a huge page only on request: map one huge page more than needed
  // and unmap the unaligned ends.
  const bool large = bytes >= kHugePage;
  const size_t rounded = InPages(bytes);
  const size_t mapped = large ? rounded + kHugePage : rounded;
  void* address = mmap(nullptr, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  PENSTOCK_CHECK(address != MAP_FAILED, "out of memory");
  auto* start = static_cast<std::byte*>(address);
  if (large) {
    const size_t skip = (kHugePage - reinterpret_cast<uintptr_t>(start) % kHugePage) % kHugePage;
    if (skip > 0) munmap(start, skip);
    if (skip < kHugePage) munmap(start + skip + rounded, kHugePage - skip);
    start += skip;
    madvise(start, rounded, MADV_HUGEPAGE);  // Advice only: memory without huge pages works too.
  }
  data_ = start;
  bytes_ = rounded;
  owned_ = true;
}

Buffer Buffer::Over(std::span<std::byte> memory) {
  Buffer buffer;
  buffer.data_ = memory.data();
  buffer.bytes_ = memory.size();
  return buffer;
}

Buffer::~Buffer() {
  if (owned_) munmap(data_, bytes_);
}

}  // namespace penstock
