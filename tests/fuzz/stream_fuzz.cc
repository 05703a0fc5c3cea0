#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "kvstore/wire/stream/stream_input.h"

// Frames of a peer, which may be nobody's: plain, or sealed under a key that the sender does not
// have. Parts are received into exactly as many bytes as are due, so that any byte beside them is
// found by AddressSanitizer.
namespace penstock {
namespace {

void Feed(const std::string& secret, std::span<const uint8_t> data, size_t step) {
  std::vector<std::vector<std::byte>> kept;
  StreamInput input(secret, StreamDirection::kFromCaller,
                    {.target_of = [&](const StreamFrame& part) -> absl::StatusOr<std::byte*> {
                       if (part.id > 3) return DataLoss("nobody asked");
                       PENSTOCK_CHECK_LE(part.body_bytes, kStreamPartBytes);
                       return kept.emplace_back(part.body_bytes).data();
                     },
                     .on_frame =
                         [&](const StreamFrame& frame, std::span<const std::byte> body) {
                           PENSTOCK_CHECK(secret.empty(), "(a frame without the key was taken)");
                           PENSTOCK_CHECK_EQ(body.size(), frame.body_bytes);
                           return absl::OkStatus();
                         }});
  while (!data.empty()) {
    size_t left = std::min(step, data.size());
    size_t filled = 0;
    for (const iovec& room : input.Room()) {
      const size_t count = std::min(left, room.iov_len);
      if (count > 0) std::memcpy(room.iov_base, data.data() + filled, count);
      filled += count;
      left -= count;
    }
    PENSTOCK_CHECK_GT(filled, 0u);
    data = data.subspan(filled);
    if (!input.Filled(filled).ok()) return;
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace penstock;
  if (size == 0) return 0;
  const size_t step = 1 + data[0];
  Feed("", {data + 1, size - 1}, step);
  Feed(std::string(32, 'k'), {data + 1, size - 1}, step);
  return 0;
}
