#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include "base/check.h"
#include "kernels/cuda/runtime.h"
#include "kvstore/codec/codec_header.h"
#include "kvstore/codec/device_kv_codec.h"
#include "tests/cuda/cases/device_bytes.h"
#include "tests/fuzz/codec_fuzz_calibration.h"

// The codecs on the emulated device against the CPU's: what one refuses the other does, what one
// makes of bytes the other does.

namespace penstock {
namespace {

// Device memory of exactly these bytes.
struct DeviceBytes {
  explicit DeviceBytes(size_t bytes)
      : data(static_cast<std::byte*>(cuda::AllocateDevice(bytes))), size(bytes) {}
  ~DeviceBytes() { cuda::FreeDevice(data); }
  DeviceBytes(const DeviceBytes&) = delete;
  DeviceBytes& operator=(const DeviceBytes&) = delete;
  std::span<std::byte> span() const { return {data, size}; }
  void Write(std::span<const std::byte> bytes) const {
    cuda::CopyToDevice(data, bytes.data(), bytes.size(), nullptr);
    cuda::Synchronize(nullptr);
  }
  std::vector<std::byte> Read(size_t bytes) const { return cuda::BytesOf(0, data, bytes); }
  std::byte* const data;
  const size_t size;
};

KvRun RunOfInput(std::byte shape) {
  const auto bits = static_cast<unsigned>(shape);
  const bool latent = (bits & 0x80) != 0;
  const uint32_t blocks = bits % 4 + 1;
  return {.blocks = blocks,
          .layers = 2,
          .kv_heads = static_cast<uint16_t>(latent ? 1 : 2),
          .planes = static_cast<uint16_t>(latent ? 1 : 2),
          .block_tokens = 16,
          .head_dim = static_cast<uint16_t>(latent               ? 96
                                            : (bits & 0x40) != 0 ? 32
                                                                 : 64),
          .rope_dim = static_cast<uint16_t>(latent ? 32 : 0),
          .protected_first = static_cast<uint16_t>(blocks > 1 ? 1 : 0)};
}

bool IsCalibrated(const KvRun& run) { return run.planes == 2 && run.head_dim == 64; }

// A NaN's other bits differ from machine to machine.
bool IsSame(Bf16 a, Bf16 b) {
  return a.bits == b.bits || ((a.bits & 0x7fff) > 0x7f80 && (b.bits & 0x7fff) > 0x7f80);
}

class Pair {
 public:
  Pair()
      : device_(*cuda::CudaDevice::Open(0)),
        codec_(*DeviceKvCodec::Create(*device_, device_->stream(), size_t{1} << 18, 2)) {}

  // The payload behind a header that is right.
  void FuzzPayload(const KvCodecSpec& spec, const KvRun& run, std::span<const std::byte> payload) {
    const KvCodecHeaderBytes header =
        EncodeKvCodecHeader({.spec = spec,
                             .run = run,
                             .calibration = NeedsCalibration(spec) ? SmallCalibration().id() : 0,
                             .payload_bytes = static_cast<uint32_t>(payload.size())});
    std::vector<std::byte> encoded(header.begin(), header.end());
    encoded.insert(encoded.end(), payload.begin(), payload.end());
    Compare(spec, run, encoded);
  }

  void FuzzValues(const KvCodecSpec& spec, const KvRun& run, std::span<const std::byte> input) {
    std::vector<std::byte> raw(run.RawBytes()), encoded(EncodedKvBound(run));
    for (size_t i = 0; i < raw.size(); ++i) raw[i] = input[i % input.size()];
    const auto used = EncodeKv(spec, run, context_, raw, encoded);
    PENSTOCK_CHECK(used.ok());
    encoded.resize(*used);
    const DeviceBytes values(raw.size()), bytes(EncodedKvBound(run));
    values.Write(raw);
    const auto here = codec_->Encode(spec, run, context_, values.span(), bytes.span());
    PENSTOCK_CHECK(here.ok());
    PENSTOCK_CHECK(bytes.Read(*here) == encoded);
    Compare(spec, run, encoded);
  }

 private:
  void Compare(const KvCodecSpec& spec, const KvRun& run, std::span<const std::byte> encoded) {
    std::vector<Bf16> there(run.Elements());
    const absl::Status status =
        DecodeKv(spec, run, context_, encoded, std::as_writable_bytes(std::span(there)));
    const DeviceBytes bytes(encoded.size()), values(run.RawBytes());
    bytes.Write(encoded);
    const absl::Status here = codec_->Decode(spec, run, context_, bytes.span(), values.span());
    PENSTOCK_CHECK_EQ(static_cast<int>(here.code()), static_cast<int>(status.code()));
    if (!status.ok()) return;
    const std::vector<std::byte> read = values.Read(values.size);
    PENSTOCK_CHECK(
        std::equal(there.begin(), there.end(), reinterpret_cast<const Bf16*>(read.data()), IsSame));
  }

  const KvCodecContext context_{.calibration = &SmallCalibration(), .checksum = false};
  const std::unique_ptr<cuda::CudaDevice> device_;
  const std::unique_ptr<DeviceKvCodec> codec_;
};

void FuzzOne(std::span<const std::byte> input) {
  static auto* const pair = new Pair();
  static const std::vector<KvCodecSpec> specs = AllKvCodecs();
  const KvCodecSpec spec = specs[static_cast<size_t>(input[1]) % specs.size()];
  const KvRun run = RunOfInput(input[2]);
  if (NeedsCalibration(spec) && !IsCalibrated(run)) return;
  if (static_cast<unsigned>(input[0]) % 2 == 0) {
    pair->FuzzPayload(spec, run, input.subspan(3));
  } else {
    pair->FuzzValues(spec, run, input.subspan(3));
  }
}

}  // namespace
}  // namespace penstock

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size >= 4) penstock::FuzzOne(std::as_bytes(std::span(data, size)));
  return 0;
}
