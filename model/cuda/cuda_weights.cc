#include "model/cuda/cuda_weights.h"

#include <functional>
#include <utility>

namespace penstock {
namespace {

constexpr int64_t kRowsAtOnce = 1024;

// The part of a host matrix that is uploaded. Rows and inputs that the host lacks are zeros.
struct MatrixPart {
  int64_t outputs = 0;
  std::function<int64_t(int64_t)> row_of;  // the host's row for a row of this part; -1: none
  int64_t first_input = 0;
  int64_t inputs = 0;
};

MatrixPart WholeOf(const WeightMatrix& matrix) {
  return {.outputs = matrix.outputs(),
          .row_of = [](int64_t row) { return row; },
          .inputs = matrix.inputs()};
}

MatrixPart InputsOf(const WeightMatrix& matrix, int64_t first, int64_t count) {
  MatrixPart part = WholeOf(matrix);
  part.first_input = first;
  part.inputs = count;
  return part;
}

// The rank's heads of queries, keys and values.
MatrixPart QkvPart(const WeightMatrix& qkv, const ModelConfig& config, const ModelShard& shard) {
  const int64_t queries = int64_t{shard.Heads(config.heads)} * config.head_dim;
  const int64_t keys = int64_t{shard.Heads(config.kv_heads)} * config.head_dim;
  MatrixPart part = WholeOf(qkv);
  part.outputs = queries + 2 * keys;
  part.row_of = [=](int64_t row) {
    if (row < queries) return shard.rank * queries + row;
    const int64_t plane = (row - queries) / keys, of_plane = (row - queries) % keys;
    return shard.ranks * (queries + plane * keys) + shard.rank * keys + of_plane;
  };
  return part;
}

// The rank's rows of gate, then of up. On the host, 16 rows of gate alternate with 16 rows of up.
MatrixPart GateUpPart(const WeightMatrix& gate_up, const ModelShard& shard) {
  const int64_t half = gate_up.outputs() / 2, width = shard.Width(half);
  MatrixPart part = WholeOf(gate_up);
  part.outputs = 2 * width;
  part.row_of = [=](int64_t row) -> int64_t {
    const int64_t value = shard.rank * width + row % width;
    if (value >= half) return -1;
    return value / 16 * 32 + (row < width ? 0 : 16) + value % 16;
  };
  return part;
}

class Uploader {
 public:
  explicit Uploader(void* stream) : stream_(stream) {}

  absl::Status Floats(const std::vector<float>& values, const char* what,
                      cuda::DeviceBuffer& target) {
    if (values.empty()) return absl::OkStatus();
    return Bytes(values.data(), values.size() * sizeof(float), what, target);
  }

  absl::Status Bytes(const void* from, size_t bytes, const char* what, cuda::DeviceBuffer& target) {
    ASSIGN_OR_RETURN(target, cuda::DeviceBuffer::Create(bytes, what));
    cuda::CopyToDevice(target.as<void>(), from, bytes, stream_);
    cuda::Synchronize(stream_);
    return cuda::TakeStatus(what);
  }

  absl::Status Matrix(const WeightMatrix& from, const std::vector<float>& bias,
                      const MatrixPart& part, const char* what, CudaMatrix& target) {
    if (part.inputs % 8 != 0) {
      return FailedPrecondition(
          "{} has {} inputs; the CUDA kernels need a multiple of 8; use --device=cpu instead", what,
          part.inputs);
    }
    ASSIGN_OR_RETURN(target.memory,
                     cuda::DeviceBuffer::Create(sizeof(Bf16) * part.outputs * part.inputs, what));
    std::vector<Bf16> rows;
    for (int64_t first = 0; first < part.outputs; first += kRowsAtOnce) {
      rows.clear();
      for (int64_t i = first; i < std::min(part.outputs, first + kRowsAtOnce); ++i) {
        AppendRow(from, part, i, rows);
      }
      cuda::CopyToDevice(target.memory.as<Bf16>() + first * part.inputs, rows.data(),
                         rows.size() * sizeof(Bf16), stream_);
      cuda::Synchronize(stream_);
    }
    target.weight = {.data = target.memory.as<Bf16>(),
                     .outputs = static_cast<int32_t>(part.outputs),
                     .inputs = static_cast<int32_t>(part.inputs)};
    RETURN_IF_ERROR(Bias(bias, part, what, target));
    return cuda::TakeStatus(what);
  }

  absl::Status Layer(const LayerWeights& from, const ModelConfig& config, const ModelShard& shard,
                     CudaLayer& layer) {
    RETURN_IF_ERROR(Floats(from.attention_norm, "attention norm", layer.attention_norm));
    RETURN_IF_ERROR(Floats(from.q_norm, "norm of queries", layer.q_norm));
    RETURN_IF_ERROR(Floats(from.k_norm, "norm of keys", layer.k_norm));
    RETURN_IF_ERROR(Floats(from.mlp_norm, "MLP norm", layer.mlp_norm));
    RETURN_IF_ERROR(Matrix(from.qkv, from.qkv_bias, QkvPart(from.qkv, config, shard),
                           "qkv projection", layer.qkv));
    const int64_t heads_width = int64_t{shard.Heads(config.heads)} * config.head_dim;
    RETURN_IF_ERROR(Matrix(from.attention_output, from.attention_output_bias,
                           InputsOf(from.attention_output, shard.rank * heads_width, heads_width),
                           "output projection", layer.attention_output));
    RETURN_IF_ERROR(Matrix(from.gate_up, from.gate_up_bias, GateUpPart(from.gate_up, shard),
                           "gate and up projection", layer.gate_up));
    const int64_t width = shard.Width(from.gate_up.outputs() / 2);
    return Matrix(from.down, from.down_bias, InputsOf(from.down, shard.rank * width, width),
                  "down projection", layer.down);
  }

 private:
  void AppendRow(const WeightMatrix& from, const MatrixPart& part, int64_t index,
                 std::vector<Bf16>& rows) {
    const int64_t row = part.row_of(index);
    row_.assign(static_cast<size_t>(from.inputs()), 0.0f);
    if (row >= 0) from.GetRow(row, row_.data());
    const int64_t end = std::min(from.inputs(), part.first_input + part.inputs);
    for (int64_t i = part.first_input; i < end; ++i) {
      rows.push_back(ToBf16(row_[static_cast<size_t>(i)]));  // exact: the value was bf16
    }
    const int64_t missing = part.inputs - std::max<int64_t>(0, end - part.first_input);
    rows.insert(rows.end(), static_cast<size_t>(missing), Bf16{});
  }

  absl::Status Bias(const std::vector<float>& bias, const MatrixPart& part, const char* what,
                    CudaMatrix& target) {
    if (bias.empty()) return absl::OkStatus();
    std::vector<float> ordered(static_cast<size_t>(part.outputs));
    for (int64_t i = 0; i < part.outputs; ++i) {
      const int64_t row = part.row_of(i);
      ordered[static_cast<size_t>(i)] = row < 0 ? 0.0f : bias[static_cast<size_t>(row)];
    }
    RETURN_IF_ERROR(Floats(ordered, what, target.bias_memory));
    target.bias = target.bias_memory.as<float>();
    return absl::OkStatus();
  }

  void* const stream_;
  std::vector<float> row_;
};

size_t BytesOf(const CudaMatrix& matrix) {
  return matrix.memory.bytes() + matrix.bias_memory.bytes();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaWeights>> CudaWeights::Upload(const Weights& weights,
                                                                 const ModelShard& shard,
                                                                 void* stream) {
  if (weights.quantised()) {
    return FailedPrecondition(
        "the weights are quantised ({}), and the CUDA kernels take bf16; use device=cpu, or the "
        "16-bit checkpoint with weights=checkpoint",
        weights.FormName());
  }
  auto target = std::make_unique<CudaWeights>();
  Uploader uploader(stream);
  if (weights.embedding.bytes() > 0) {
    const size_t bytes = sizeof(Bf16) * weights.config.vocab * weights.config.hidden;
    RETURN_IF_ERROR(uploader.Bytes(weights.embedding.as<std::byte>(), bytes, "token embedding",
                                   target->embedding));
  }
  target->layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    RETURN_IF_ERROR(uploader.Layer(weights.layers[i], weights.config, shard, target->layers[i]));
  }
  RETURN_IF_ERROR(uploader.Floats(weights.final_norm, "final norm", target->final_norm));
  // Only rank 0 makes logits; but if lm_head is the embedding too, all ranks need it.
  if (shard.rank == 0 || weights.embedding.bytes() == 0) {
    RETURN_IF_ERROR(uploader.Matrix(weights.lm_head, {}, WholeOf(weights.lm_head), "output matrix",
                                    target->lm_head));
  }
  return target;
}

size_t CudaWeights::bytes() const {
  size_t bytes = embedding.bytes() + final_norm.bytes() + BytesOf(lm_head);
  for (const CudaLayer& layer : layers) {
    bytes += layer.attention_norm.bytes() + layer.q_norm.bytes() + layer.k_norm.bytes() +
             layer.mlp_norm.bytes() + BytesOf(layer.qkv) + BytesOf(layer.attention_output) +
             BytesOf(layer.gate_up) + BytesOf(layer.down);
  }
  return bytes;
}

}  // namespace penstock
