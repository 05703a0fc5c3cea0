#pragma once

#include <cstdint>
#include <vector>

#include "kernels/bf16.h"
#include "kernels/cuda/kv_codec.h"

// The codecs' kernels on one run of values that every machine makes the same, without any other
// module of ours. What the CPU's codecs make of that run is written down here; the test on the
// emulator holds them to it.

namespace penstock::cuda {

enum class KvCodecKind { kLx16, kLxr, kF8, kI8, kK8v4, kI4r, kKv2 };

// [blocks][layers][heads][2][slots][dims]
struct KvCodecShape {
  uint32_t blocks = 4, layers = 2, heads = 2, slots = 16, dims = 128;
  uint32_t elements() const { return blocks * layers * heads * 2 * slots * dims; }
};
std::vector<Bf16> KvCodecValues(const KvCodecShape& shape);

struct KvCodecSums {
  uint32_t payload_bytes = 0;
  uint32_t payload = 0;  // CRC32C
  uint32_t decoded = 0;  // CRC32C of the decoded values
  bool operator==(const KvCodecSums&) const = default;
};
struct KvCodecCase {
  const char* name;
  KvCodecKind kind;
  KvCodecSums cpu;  // of KvCodecShape{}
};
const std::vector<KvCodecCase>& KvCodecCases();

// Device memory for one codec and shape.
class KvCodecBench {
 public:
  KvCodecBench(KvCodecKind kind, const KvCodecShape& shape);
  ~KvCodecBench();
  KvCodecBench(const KvCodecBench&) = delete;
  KvCodecBench& operator=(const KvCodecBench&) = delete;

  Bf16* values() const;            // to be filled
  void Encode() const;             // and settles
  void Decode() const;             // of what the last Encode made, to the values
  uint32_t payload_bytes() const;  // of it
  bool FoundInParallel() const;    // the tiles of the last Decode
  uint32_t PayloadChecksum() const;
  uint32_t ValuesChecksum() const;

 private:
  struct Memory;
  LosslessParams Lossless() const;
  KvRowsParams Rows() const;
  Kv2Params Kv2() const;
  uint32_t FixedBytes() const;  // 0: depends on the values
  uint32_t Checksum(const void* bytes, uint32_t size) const;

  const KvCodecKind kind_;
  const KvCodecShape shape_;
  Memory* const memory_;
};

KvCodecSums RunKvCodec(KvCodecKind kind);
// True if a lossless codec makes a smaller payload of many tiles and finds them in parallel, and
// the values come back.
bool RoundTripsManyTiles(KvCodecKind kind);

}  // namespace penstock::cuda
