#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_choice.h"
#include "kvstore/codec/link_rate.h"
#include "kvstore/tiers/disk/store_files.h"

namespace penstock {

// BlockRecord::codec of a payload that is the resident bytes; other values are numbers of exact
// codecs.
inline constexpr uint8_t kStoredRaw = 0;
// True when a record may have this codec.
bool IsExtentCodec(uint8_t codec);

// Encodes blocks for the disk: raw, or with an exact codec. One thread at a time.
class ExtentCodec {
 public:
  struct Options {
    KvLayout layout;
    // The codec of every block that it makes at least one page smaller; raw: no encoding.
    KvCodecSpec codec = {};
    // If not empty, replaces `codec`: the fastest of these and raw for writing and reading again at
    // the disk's measured rate, or the smallest one while the disk is full and drops blocks.
    std::vector<KvCodecRates> choices = {};
  };
  explicit ExtentCodec(Options options);

  // A block's bytes as written to the disk, in whole pages.
  struct Stored {
    uint8_t codec = kStoredRaw;
    std::span<const std::byte> bytes;
    std::shared_ptr<DirectBuffer> buffer;  // null: `bytes` are the caller's
  };
  // `page` has the layout's stride and must stay valid as long as the result is used.
  Stored Encode(std::span<const std::byte> page);
  // DATA_LOSS when `bytes` are not an Encode result for this layout.
  absl::Status Decode(uint8_t codec, std::span<const std::byte> bytes,
                      std::span<std::byte> page) const;

  // Measures the disk for the choice; each OnWrite needs one OnWritten.
  void OnWrite(TimePoint now) { disk_.OnPut(now); }
  void OnWritten(TimePoint now, size_t bytes) { disk_.OnEnded(now, {.bytes = bytes}); }
  // Blocks are being dropped because the disk is full.
  void OnFull() { full_ = true; }

 private:
  KvCodecSpec Choose();

  const Options options_;
  const KvRun run_;  // one block
  KvCodecChoice choice_;
  LinkRate disk_;
  bool full_ = false;
  std::vector<std::byte> encoded_;
};

}  // namespace penstock
