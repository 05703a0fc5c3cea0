#include "kvstore/handoff/handoff_types.h"

namespace penstock {

std::string_view HandoffStateName(HandoffState state) {
  switch (state) {
    case HandoffState::kOffered:
      return "offered";
    case HandoffState::kCredited:
      return "credited";
    case HandoffState::kStreaming:
      return "streaming";
    case HandoffState::kLanded:
      return "landed";
    case HandoffState::kCommitted:
      return "committed";
    case HandoffState::kAborted:
      return "aborted";
  }
  return "unknown";
}

HandoffKey HandoffKeyOf(const v1::SessionKey& key) {
  return {.session = key.session(), .epoch = key.epoch(), .nonce = key.nonce()};
}

void SetSessionKey(const HandoffKey& key, v1::SessionKey* target) {
  target->set_session(key.session);
  target->set_epoch(key.epoch);
  target->set_nonce(key.nonce);
}

std::string HandoffKeyText(const HandoffKey& key) {
  return fmt::format("{:016x}/{}/{:016x}", key.session, key.epoch, key.nonce);
}

bool RetryElsewhere(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsDataLoss(status) ||
         absl::IsResourceExhausted(status);
}

void SetAbort(const absl::Status& status, v1::HandoffAbort* target) {
  target->set_reason(Message(status));
  target->set_retry_elsewhere(RetryElsewhere(status));
  target->set_full(absl::IsResourceExhausted(status));
}

absl::Status StatusOfAbort(const v1::HandoffAbort& abort) {
  if (abort.full()) return ResourceExhausted("the peer ended the handoff: {}", abort.reason());
  if (abort.retry_elsewhere()) {
    return Unavailable("the peer ended the handoff: {}", abort.reason());
  }
  return FailedPrecondition("the peer ended the handoff: {}", abort.reason());
}

absl::Status CheckFirstTokens(const v1::HandoffCommit& commit, const FirstTokensRule& rule) {
  if (commit.first_size() != static_cast<int>(rule.choices)) {
    return DataLoss("commit.first has {} tokens; the session has {} choices", commit.first_size(),
                    rule.choices);
  }
  for (int i = 0; i < commit.first_size(); ++i) {
    const v1::TokenOut& token = commit.first(i);
    const uint32_t choice = rule.first_choice + static_cast<uint32_t>(i);
    if (token.choice() != choice || token.token() >= rule.vocab) {
      return DataLoss(
          "commit.first[{}] is token {} of choice {}; expected is choice {}, and the vocabulary "
          "has {} entries",
          i, token.token(), token.choice(), choice, rule.vocab);
    }
  }
  return absl::OkStatus();
}

uint64_t DigestSlab(uint64_t digest, const SlabHeader& header) {
  // FNV-1a over bytes: a stable digest in which every field and the order of slabs count.
  for (const uint32_t field : {header.payload_crc, uint32_t{header.first_layer},
                               uint32_t{header.layers}, header.first_block, header.blocks}) {
    for (int shift = 0; shift < 32; shift += 8) {
      digest = (digest ^ ((field >> shift) & 0xff)) * 0x100000001b3u;
    }
  }
  return digest;
}

}  // namespace penstock
