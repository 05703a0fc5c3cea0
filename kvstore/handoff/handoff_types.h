#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/wire/slab.h"
#include "proto/handoff.pb.h"

namespace penstock {

// Where one attempt to hand over KV stands, on either side.
enum class HandoffState : uint8_t {
  kOffered,
  kCredited,
  kStreaming,
  kLanded,
  kCommitted,
  kAborted
};

// "offered", "credited", "streaming", "landed", "committed" or "aborted".
std::string_view HandoffStateName(HandoffState state);

// What both sides must have in common, or nothing is transferred.
struct HandoffFormat {
  uint64_t model_fingerprint = 0;
  KvLayout layout;
};

struct HandoffTiming {
  // Silence of the peer's control stream beyond this ends the handoff; a side that has said nothing
  // for a third of it sends a heartbeat. Less than the 5 s in which survivors are whole again.
  Duration lease = std::chrono::seconds(3);
  // How long the receiver keeps an offer whose decode session has not arrived.
  Duration offer_hold = std::chrono::seconds(3);
};

HandoffKey HandoffKeyOf(const v1::SessionKey& key);
void SetSessionKey(const HandoffKey& key, v1::SessionKey* target);
// "session/epoch/nonce" in hexadecimal, for logs and errors.
std::string HandoffKeyText(const HandoffKey& key);

struct HandoffKeyLess {
  bool operator()(const HandoffKey& a, const HandoffKey& b) const {
    if (a.session != b.session) return a.session < b.session;
    return a.epoch != b.epoch ? a.epoch < b.epoch : a.nonce < b.nonce;
  }
};

// Whether a handoff that ended so may succeed with other workers: UNAVAILABLE and DATA_LOSS. The
// rest (CANCELLED, FAILED_PRECONDITION, ...) would end in the same way, or nobody wants it.
bool RetryElsewhere(const absl::Status& status);
// The two conversions between a status and what the peer is told.
void SetAbort(const absl::Status& status, v1::HandoffAbort* target);
absl::Status StatusOfAbort(const v1::HandoffAbort& abort);

// Continues a digest over a handoff's slabs in order of sequence; starts at kDigestStart. Covers
// each slab's checksum and what of the KV it holds.
inline constexpr uint64_t kDigestStart = 0xcbf29ce484222325u;
uint64_t DigestSlab(uint64_t digest, const SlabHeader& header);

}  // namespace penstock
