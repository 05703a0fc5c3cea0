#pragma once

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// The resident format of keys and values in pages. Every format except kBf16 keeps a scale for each
// head of each token (kv_quant.h). kF8 is e4m3. kI8 and the four-bit planes of kI4r and kK8v4 keep
// a minimum too. kI4r stores rotated keys. kK3v3 and kK3v2 store rotated keys and values, as levels
// of a normal distribution, in as many bits as the name says for each.
enum class KvDtype : uint8_t {
  kBf16 = 1,
  kF8 = 2,
  kI8 = 3,
  kI4r = 4,
  kK8v4 = 5,
  kK3v3 = 6,
  kK3v2 = 7
};

// The name of a format in flags and in BlockNamespace, such as "bf16" or "k8v4".
constexpr std::string_view KvDtypeName(KvDtype dtype) {
  switch (dtype) {
    case KvDtype::kBf16:
      return "bf16";
    case KvDtype::kF8:
      return "f8";
    case KvDtype::kI8:
      return "i8";
    case KvDtype::kI4r:
      return "i4r";
    case KvDtype::kK8v4:
      return "k8v4";
    case KvDtype::kK3v3:
      return "k3v3";
    case KvDtype::kK3v2:
      return "k3v2";
  }
  return "unknown";
}

inline constexpr KvDtype kKvDtypes[] = {KvDtype::kBf16, KvDtype::kF8,   KvDtype::kI8,
                                        KvDtype::kI4r,  KvDtype::kK8v4, KvDtype::kK3v3,
                                        KvDtype::kK3v2};

constexpr std::optional<KvDtype> KvDtypeOf(std::string_view name) {
  for (const KvDtype dtype : kKvDtypes) {
    if (KvDtypeName(dtype) == name) return dtype;
  }
  return std::nullopt;
}

enum class KvPlane : uint8_t { kKeys = 0, kValues = 1 };

// The bits of a code, without its share of the scale.
constexpr int32_t CodeBits(KvDtype dtype, KvPlane plane) {
  const bool keys = plane == KvPlane::kKeys;
  switch (dtype) {
    case KvDtype::kBf16:
      return 16;
    case KvDtype::kF8:
    case KvDtype::kI8:
      return 8;
    case KvDtype::kK8v4:
      return keys ? 8 : 4;
    case KvDtype::kI4r:
      return 4;
    case KvDtype::kK3v3:
      return 3;
    case KvDtype::kK3v2:
      return keys ? 3 : 2;
  }
  return 0;
}

// True for formats of 2 and 3 bits, whose codes are levels (kv_quant.h).
constexpr bool HasLevels(KvDtype dtype) { return CodeBits(dtype, KvPlane::kValues) < 4; }

// How pages hold keys and values. With a `span`, a query attends to the tokens of its own span in
// bf16, and to those of earlier spans in `dtype`: span i has the positions [i * span, (i + 1) *
// span). So the tokens that matter most are not rounded, as in KIVI (Liu et al., arXiv 2402.02750).
struct KvPageFormat {
  static constexpr int32_t kSpanStep = 64, kSpanMax = 4096;

  KvDtype dtype = KvDtype::kBf16;
  int32_t span = 0;  // tokens, a multiple of kSpanStep; 0: all are attended to in `dtype`
  // Keys in `dtype` are what is left without the mean of the model's keys, which is measured before
  // RoPE, as KVQuant measures keys (Hooper et al., arXiv 2401.18079). Only with a span.
  bool centred = false;
  bool operator==(const KvPageFormat&) const = default;
};

// The name of a format in flags and in BlockNamespace: that of its dtype, with a span "k3v3+128",
// with centred keys "k3v3c+128".
inline std::string KvPageFormatName(const KvPageFormat& format) {
  std::string name(KvDtypeName(format.dtype));
  if (format.centred) name += "c";
  if (format.span > 0) name += "+" + std::to_string(format.span);
  return name;
}

// Pages in bf16 have no span.
inline std::optional<KvPageFormat> KvPageFormatOf(std::string_view name) {
  const size_t plus = std::min(name.find('+'), name.size());
  std::string_view dtype_name = name.substr(0, plus);
  const bool centred = plus < name.size() && dtype_name.ends_with('c');
  if (centred) dtype_name.remove_suffix(1);
  const std::optional<KvDtype> dtype = KvDtypeOf(dtype_name);
  if (!dtype) return std::nullopt;
  KvPageFormat format{.dtype = *dtype, .span = 0, .centred = centred};
  if (plus == name.size()) return format;
  const char* const end = name.data() + name.size();
  const auto [stop, error] = std::from_chars(name.data() + plus + 1, end, format.span);
  const bool number = error == std::errc() && stop == end;
  const bool sound = number && format.span > 0 && format.span <= KvPageFormat::kSpanMax &&
                     format.span % KvPageFormat::kSpanStep == 0;
  if (!sound || *dtype == KvDtype::kBf16) return std::nullopt;
  return format;
}

}  // namespace penstock
