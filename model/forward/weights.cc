#include "model/forward/weights.h"

#include <cstring>

#include "base/check.h"

namespace penstock {
namespace {

constexpr int64_t kGate = 16;  // alternating rows of gate and of up projection

int64_t PaddedIntermediate(const ModelConfig& config) {
  return (config.intermediate + kGate - 1) / kGate * kGate;
}

int64_t QkvRows(const ModelConfig& config) {
  return int64_t{config.heads + 2 * config.kv_heads} * config.head_dim;
}

absl::Status CheckConfig(const ModelConfig& config) {
  if (config.layers < 1 || config.hidden < 1 || config.intermediate < 1 || config.vocab < 1) {
    return InvalidArgument("layers, hidden, intermediate and vocab must be positive: {} {} {} {}",
                           config.layers, config.hidden, config.intermediate, config.vocab);
  }
  if (config.hidden % 2 != 0) {
    return InvalidArgument("hidden_size is {}, it must be even", config.hidden);
  }
  if (config.head_dim < 8 || config.head_dim % 8 != 0) {
    return InvalidArgument("head_dim is {}, it must be a multiple of 8", config.head_dim);
  }
  if (config.kv_heads < 1 || config.heads % config.kv_heads != 0 ||
      config.heads / config.kv_heads > 128) {
    return InvalidArgument(
        "num_attention_heads is {} and num_key_value_heads {}: the first must be a multiple of the "
        "second, up to 128 times it",
        config.heads, config.kv_heads);
  }
  return absl::OkStatus();
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = (half & 0x8000u) << 16, exponent = (half >> 10) & 0x1fu;
  const uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255u : exponent + 112u;
  return std::bit_cast<float>(sign | wide << 23 | mantissa << 13);
}

size_t ElementBytes(TensorDtype dtype) { return dtype == TensorDtype::kF32 ? 4 : 2; }

// Reads element `index` of an array that may be unaligned.
template <class T>
T Element(const std::byte* array, int64_t index) {
  T value;
  std::memcpy(&value, array + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

// Converts elements [first, first + count), rounded to nearest.
void ToBf16s(const TensorView& tensor, int64_t first, int64_t count, Bf16* target) {
  const std::byte* bytes = tensor.bytes.data();
  switch (tensor.dtype) {
    case TensorDtype::kBf16:
      std::memcpy(target, bytes + first * 2, static_cast<size_t>(count) * 2);
      return;
    case TensorDtype::kF16:
      for (int64_t i = 0; i < count; ++i) {
        target[i] = ToBf16(HalfToFloat(Element<uint16_t>(bytes, first + i)));
      }
      return;
    case TensorDtype::kF32:
      for (int64_t i = 0; i < count; ++i) target[i] = ToBf16(Element<float>(bytes, first + i));
  }
}

float FloatAt(const TensorView& tensor, int64_t i) {
  switch (tensor.dtype) {
    case TensorDtype::kBf16:
      return ToFloat({Element<uint16_t>(tensor.bytes.data(), i)});
    case TensorDtype::kF16:
      return HalfToFloat(Element<uint16_t>(tensor.bytes.data(), i));
    case TensorDtype::kF32:
      break;
  }
  return Element<float>(tensor.bytes.data(), i);
}

// Fills rows of a packed matrix, padded with zero inputs. fill(row, target) makes one row.
void PackRows(int64_t rows, PackedMatrix& target, const auto& target_row, const auto& fill) {
  std::vector<Bf16> row(static_cast<size_t>(target.inputs()));
  for (int64_t r = 0; r < rows; ++r) {
    fill(r, row.data());
    target.SetRow(target_row(r), row.data());
  }
}

// The row in gate_up of a row of the gate (part 0) or up (part 1) projection.
int64_t GateUpRow(int64_t row, int64_t part) {
  return row / kGate * 2 * kGate + part * kGate + row % kGate;
}

// Fills weights in the order of Build, from any source of matrices and vectors.
class Filler {
 public:
  virtual ~Filler() = default;
  // Stores the rows of the named [rows][inputs] matrix in target rows at(0), at(1), and so on.
  virtual absl::Status Matrix(const std::string& name, int64_t rows, int64_t inputs,
                              PackedMatrix& target, int64_t (*at)(int64_t row, int64_t part),
                              int64_t part) = 0;
  virtual absl::Status Table(const std::string& name, int64_t rows, int64_t columns,
                             Bf16* target) = 0;
  virtual absl::Status Vector(const std::string& name, int64_t size, float* target) = 0;
};

int64_t After(int64_t row, int64_t part) { return part + row; }

class CheckpointFiller final : public Filler {
 public:
  explicit CheckpointFiller(const TensorSource& source) : source_(source) {}

  absl::Status Matrix(const std::string& name, int64_t rows, int64_t inputs, PackedMatrix& target,
                      int64_t (*at)(int64_t, int64_t), int64_t part) override {
    ASSIGN_OR_RETURN(const TensorView tensor, Get(name, {rows, inputs}));
    PackRows(
        rows, target, [&](int64_t row) { return at(row, part); },
        [&](int64_t row, Bf16* to) { ToBf16s(tensor, row * inputs, inputs, to); });
    return absl::OkStatus();
  }
  absl::Status Table(const std::string& name, int64_t rows, int64_t columns,
                     Bf16* target) override {
    ASSIGN_OR_RETURN(const TensorView tensor, Get(name, {rows, columns}));
    ToBf16s(tensor, 0, rows * columns, target);
    return absl::OkStatus();
  }
  absl::Status Vector(const std::string& name, int64_t size, float* target) override {
    ASSIGN_OR_RETURN(const TensorView tensor, Get(name, {size}));
    for (int64_t i = 0; i < size; ++i) target[i] = FloatAt(tensor, i);
    return absl::OkStatus();
  }

 private:
  absl::StatusOr<TensorView> Get(const std::string& name, const std::vector<int64_t>& shape) {
    auto found = source_.Get(name);
    if (!found.ok()) return Annotate(found.status(), name);
    size_t bytes = ElementBytes(found->dtype);
    for (const int64_t extent : shape) bytes *= static_cast<size_t>(extent);
    if (found->shape != shape) {
      return InvalidArgument("tensor {} has shape [{}], config.json implies [{}]", name,
                             fmt::join(found->shape, ", "), fmt::join(shape, ", "));
    }
    if (found->bytes.size() != bytes) {
      return InvalidArgument("tensor {} has {} bytes, its shape needs {}", name,
                             found->bytes.size(), bytes);
    }
    return found;
  }

  const TensorSource& source_;
};

class RandomFiller final : public Filler {
 public:
  RandomFiller(uint64_t seed, float deviation)
      : state_(seed * 2 + 1), scale_(deviation / 37837.0f) {}

  absl::Status Matrix(const std::string&, int64_t rows, int64_t inputs, PackedMatrix& target,
                      int64_t (*at)(int64_t, int64_t), int64_t part) override {
    PackRows(
        rows, target, [&](int64_t row) { return at(row, part); },
        [&](int64_t, Bf16* to) {
          for (int64_t i = 0; i < inputs; ++i) to[i] = ToBf16(Normal());
        });
    return absl::OkStatus();
  }
  absl::Status Table(const std::string&, int64_t rows, int64_t columns, Bf16* target) override {
    for (int64_t i = 0; i < rows * columns; ++i) target[i] = ToBf16(Normal());
    return absl::OkStatus();
  }
  absl::Status Vector(const std::string& name, int64_t size, float* target) override {
    const bool norm = name.find("norm") != std::string::npos;
    for (int64_t i = 0; i < size; ++i) target[i] = norm ? 1.0f : Normal();
    return absl::OkStatus();
  }

 private:
  // The sum of four uniform 16-bit numbers, whose standard deviation is 37837: nearly normal.
  float Normal() {
    state_ += 0x9e3779b97f4a7c15u;  // SplitMix64 (Steele, Lea and Flood, 2014)
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    z ^= z >> 31;
    const auto sum =
        static_cast<int32_t>((z & 0xffff) + (z >> 16 & 0xffff) + (z >> 32 & 0xffff) + (z >> 48));
    return static_cast<float>(sum - 2 * 65535) * scale_;
  }

  uint64_t state_;
  const float scale_;
};

absl::Status FillVector(Filler& filler, const std::string& name, int64_t size,
                        std::vector<float>& target) {
  target.resize(static_cast<size_t>(size));
  return filler.Vector(name, size, target.data());
}

absl::Status FillAttention(const ModelConfig& config, const std::string& prefix, Filler& filler,
                           LayerWeights& layer) {
  const int64_t query = int64_t{config.heads} * config.head_dim;
  const int64_t key = int64_t{config.kv_heads} * config.head_dim;
  layer.qkv = PackedMatrix(QkvRows(config), config.hidden);
  if (config.qkv_bias) layer.qkv_bias.resize(static_cast<size_t>(QkvRows(config)));
  const struct {
    const char* name;
    int64_t first, rows;
  } parts[] = {{"q_proj", 0, query}, {"k_proj", query, key}, {"v_proj", query + key, key}};
  for (const auto& part : parts) {
    const std::string name = prefix + part.name;
    RETURN_IF_ERROR(
        filler.Matrix(name + ".weight", part.rows, config.hidden, layer.qkv, After, part.first));
    if (config.qkv_bias) {
      RETURN_IF_ERROR(filler.Vector(name + ".bias", part.rows, layer.qkv_bias.data() + part.first));
    }
  }
  if (config.qk_norm) {
    RETURN_IF_ERROR(FillVector(filler, prefix + "q_norm.weight", config.head_dim, layer.q_norm));
    RETURN_IF_ERROR(FillVector(filler, prefix + "k_norm.weight", config.head_dim, layer.k_norm));
  }
  layer.attention_output = PackedMatrix(config.hidden, query);
  RETURN_IF_ERROR(filler.Matrix(prefix + "o_proj.weight", config.hidden, query,
                                layer.attention_output, After, 0));
  if (config.output_bias) {
    RETURN_IF_ERROR(
        FillVector(filler, prefix + "o_proj.bias", config.hidden, layer.attention_output_bias));
  }
  return absl::OkStatus();
}

absl::Status FillMlp(const ModelConfig& config, const std::string& prefix, Filler& filler,
                     LayerWeights& layer) {
  const int64_t padded = PaddedIntermediate(config);
  layer.gate_up = PackedMatrix(2 * padded, config.hidden);
  layer.down = PackedMatrix(config.hidden, padded);
  if (config.mlp_bias) layer.gate_up_bias.assign(static_cast<size_t>(2 * padded), 0.0f);
  for (const int64_t part : {0, 1}) {
    const std::string name = prefix + (part == 0 ? "gate_proj" : "up_proj");
    RETURN_IF_ERROR(filler.Matrix(name + ".weight", config.intermediate, config.hidden,
                                  layer.gate_up, GateUpRow, part));
    if (!config.mlp_bias) continue;
    std::vector<float> bias;
    RETURN_IF_ERROR(FillVector(filler, name + ".bias", config.intermediate, bias));
    for (int64_t row = 0; row < config.intermediate; ++row) {
      layer.gate_up_bias[GateUpRow(row, part)] = bias[row];
    }
  }
  RETURN_IF_ERROR(filler.Matrix(prefix + "down_proj.weight", config.hidden, config.intermediate,
                                layer.down, After, 0));
  if (config.mlp_bias) {
    RETURN_IF_ERROR(FillVector(filler, prefix + "down_proj.bias", config.hidden, layer.down_bias));
  }
  return absl::OkStatus();
}

absl::Status FillLayer(const ModelConfig& config, int32_t index, Filler& filler,
                       LayerWeights& layer) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  RETURN_IF_ERROR(
      FillVector(filler, prefix + "input_layernorm.weight", config.hidden, layer.attention_norm));
  RETURN_IF_ERROR(FillAttention(config, prefix + "self_attn.", filler, layer));
  RETURN_IF_ERROR(FillVector(filler, prefix + "post_attention_layernorm.weight", config.hidden,
                             layer.mlp_norm));
  return FillMlp(config, prefix + "mlp.", filler, layer);
}

absl::StatusOr<Weights> Build(const ModelConfig& config, Filler& filler) {
  RETURN_IF_ERROR(CheckConfig(config));
  Weights weights;
  weights.config = config;
  const std::string embedding = "model.embed_tokens.weight";
  weights.lm_head = PackedMatrix(config.vocab, config.hidden);
  RETURN_IF_ERROR(filler.Matrix(config.tied_embeddings ? embedding : "lm_head.weight", config.vocab,
                                config.hidden, weights.lm_head, After, 0));
  if (!config.tied_embeddings) {
    weights.embedding = Buffer(static_cast<size_t>(config.vocab) *
                               static_cast<size_t>(config.hidden) * sizeof(Bf16));
    RETURN_IF_ERROR(
        filler.Table(embedding, config.vocab, config.hidden, weights.embedding.as<Bf16>()));
  }
  weights.layers.resize(static_cast<size_t>(config.layers));
  for (int32_t i = 0; i < config.layers; ++i) {
    RETURN_IF_ERROR(FillLayer(config, i, filler, weights.layers[i]));
  }
  RETURN_IF_ERROR(FillVector(filler, "model.norm.weight", config.hidden, weights.final_norm));
  return weights;
}

}  // namespace

size_t Weights::matrix_bytes() const {
  size_t bytes = lm_head.bytes();
  for (const LayerWeights& layer : layers) {
    bytes += layer.qkv.bytes() + layer.attention_output.bytes() + layer.gate_up.bytes() +
             layer.down.bytes();
  }
  return bytes;
}

size_t Weights::bytes() const { return matrix_bytes() + embedding.bytes(); }

absl::StatusOr<Weights> LoadWeights(const ModelConfig& config, const TensorSource& source) {
  CheckpointFiller filler(source);
  return Build(config, filler);
}

Weights RandomWeights(const ModelConfig& config, uint64_t seed, float deviation) {
  RandomFiller filler(seed, deviation);
  absl::StatusOr<Weights> weights = Build(config, filler);
  PENSTOCK_CHECK(weights.ok());
  return *std::move(weights);
}

}  // namespace penstock
