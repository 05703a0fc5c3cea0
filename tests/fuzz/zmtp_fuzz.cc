#include <algorithm>

#include "base/check.h"
#include "worker/events/zmtp_peer.h"

// Bytes of a peer of ZeroMQ, which may be nobody's, in pieces: what is understood does not depend
// on the pieces.
namespace penstock {
namespace {

struct Heard {
  bool ok = true;
  std::string said;
  ZmtpPeer::Kind kind = ZmtpPeer::Kind::kUnknown;
  bool subscribes = false;
  std::vector<uint64_t> requests;
  bool operator==(const Heard&) const = default;
};

Heard Feed(std::string_view data, size_t step) {
  Heard heard;
  ZmtpPeer peer;
  while (!data.empty() && heard.ok) {
    heard.ok = peer.Take(data.substr(0, step)).ok();
    data.remove_prefix(std::min(step, data.size()));
  }
  heard.said = peer.TakeOutput();
  heard.kind = peer.kind();
  heard.subscribes = peer.Subscribes("kv@worker@model");
  while (const auto request = peer.TakeRequest()) heard.requests.push_back(*request);
  return heard;
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using penstock::Feed;
  using penstock::Heard;
  using penstock::ZmtpPeer;
  if (size == 0) return 0;
  const std::string_view bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const Heard whole = Feed(bytes, std::max<size_t>(1, bytes.size()));
  PENSTOCK_CHECK_LE(whole.requests.size(), ZmtpPeer::kRequestsMax);
  PENSTOCK_CHECK(whole == Feed(bytes, 1 + data[0]), "(pieces are understood in another way)");
  return 0;
}
