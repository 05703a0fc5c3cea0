#pragma once

#include <cstdint>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "kernels/paged_kv.h"
#include "kvstore/wire/slab.h"
#include "proto/handoff.pb.h"

namespace penstock {

// The state of one attempt to hand over KV, on either side.
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

// The properties that must be equal on both sides before anything is transferred.
struct HandoffFormat {
  uint64_t model_fingerprint = 0;
  KvLayout layout;
};

// The first block that a sequence needs which goes on behind `tokens` tokens. Both sides compute
// it: the blocks before it are neither sent nor expected.
inline uint32_t FirstBlock(const HandoffFormat& format, uint32_t tokens) {
  return static_cast<uint32_t>(format.layout.FirstBlock(tokens));
}

struct HandoffTiming {
  // A handoff ends when the peer's control stream is silent for longer than this. A side that has
  // sent nothing for a third of it sends a heartbeat. Less than the 5 s within which survivors must
  // have recovered their blocks.
  Duration lease = std::chrono::seconds(3);
  // The time that the receiver keeps an offer whose decode session has not arrived.
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

// True when a handoff that ended with `status` may succeed with other workers: UNAVAILABLE and
// DATA_LOSS. Other codes (CANCELLED, FAILED_PRECONDITION, ...) would recur, or the result is not
// wanted.
bool RetryElsewhere(const absl::Status& status);
// Conversions between a status and the message that tells it to the peer.
void SetAbort(const absl::Status& status, v1::HandoffAbort* target);
absl::Status StatusOfAbort(const v1::HandoffAbort& abort);

// The first tokens that a Commit must have: one for each choice in [first_choice, first_choice +
// choices), in order, each below `vocab`. None for KV that is read from another worker's store.
struct FirstTokensRule {
  uint32_t first_choice = 0;
  uint32_t choices = 0;
  uint32_t vocab = 0;
};
// DATA_LOSS names the entry of `commit.first` that breaks the rule: the sender is damaged or of
// another build, so another worker may do better.
absl::Status CheckFirstTokens(const v1::HandoffCommit& commit, const FirstTokensRule& rule);

// Continues a digest over a handoff's slabs in order of sequence, starting at kDigestStart. It
// covers each slab's checksum and its range of the KV.
inline constexpr uint64_t kDigestStart = 0xcbf29ce484222325u;
uint64_t DigestSlab(uint64_t digest, const SlabHeader& header);

}  // namespace penstock
