#include "model/cuda_weights.h"

#include <functional>
#include <utility>

namespace penstock {
namespace {

constexpr int64_t kRowsAtOnce = 1024;

// Which row of the host's matrix a row of the device's is.
using RowOf = std::function<int64_t(int64_t)>;

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

  absl::Status Matrix(
      const PackedMatrix& from, const std::vector<float>& bias, const char* what,
      CudaMatrix& target, const RowOf& row_of = [](int64_t row) { return row; }) {
    const int64_t outputs = from.outputs(), inputs = from.inputs();
    if (inputs % 8 != 0) {
      return FailedPrecondition(
          "{} has {} inputs; the CUDA kernels need a multiple of 8, --device=cpu does without",
          what, inputs);
    }
    ASSIGN_OR_RETURN(target.memory,
                     cuda::DeviceBuffer::Create(sizeof(Bf16) * outputs * inputs, what));
    std::vector<float> row(inputs);
    std::vector<Bf16> rows;
    for (int64_t first = 0; first < outputs; first += kRowsAtOnce) {
      const int64_t end = std::min(outputs, first + kRowsAtOnce);
      rows.clear();
      for (int64_t i = first; i < end; ++i) {
        from.GetRow(row_of(i), row.data());
        for (const float x : row) rows.push_back(ToBf16(x));  // exact: it was bf16
      }
      cuda::CopyToDevice(target.memory.as<Bf16>() + first * inputs, rows.data(),
                         rows.size() * sizeof(Bf16), stream_);
      cuda::Synchronize(stream_);
    }
    target.weight = {.data = target.memory.as<Bf16>(),
                     .outputs = static_cast<int32_t>(outputs),
                     .inputs = static_cast<int32_t>(inputs)};
    if (!bias.empty()) {
      std::vector<float> ordered(outputs);
      for (int64_t i = 0; i < outputs; ++i) ordered[i] = bias[row_of(i)];
      RETURN_IF_ERROR(Floats(ordered, what, target.bias_memory));
      target.bias = target.bias_memory.as<float>();
    }
    return cuda::TakeStatus(what);
  }

  absl::Status Layer(const LayerWeights& from, CudaLayer& layer) {
    RETURN_IF_ERROR(Floats(from.attention_norm, "attention norm", layer.attention_norm));
    RETURN_IF_ERROR(Floats(from.q_norm, "norm of queries", layer.q_norm));
    RETURN_IF_ERROR(Floats(from.k_norm, "norm of keys", layer.k_norm));
    RETURN_IF_ERROR(Floats(from.mlp_norm, "MLP norm", layer.mlp_norm));
    RETURN_IF_ERROR(Matrix(from.qkv, from.qkv_bias, "qkv projection", layer.qkv));
    RETURN_IF_ERROR(Matrix(from.attention_output, from.attention_output_bias, "output projection",
                           layer.attention_output));
    // The host has 16 rows of gate, 16 of up, and so on.
    const int64_t half = from.gate_up.outputs() / 2;
    const auto row_of = [half](int64_t row) {
      const int64_t of_part = row % half;
      return of_part / 16 * 32 + (row < half ? 0 : 16) + of_part % 16;
    };
    RETURN_IF_ERROR(
        Matrix(from.gate_up, from.gate_up_bias, "gate and up projection", layer.gate_up, row_of));
    return Matrix(from.down, from.down_bias, "down projection", layer.down);
  }

 private:
  void* const stream_;
};

size_t BytesOf(const CudaMatrix& matrix) {
  return matrix.memory.bytes() + matrix.bias_memory.bytes();
}

}  // namespace

absl::StatusOr<std::unique_ptr<CudaWeights>> CudaWeights::Upload(const Weights& weights,
                                                                 void* stream) {
  auto target = std::make_unique<CudaWeights>();
  Uploader uploader(stream);
  if (weights.embedding.bytes() > 0) {
    const size_t bytes = sizeof(Bf16) * weights.config.vocab * weights.config.hidden;
    RETURN_IF_ERROR(uploader.Bytes(weights.embedding.as<std::byte>(), bytes, "token embedding",
                                   target->embedding));
  }
  target->layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    RETURN_IF_ERROR(uploader.Layer(weights.layers[i], target->layers[i]));
  }
  RETURN_IF_ERROR(uploader.Floats(weights.final_norm, "final norm", target->final_norm));
  RETURN_IF_ERROR(uploader.Matrix(weights.lm_head, {}, "output matrix", target->lm_head));
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
