#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/check.h"
#include "base/crc32c.h"
#include "kvstore/tiers/nvme/segment_load.h"

// A segment file of any bytes: whatever LoadSegment says lies inside the file. Checksums are made
// right first, so that the fuzzer gets behind them.
namespace penstock {
namespace {

class OneFile final : public StoreFiles {
 public:
  explicit OneFile(std::span<const std::byte> bytes) : fd_(memfd_create("segment", MFD_CLOEXEC)) {
    PENSTOCK_CHECK(Write(fd_, 0, bytes).ok());
  }
  absl::StatusOr<OwnedFd> Open(const std::string&, bool) override { return OwnedFd(fd_); }

 private:
  const int fd_;  // goes with the segment
};

void Reseal(std::span<std::byte> bytes) {
  const uint32_t crc = Crc32c(bytes.first(bytes.size() - 4));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, sizeof(crc));
}

void ResealPage(std::span<std::byte> page) {
  const std::string mark(reinterpret_cast<const char*>(page.data()), 4);
  if (mark == "PSSG" || mark == "PSTR") return Reseal(page);
  if (mark == "PSGR") {
    for (size_t at = 0; at < page.size(); at += 64) Reseal(page.subspan(at, 64));
  } else if (page[48] != std::byte{0}) {  // perhaps a footer's
    for (size_t at = 0; at < page.size(); at += 64) Reseal(page.subspan(at, 64));
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  const auto input = std::as_bytes(std::span(data, size));
  std::vector<std::byte> bytes(input.begin(), input.end());
  // An input with an odd first byte stays as it is.
  if (!bytes.empty() && (data[0] & 1) == 0) {
    for (size_t at = 0; at + kSegmentPage <= bytes.size(); at += kSegmentPage) {
      ResealPage(std::span(bytes).subspan(at, kSegmentPage));
    }
  }
  OneFile files(bytes);
  const auto segment = LoadSegment(files, "segment", /*write=*/false);
  if (!segment.ok()) return 0;
  PENSTOCK_CHECK_LE(segment->end_page * kSegmentPage, segment->bytes);
  for (const BlockRecord& record : segment->records) {
    PENSTOCK_CHECK_GE(record.page, 1u);
    PENSTOCK_CHECK_LE((uint64_t{record.page} + record.pages) * kSegmentPage, segment->bytes);
  }
  return 0;
}
