// Bytes of a gRPC request: whatever they are and in whatever pieces they come, the same messages
// are read, or the same error, and no more than the limit is held. What is said of them is clean.
#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "router/grpc/answer.h"
#include "router/grpc/call_head.h"
#include "router/grpc/frame.h"

namespace {

constexpr size_t kMax = 64;

struct Read {
  std::vector<std::string> messages;
  absl::Status status;
  bool operator==(const Read&) const = default;
};

Read ReadStream(std::string_view bytes, size_t piece) {
  Read read;
  penstock::Deframer deframer(kMax);
  for (; !bytes.empty() && read.status.ok(); bytes.remove_prefix(std::min(piece, bytes.size()))) {
    read.status = deframer.Take(bytes.substr(0, piece), [&](std::string_view message) {
      PENSTOCK_CHECK_LE(message.size(), kMax);
      read.messages.emplace_back(message);
      return absl::OkStatus();
    });
  }
  if (read.status.ok()) read.status = deframer.End();
  return read;
}

void CheckOne(std::string_view bytes, const Read& stream) {
  const auto only = penstock::OnlyMessage(bytes, kMax);
  const bool is_one = stream.status.ok() && stream.messages.size() == 1;
  PENSTOCK_CHECK(only.ok() == is_one);
  if (is_one) PENSTOCK_CHECK(*only == stream.messages.front());
}

void CheckHeaders(std::string_view text) {
  for (const penstock::HttpHeader& header :
       penstock::StatusTrailers(penstock::InvalidArgument("{}", text))) {
    PENSTOCK_CHECK_LE(header.value.size(), 3000u);
    for (const char c : header.value) PENSTOCK_CHECK(c >= ' ' && c <= '~');
  }
  const penstock::HttpHead head{.headers = {{"grpc-timeout", std::string(text)}}};
  const auto deadline = penstock::DeadlineOf(head);
  if (deadline.ok()) {
    PENSTOCK_CHECK(*deadline <= penstock::SteadyClock().Now() + std::chrono::hours(24 * 365));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Read whole = ReadStream(bytes, bytes.size() + 1);
  PENSTOCK_CHECK(ReadStream(bytes, 1 + data[0] % 7) == whole);
  CheckOne(bytes, whole);
  CheckHeaders(bytes);
  return 0;
}
