#include "kvstore/codec/codec_calibration.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <fstream>

#include "base/crc32c.h"
#include "kernels/kv_codec.h"

namespace penstock {
namespace {

static_assert(std::endian::native == std::endian::little, "the file is copied as it is in memory");

constexpr char kFileName[] = "kv_calibration.bin";
constexpr uint32_t kFileMagic = 0x4c43564b;  // "KVCL"
constexpr uint32_t kFileVersion = 1;
constexpr int kFileLowBitsMax = 8;
constexpr size_t kElementsMax = size_t{1} << 26;  // limit for the means, far above any model's

struct FileHead {
  uint32_t magic, version;
  KvCalibration::Geometry geometry;
  uint16_t levels;
  uint32_t crc;  // CRC32C of the rest of the file
  uint32_t zero;
};
static_assert(sizeof(FileHead) == 28);

absl::Status CheckGeometry(const KvCalibration::Geometry& geometry) {
  const size_t elements = KvCalibration::Units(geometry) * geometry.head_dim;
  const bool whole = geometry.planes == 1 || geometry.planes == 2;
  if (!whole || geometry.rope_dim >= geometry.head_dim || elements == 0 ||
      elements > kElementsMax) {
    return InvalidArgument(
        "{}: layers {}, kv_heads {}, planes {}, head_dim {}, rope_dim {} are not a valid geometry",
        kFileName, geometry.layers, geometry.kv_heads, geometry.planes, geometry.head_dim,
        geometry.rope_dim);
  }
  return absl::OkStatus();
}

// A model is a directory or a GGUF file.
std::string PathBeside(const std::string& model) {
  return fmt::format("{}{}{}", model, model.ends_with(".gguf") ? "." : "/", kFileName);
}

template <class T>
void Append(std::vector<std::byte>& bytes, const T* values, size_t count) {
  const size_t before = bytes.size();
  bytes.resize(before + count * sizeof(T));
  std::memcpy(bytes.data() + before, values, count * sizeof(T));
}

}  // namespace

KvCalibration::KvCalibration(const Geometry& geometry)
    : geometry_(geometry),
      means_(Units(geometry) * dims()),
      steps_(size_t{kCgxLevels} * geometry.layers * geometry.planes),
      tables_(kCgxLevels * Units(geometry)) {}

size_t KvCalibration::Index(size_t layer, size_t head, size_t plane) const {
  return (layer * geometry_.kv_heads + head) * geometry_.planes + plane;
}

const float* KvCalibration::mean(size_t layer, size_t head, size_t plane) const {
  return means_.data() + Index(layer, head, plane) * dims();
}

float KvCalibration::step(int level, size_t layer, size_t plane) const {
  const size_t at = (static_cast<size_t>(level - 1) * geometry_.layers + layer) * geometry_.planes;
  return steps_[at + plane];
}

const KvCalibration::Table& KvCalibration::table(int level, size_t layer, size_t head,
                                                 size_t plane) const {
  return tables_[static_cast<size_t>(level - 1) * Units(geometry_) + Index(layer, head, plane)];
}

std::vector<std::byte> KvCalibration::Serialise() const {
  std::vector<std::byte> body;
  for (const float mean : means_) {
    const Bf16 rounded = ToBf16(mean);
    Append(body, &rounded, 1);
  }
  Append(body, steps_.data(), steps_.size());
  for (const Table& table : tables_) {
    Append(body, table.frequencies.data(), table.frequencies.size());
    Append(body, &table.low_bits, 1);
  }
  const FileHead head{.magic = kFileMagic,
                      .version = kFileVersion,
                      .geometry = geometry_,
                      .levels = kCgxLevels,
                      .crc = Crc32c(body),
                      .zero = 0};
  std::vector<std::byte> bytes;
  Append(bytes, &head, 1);
  Append(bytes, body.data(), body.size());
  return bytes;
}

void KvCalibration::SetId() {
  const std::vector<std::byte> bytes = Serialise();
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a, a stable 64-bit value
  for (const std::byte byte : bytes) hash = (hash ^ static_cast<uint64_t>(byte)) * 0x100000001b3u;
  id_ = hash == 0 ? 1 : hash;
}

absl::StatusOr<KvCalibration> KvCalibration::Parse(std::span<const std::byte> bytes) {
  FileHead head;
  if (bytes.size() < sizeof(head)) return InvalidArgument("{}: {} bytes", kFileName, bytes.size());
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kFileMagic) return InvalidArgument("{}: magic is {:#x}", kFileName, head.magic);
  if (head.version != kFileVersion || head.levels != kCgxLevels || head.zero != 0) {
    return InvalidArgument("{}: version is {} with {} levels, this build reads {} with {}",
                           kFileName, head.version, head.levels, kFileVersion, kCgxLevels);
  }
  RETURN_IF_ERROR(CheckGeometry(head.geometry));
  const auto dims = static_cast<size_t>(head.geometry.head_dim - head.geometry.rope_dim);
  const size_t units = KvCalibration::Units(head.geometry);
  const size_t steps = size_t{kCgxLevels} * head.geometry.layers * head.geometry.planes;
  const size_t wanted = sizeof(head) + units * dims * sizeof(Bf16) + steps * sizeof(float) +
                        kCgxLevels * units * (kRansSymbols + 1);
  if (bytes.size() != wanted) {
    return InvalidArgument("{}: {} bytes, its geometry makes {}", kFileName, bytes.size(), wanted);
  }
  const std::span<const std::byte> body = bytes.subspan(sizeof(head));
  if (Crc32c(body) != head.crc) {
    return InvalidArgument("{}: checksum is {:#x}, computed {:#x}; run `penstock calibrate` again",
                           kFileName, head.crc, Crc32c(body));
  }
  KvCalibration calibration(head.geometry);
  const std::byte* at = body.data();
  for (float& mean : calibration.means_) {
    Bf16 value;
    std::memcpy(&value, at, sizeof(value));
    at += sizeof(value);
    mean = ToFloat(value);
    if (!(std::fabs(mean) < 1e30f)) return InvalidArgument("{}: a mean is {}", kFileName, mean);
  }
  std::memcpy(calibration.steps_.data(), at, steps * sizeof(float));
  at += steps * sizeof(float);
  for (const float step : calibration.steps_) {
    if (!(step > 1e-30f && step < 1e30f))
      return InvalidArgument("{}: a step is {}", kFileName, step);
  }
  for (Table& table : calibration.tables_) {
    std::memcpy(table.frequencies.data(), at, kRansSymbols);
    table.low_bits = static_cast<uint8_t>(at[kRansSymbols]);
    at += kRansSymbols + 1;
    RansTable checked;
    if (!MakeRansTable(table.frequencies, checked) || table.low_bits > kFileLowBitsMax) {
      return InvalidArgument("{}: a table's frequencies or low bits are out of range", kFileName);
    }
  }
  calibration.SetId();
  return calibration;
}

absl::StatusOr<KvCalibration> KvCalibration::Load(const std::string& model) {
  const std::string path = PathBeside(model);
  std::ifstream file(path, std::ios::binary);
  if (!file) return NotFound("{} cannot be read; `penstock calibrate` makes it", path);
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  return Parse(std::as_bytes(std::span(text)));
}

absl::Status KvCalibration::Save(const std::string& model) const {
  const std::string path = PathBeside(model);
  const std::vector<std::byte> bytes = Serialise();
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(reinterpret_cast<const char*>(bytes.data()), std::ssize(bytes));
  file.close();
  if (!file) return Unavailable("{} cannot be written", path);
  return absl::OkStatus();
}

}  // namespace penstock
