#pragma once

#include <memory>
#include <span>
#include <vector>

#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_choice.h"
#include "kvstore/codec/link_rate.h"
#include "kvstore/tiers/disk/store_files.h"

namespace penstock {

// What the payload of a BlockRecord is: 0 for the resident bytes, or an exact codec's number.
inline constexpr uint8_t kStoredRaw = 0;
// Those that a record may have.
bool IsExtentCodec(uint8_t codec);

// How blocks go to a disk: as they are, or by an exact codec. One thread at a time.
class ExtentCodec {
 public:
  struct Options {
    KvLayout layout;
    // Of every block that it makes a page smaller; raw: none.
    KvCodecSpec codec = {};
    // Not empty: instead, whichever of these or raw takes least time to write and read again on the
    // disk as it turns out to be, or the smallest one while the disk is full and drops blocks.
    std::vector<KvCodecRates> choices = {};
  };
  explicit ExtentCodec(Options options);

  // A block's bytes as they go to the disk, in whole pages.
  struct Stored {
    uint8_t codec = kStoredRaw;
    std::span<const std::byte> bytes;
    std::shared_ptr<DirectBuffer> buffer;  // null: `bytes` are the caller's own
  };
  // `page` is one of the layout's stride, and stays as long as what comes back is used.
  Stored Encode(std::span<const std::byte> page);
  // DATA_LOSS when `bytes` are not what Encode made of a block of this layout.
  absl::Status Decode(uint8_t codec, std::span<const std::byte> bytes,
                      std::span<std::byte> page) const;

  // What the disk does, for the choice: writes, one OnEnded for each OnPut.
  void OnWrite(TimePoint now) { disk_.OnPut(now); }
  void OnWritten(TimePoint now, size_t bytes) { disk_.OnEnded(now, {.bytes = bytes}); }
  // Blocks are dropped for want of room.
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
