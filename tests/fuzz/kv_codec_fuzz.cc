#include <algorithm>
#include <cstring>
#include <vector>

#include "base/check.h"
#include "base/crc32c.h"
#include "kvstore/codec/codec.h"
#include "kvstore/codec/codec_header.h"
#include "tests/fuzz/codec_fuzz_calibration.h"

namespace {

using namespace penstock;

// The payload behind a header that is right: what decodes is what was asked for, or DATA_LOSS.
void FuzzPayload(std::span<const std::byte> input) {
  const std::vector<KvCodecSpec> specs = AllKvCodecs();
  const KvCodecSpec spec = specs[static_cast<size_t>(input[0]) % specs.size()];
  const auto blocks = static_cast<uint32_t>(input[1]) % 4 + 1;
  const bool latent = (static_cast<int>(input[1]) & 0x80) != 0 && !NeedsCalibration(spec);
  const KvRun run{.first_block = 0,
                  .blocks = blocks,
                  .first_layer = 0,
                  .layers = 2,
                  .kv_heads = static_cast<uint16_t>(latent ? 1 : 2),
                  .planes = static_cast<uint16_t>(latent ? 1 : 2),
                  .block_tokens = 16,
                  .head_dim = static_cast<uint16_t>(latent ? 96 : 64),
                  .rope_dim = static_cast<uint16_t>(latent ? 32 : 0),
                  .protected_first = static_cast<uint16_t>(blocks > 1 ? 1 : 0)};
  const KvCodecContext context{.calibration = &SmallCalibration(), .checksum = false};
  const std::span<const std::byte> payload = input.subspan(2);
  const KvCodecHeaderBytes header =
      EncodeKvCodecHeader({.spec = spec,
                           .run = run,
                           .calibration = NeedsCalibration(spec) ? SmallCalibration().id() : 0,
                           .payload_bytes = static_cast<uint32_t>(payload.size())});
  std::vector<std::byte> encoded(header.begin(), header.end());
  encoded.insert(encoded.end(), payload.begin(), payload.end());
  std::vector<std::byte> raw(run.RawBytes());
  const absl::Status status = DecodeKv(spec, run, context, encoded, raw);
  PENSTOCK_CHECK(status.ok() || status.code() == absl::StatusCode::kDataLoss);
}

// Any values go through every lossless codec and come back.
void FuzzValues(std::span<const std::byte> input) {
  KvRun run{.blocks = 1, .layers = 1, .kv_heads = 1, .block_tokens = 16, .head_dim = 64};
  run.blocks = static_cast<uint32_t>(input.size() / run.RawBytes() + 1);
  std::vector<std::byte> raw(run.RawBytes()), encoded(EncodedKvBound(run)), back(raw.size());
  std::copy(input.begin(), input.end(), raw.begin());
  for (const KvCodec codec : {KvCodec::kLx16, KvCodec::kLxr}) {
    const auto used = EncodeKv({codec, 0}, run, {}, raw, encoded);
    PENSTOCK_CHECK(used.ok());
    PENSTOCK_CHECK(DecodeKv({codec, 0}, run, {}, std::span(encoded).first(*used), back).ok());
    PENSTOCK_CHECK(back == raw);
  }
}

// A header with a right checksum decodes to what encodes to the same bytes, or is refused.
void FuzzHeader(std::span<const std::byte> input) {
  if (input.size() < kKvCodecHeaderBytes) return;
  KvCodecHeaderBytes bytes;
  std::copy_n(input.begin(), bytes.size(), bytes.begin());
  const uint32_t crc = Crc32c(std::span(bytes).first(60));
  std::memcpy(bytes.data() + 60, &crc, sizeof(crc));
  if (const auto header = DecodeKvCodecHeader(bytes); header.ok()) {
    PENSTOCK_CHECK(EncodeKvCodecHeader(*header) == bytes);
    PENSTOCK_CHECK_LE(header->run.RawBytes(), kKvRunBytesMax);
  }
}

void FuzzCalibration(std::span<const std::byte> input) {
  if (const auto parsed = KvCalibration::Parse(input); parsed.ok()) {
    const std::vector<std::byte> bytes = parsed->Serialise();
    PENSTOCK_CHECK(std::ranges::equal(bytes, input));
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 4) return 0;
  const auto input = std::as_bytes(std::span(data, size));
  const auto rest = input.subspan(1);
  switch (data[0] % 4) {
    case 0:
    case 1:
      FuzzPayload(rest);
      break;
    case 2:
      FuzzValues(rest);
      break;
    default:
      FuzzHeader(rest);
      FuzzCalibration(rest);
  }
  return 0;
}
