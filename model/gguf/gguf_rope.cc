#include "model/gguf/gguf_rope.h"

#include <cmath>
#include <cstring>
#include <numbers>
#include <vector>

namespace penstock {
namespace {

constexpr char kFactorsTensor[] = "rope_freqs.weight";
constexpr double kMaxRopeFactor = 1e4;
constexpr int64_t kMaxRopePosition = int64_t{1} << 24;

// Llama 3.1's parameters. Converters replace them by one divisor a frequency.
constexpr double kLowFrequency = 1;
constexpr double kHighFrequency = 4;
constexpr int kOriginalPositions = 8192;
constexpr double kLlama3Factors[] = {8, 32};
constexpr double kFactorTolerance = 1e-5;

// The divisor of a frequency, as Llama 3.1 extends its context (Llama 3's apply_scaling).
double Llama3Divisor(double frequency, double factor) {
  const double wavelength = 2 * std::numbers::pi / frequency;
  if (wavelength < kOriginalPositions / kHighFrequency) return 1;
  if (wavelength > kOriginalPositions / kLowFrequency) return factor;
  const double smooth =
      (kOriginalPositions / wavelength - kLowFrequency) / (kHighFrequency - kLowFrequency);
  return 1 / ((1 - smooth) / factor + smooth);
}

double DivisorAt(const GgufTensor& tensor, size_t i) {
  float value = 0;
  std::memcpy(&value, tensor.bytes.data() + i * sizeof(value), sizeof(value));
  return value;
}

// True if the tensor's divisors are those of `factor`; a factor of 1 has no effect.
bool AreDivisorsOf(double factor, const GgufTensor& tensor, double theta, int64_t head_dim) {
  for (int64_t i = 0; i < head_dim / 2; i++) {
    const double frequency =
        std::pow(theta, -2.0 * static_cast<double>(i) / static_cast<double>(head_dim));
    const double expected = Llama3Divisor(frequency, factor);
    // Not a number is no divisor.
    if (!(std::abs(DivisorAt(tensor, static_cast<size_t>(i)) - expected) <=
          kFactorTolerance * expected)) {
      return false;
    }
  }
  return true;
}

absl::StatusOr<nlohmann::json> ReadDivisors(const GgufFile& file, const GgufTensor& tensor,
                                            double theta, int64_t head_dim) {
  if (tensor.type->name != "F32" || tensor.shape != std::vector<int64_t>{head_dim / 2}) {
    return InvalidArgument("{}: tensor {} is {} of shape [{}], allowed is F32 of shape [{}]",
                           file.name, kFactorsTensor, tensor.type->name,
                           fmt::join(tensor.shape, ", "), head_dim / 2);
  }
  if (AreDivisorsOf(1, tensor, theta, head_dim)) return nlohmann::json();
  for (const double factor : kLlama3Factors) {
    if (!AreDivisorsOf(factor, tensor, theta, head_dim)) continue;
    return nlohmann::json{{"rope_type", "llama3"},
                          {"factor", factor},
                          {"low_freq_factor", kLowFrequency},
                          {"high_freq_factor", kHighFrequency},
                          {"original_max_position_embeddings", kOriginalPositions}};
  }
  return InvalidArgument(
      "{}: tensor {} has other divisors of the frequencies than Llama 3.1 and 3.2, which extend {} "
      "positions by a factor of {}",
      file.name, kFactorsTensor, kOriginalPositions, fmt::join(kLlama3Factors, " or "));
}

// Keys of YaRN that must have no effect, and the value that has none.
void CheckYarnDefaults(const std::string& prefix, GgufFields& fields) {
  struct Default {
    const char* key;
    double value;
  };
  for (const Default& tested :
       {Default{"attn_factor", 1}, Default{"yarn_attn_factor", 1}, Default{"yarn_ext_factor", 1}}) {
    const std::string key = prefix + tested.key;
    if (fields.Float(key, -1e6, 1e6, tested.value) != tested.value) {
      fields.Fail(key, fmt::format("{:g}", tested.value));
    }
  }
}

nlohmann::json ReadScaling(const std::string& architecture, GgufFields& fields) {
  const std::string prefix = architecture + ".rope.scaling.";
  const std::string old_key = architecture + ".rope.scale_linear";
  const double old_factor = fields.Float(old_key, 1, kMaxRopeFactor, 1);
  const std::string type = fields.String(prefix + "type", 64, old_factor != 1 ? "linear" : "none");
  if (old_factor != 1 && type != "linear") fields.Fail(old_key, "1 unless the type is linear");
  if (type == "none") {
    const double factor = fields.Float(prefix + "factor", 0, kMaxRopeFactor, 1);
    if (factor != 1 && factor != 0) fields.Fail(prefix + "factor", "1: rope.scaling.type is none");
    return {};
  }
  if (type != "linear" && type != "yarn") {
    fields.Fail(prefix + "type", "none, linear or yarn");
    return {};
  }
  const auto without_factor =
      old_factor != 1 ? std::optional<double>(old_factor) : std::optional<double>();
  nlohmann::json scaling = {
      {"rope_type", type},
      {"factor", fields.Float(prefix + "factor", 1, kMaxRopeFactor, without_factor)}};
  if (type == "linear") return scaling;
  CheckYarnDefaults(prefix, fields);
  scaling["original_max_position_embeddings"] =
      fields.Int(prefix + "original_context_length", 1, kMaxRopePosition);
  scaling["beta_fast"] = fields.Float(prefix + "yarn_beta_fast", 1e-3, 1e4, 32);
  scaling["beta_slow"] = fields.Float(prefix + "yarn_beta_slow", 1e-3, 1e4, 1);
  return scaling;
}

}  // namespace

absl::StatusOr<nlohmann::json> GgufRopeScaling(const GgufFile& file,
                                               const std::string& architecture, double theta,
                                               int64_t head_dim, GgufFields& fields) {
  nlohmann::json scaling = ReadScaling(architecture, fields);
  RETURN_IF_ERROR(fields.status());
  const GgufTensor* tensor = file.FindTensor(kFactorsTensor);
  if (tensor == nullptr) return scaling;
  ASSIGN_OR_RETURN(nlohmann::json divisors, ReadDivisors(file, *tensor, theta, head_dim));
  if (divisors.is_null()) return scaling;
  if (scaling.is_null()) return divisors;
  return InvalidArgument("{}: tensor {} and key {}.rope.scaling.type both extend the context",
                         file.name, kFactorsTensor, architecture);
}

}  // namespace penstock
