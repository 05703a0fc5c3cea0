// The codecs' names: programs that only read names link no codec.
#include "kvstore/codec/codec.h"

namespace penstock {
namespace {

struct NamedCodec {
  std::string_view name;
  KvCodecSpec spec;
};
constexpr NamedCodec kCodecs[] = {
    {"raw", {KvCodec::kRaw, 0}},   {"lx16", {KvCodec::kLx16, 0}}, {"lxr", {KvCodec::kLxr, 0}},
    {"i8", {KvCodec::kI8, 0}},     {"f8", {KvCodec::kF8, 0}},     {"f8e5m2", {KvCodec::kF8, 1}},
    {"k8v4", {KvCodec::kK8v4, 0}}, {"i4r", {KvCodec::kI4r, 0}},   {"cgx1", {KvCodec::kCgx, 1}},
    {"cgx2", {KvCodec::kCgx, 2}},  {"cgx3", {KvCodec::kCgx, 3}},  {"cgx4", {KvCodec::kCgx, 4}},
    {"cgx5", {KvCodec::kCgx, 5}},  {"kv2", {KvCodec::kKv2, 0}},
};

}  // namespace

std::string KvCodecName(const KvCodecSpec& spec) {
  for (const NamedCodec& codec : kCodecs) {
    if (codec.spec == spec) return std::string(codec.name);
  }
  return fmt::format("unknown ({:#x}, level {})", static_cast<int>(spec.codec), spec.level);
}

absl::StatusOr<KvCodecSpec> ParseKvCodec(std::string_view name) {
  std::string names;
  for (const NamedCodec& codec : kCodecs) {
    if (codec.name == name) return codec.spec;
    names += names.empty() ? "" : ", ";
    names += codec.name;
  }
  return InvalidArgument("KV codec {} is unknown; allowed are {}", name, names);
}

std::vector<KvCodecSpec> AllKvCodecs() {
  std::vector<KvCodecSpec> specs;
  for (const NamedCodec& codec : kCodecs) specs.push_back(codec.spec);
  return specs;
}

bool IsLossless(const KvCodecSpec& spec) {
  return spec.codec == KvCodec::kRaw || spec.codec == KvCodec::kLx16 || spec.codec == KvCodec::kLxr;
}

bool NeedsCalibration(const KvCodecSpec& spec) { return spec.codec == KvCodec::kCgx; }

}  // namespace penstock
