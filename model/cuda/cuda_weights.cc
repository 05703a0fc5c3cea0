#include "model/cuda/cuda_weights.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "model/cuda/code_sections.h"
#include "model/cuda/cuda_upload.h"
#include "model/cuda/latents/latent_heads.h"

namespace penstock {
namespace {

DevicePart WholeOf(const WeightMatrix& matrix) {
  return {.outputs = matrix.outputs(),
          .row_of = [](int64_t row) { return row; },
          .inputs = matrix.inputs()};
}

DevicePart InputsOf(const WeightMatrix& matrix, int64_t first, int64_t count) {
  DevicePart part = WholeOf(matrix);
  part.first_input = first;
  part.inputs = count;
  return part;
}

// The rank's heads of queries, keys and values.
DevicePart QkvPart(const WeightMatrix& qkv, const ModelConfig& config, const ModelShard& shard) {
  const int64_t queries = int64_t{shard.Heads(config.heads)} * config.head_dim;
  const int64_t keys = int64_t{shard.Heads(config.kv_heads)} * config.head_dim;
  DevicePart part = WholeOf(qkv);
  part.outputs = queries + 2 * keys;
  part.row_of = [=](int64_t row) {
    if (row < queries) return shard.rank * queries + row;
    const int64_t plane = (row - queries) / keys, of_plane = (row - queries) % keys;
    return shard.ranks * (queries + plane * keys) + shard.rank * keys + of_plane;
  };
  return part;
}

// The rank's heads of queries, where keys and values are those of latents.
DevicePart QueryPart(const WeightMatrix& queries, const ModelConfig& config,
                     const ModelShard& shard) {
  const int64_t rows = int64_t{shard.Heads(config.heads)} * config.latent.QueryDims();
  DevicePart part = WholeOf(queries);
  part.outputs = rows;
  part.row_of = [=](int64_t row) { return shard.rank * rows + row; };
  return part;
}

// The rank's number of values of an MLP, a multiple of 16. The rank's inputs of quantised `down`
// begin where a device's group may begin, so that they keep their codes.
int64_t ShardWidth(const WeightMatrix& down, const ModelShard& shard) {
  const int64_t unit = down.quantised().empty() ? 16 : kGroupMin;
  return shard.Width((down.inputs() + 15) / 16 * 16, unit);
}

// The rank's rows of gate, then of up, `width` of each. On the host, 16 rows of gate alternate with
// 16 rows of up.
DevicePart GateUpPart(const WeightMatrix& gate_up, const ModelShard& shard, int64_t width) {
  const int64_t half = gate_up.outputs() / 2;
  DevicePart part = WholeOf(gate_up);
  part.outputs = 2 * width;
  part.row_of = [=](int64_t row) -> int64_t {
    const int64_t value = shard.rank * width + row % width;
    if (value >= half) return -1;
    return value / 16 * 32 + (row < width ? 0 : 16) + value % 16;
  };
  return part;
}

// The rank's `width` rows of an MLP without a gate.
DevicePart UpPart(const WeightMatrix& up, const ModelShard& shard, int64_t width) {
  DevicePart part = WholeOf(up);
  part.outputs = width;
  part.row_of = [=, all = up.outputs()](int64_t row) -> int64_t {
    const int64_t value = shard.rank * width + row;
    return value < all ? value : -1;
  };
  return part;
}

// Reads inputs [first, first + count) of a row as bf16, which is exact.
void ReadInputs(const WeightMatrix& from, int64_t row, int64_t first, int64_t count, Bf16* to) {
  if (from.stored() != nullptr) return from.stored()->ReadRow(row, first, count, to);
  std::vector<float> values(static_cast<size_t>(from.inputs()));
  from.GetRow(row, values.data());
  std::transform(values.begin() + first, values.begin() + first + count, to, ToBf16);
}

// Reads row `index` of a part.
void ReadRow(const WeightMatrix& from, const DevicePart& part, int64_t index, Bf16* to) {
  const int64_t row = part.row_of(index);
  const int64_t present =
      row < 0 ? 0 : std::clamp<int64_t>(from.inputs() - part.first_input, 0, part.inputs);
  if (present > 0) ReadInputs(from, row, part.first_input, present, to);
  std::fill(to + present, to + part.inputs, Bf16{});
}

// The bias of a part's rows, in their order. Nothing if the host's matrix has none.
void AppendBias(const std::vector<float>& bias, const DevicePart& part, std::vector<float>& to) {
  if (bias.empty()) return;
  for (int64_t i = 0; i < part.outputs; ++i) {
    const int64_t row = part.row_of(i);
    to.push_back(row < 0 ? 0.0f : bias[static_cast<size_t>(row)]);
  }
}

// The addresses of the sections if the first one begins at `at`.
std::vector<cuda::WeightCodes> PlacesOf(const CodeSections& sections, const std::byte* at) {
  std::vector<cuda::WeightCodes> places;
  for (const CodeSections::Section& section : sections.all()) {
    places.push_back({.data = reinterpret_cast<const uint8_t*>(at),
                      .form = section.form,
                      .first_output = static_cast<int32_t>(section.first_output),
                      .outputs = static_cast<int32_t>(section.outputs)});
    at += cuda::PanelsOf(section.outputs) * sections.panel_bytes(section);
  }
  return places;
}

// As ShardWidth, for all experts of a layer.
int64_t ExpertWidth(const ExpertLayer& layer, const ModelShard& shard) {
  int64_t width = 0;
  for (const GatedWeights& expert : layer.experts) {
    width = std::max(width, ShardWidth(expert.down, shard));
  }
  return width;
}

// A matrix of each expert.
std::vector<const WeightMatrix*> MatricesOf(const ExpertLayer& layer,
                                            WeightMatrix GatedWeights::*matrix) {
  std::vector<const WeightMatrix*> matrices;
  for (const GatedWeights& expert : layer.experts) matrices.push_back(&(expert.*matrix));
  return matrices;
}

class Uploader {
 public:
  Uploader(cuda::InputOrder order, int threads, void* stream)
      : order_(order), stream_(stream), upload_(threads, stream) {}

  // A vector is so small that it goes without a buffer: the call returns when it has been read.
  absl::Status Floats(const std::vector<float>& values, const char* what,
                      cuda::DeviceBuffer& target) {
    if (values.empty()) return absl::OkStatus();
    const size_t bytes = values.size() * sizeof(float);
    ASSIGN_OR_RETURN(target, cuda::DeviceBuffer::Create(bytes, what));
    cuda::CopyToDevice(target.as<void>(), values.data(), bytes, stream_);
    return absl::OkStatus();
  }

  // The token embeddings; none if they are lm_head.
  absl::Status Embedding(const Weights& weights, cuda::DeviceBuffer& target) {
    constexpr char kWhat[] = "token embedding";
    if (weights.embedding_weight.has_value()) {
      return Rows(*weights.embedding_weight, WholeOf(*weights.embedding_weight), kWhat, target);
    }
    const size_t row_bytes = sizeof(Bf16) * static_cast<size_t>(weights.config.hidden);
    const auto* from = weights.embedding.as<const std::byte>();
    if (weights.embedding.bytes() == 0) {
      // Rows of a bf16 lm_head are looked up in place.
      if (weights.lm_head.quantised().empty()) return absl::OkStatus();
      return Rows(weights.lm_head, WholeOf(weights.lm_head), kWhat, target);
    }
    ASSIGN_OR_RETURN(target, cuda::DeviceBuffer::Create(row_bytes * weights.config.vocab, kWhat));
    return upload_.Send(
        weights.config.vocab, row_bytes,
        [&](int64_t first, int64_t count, std::byte* to) {
          std::memcpy(to, from + static_cast<size_t>(first) * row_bytes,
                      static_cast<size_t>(count) * row_bytes);
        },
        target.as<std::byte>());
  }

  absl::Status Positions(const Weights& weights, cuda::DeviceBuffer& target) {
    if (weights.positions.bytes() == 0) return absl::OkStatus();
    ASSIGN_OR_RETURN(target,
                     cuda::DeviceBuffer::Create(weights.positions.bytes(), "position embedding"));
    cuda::CopyToDevice(target.as<void>(), weights.positions.as<const std::byte>(),
                       weights.positions.bytes(), stream_);
    return absl::OkStatus();
  }

  absl::Status Matrix(const WeightMatrix& from, const std::vector<float>& bias,
                      const DevicePart& part, const char* what, CudaMatrix& target) {
    RETURN_IF_ERROR(CheckInputs(part, what));
    target.weight = {.outputs = static_cast<int32_t>(part.outputs),
                     .inputs = static_cast<int32_t>(part.inputs)};
    const CodeSections sections(from, part, order_);
    if (sections.kept()) {
      RETURN_IF_ERROR(Codes(sections, what, target));
    } else {
      RETURN_IF_ERROR(Rows(from, part, what, target.memory));
      target.weight.data = target.memory.as<Bf16>();
    }
    return Bias(bias, part, what, target);
  }

  // The parts around the layer for multi-token prediction, which all ranks have in whole.
  absl::Status Mtp(const MtpWeights& from, CudaWeights& target) {
    RETURN_IF_ERROR(Floats(from.token_norm, "norm of tokens (enorm)", target.mtp.token_norm));
    RETURN_IF_ERROR(
        Floats(from.hidden_norm, "norm of hidden states (hnorm)", target.mtp.hidden_norm));
    RETURN_IF_ERROR(Floats(from.norm, "norm of guesses (shared_head.norm)", target.mtp.norm));
    return Matrix(from.projection, {}, WholeOf(from.projection), "projection of guesses (eh_proj)",
                  target.mtp_projection);
  }

  absl::Status Finish() { return upload_.Finish(); }

  absl::Status Layer(const LayerWeights& from, const ModelConfig& config, const ModelShard& shard,
                     CudaLayer& layer) {
    RETURN_IF_ERROR(Norms(from, layer));
    RETURN_IF_ERROR(Sinks(from.sinks, config, shard, layer.sinks));
    RETURN_IF_ERROR(Attention(from, config, shard, layer));
    if (from.experts.has_value()) return Experts(*from.experts, shard, layer);
    const bool gate = config.names.HasGate();
    const int64_t width = ShardWidth(from.down, shard);
    RETURN_IF_ERROR(
        Matrix(from.gate_up, from.gate_up_bias,
               gate ? GateUpPart(from.gate_up, shard, width) : UpPart(from.gate_up, shard, width),
               gate ? "gate and up projection" : "up projection", layer.gate_up));
    return Matrix(from.down, from.down_bias, InputsOf(from.down, shard.rank * width, width),
                  "down projection", layer.down);
  }

 private:
  absl::Status Attention(const LayerWeights& from, const ModelConfig& config,
                         const ModelShard& shard, CudaLayer& layer) {
    const int64_t heads_width = shard.Of(config).AttentionWidth();
    if (from.latents.has_value()) {
      RETURN_IF_ERROR(Latents(from, config, shard, layer));
    } else {
      RETURN_IF_ERROR(Matrix(from.qkv, from.qkv_bias, QkvPart(from.qkv, config, shard),
                             "qkv projection", layer.qkv));
    }
    return Matrix(from.attention_output, from.attention_output_bias,
                  InputsOf(from.attention_output, shard.rank * heads_width, heads_width),
                  "output projection", layer.attention_output);
  }

  // The projections to latents in whole, because all heads read what they give; the rest of the
  // rank's heads.
  absl::Status Latents(const LayerWeights& from, const ModelConfig& config, const ModelShard& shard,
                       CudaLayer& layer) {
    const LatentWeights& latents = *from.latents;
    DeviceLatents& target = layer.latents.emplace();
    RETURN_IF_ERROR(Matrix(from.qkv, {}, QueryPart(from.qkv, config, shard),
                           "projection to queries", layer.qkv));
    RETURN_IF_ERROR(Matrix(latents.down, {}, WholeOf(latents.down), "projection to latents",
                           layer.latent_down));
    if (!latents.query_norm.empty()) {
      RETURN_IF_ERROR(Matrix(latents.query_down, {}, WholeOf(latents.query_down),
                             "projection to what queries are products of", layer.query_down));
    }
    RETURN_IF_ERROR(Floats(latents.norm, "norm of latents", target.norm));
    RETURN_IF_ERROR(Floats(latents.query_norm, "norm of queries", target.query_norm));
    const LatentHeads heads(config, latents, shard);
    RETURN_IF_ERROR(
        Heads(heads, LatentHeads::Kind::kQueries, "matrices of heads' queries", target.queries));
    return Heads(heads, LatentHeads::Kind::kValues, "matrices of heads' values", target.values);
  }

  absl::Status Heads(const LatentHeads& from, LatentHeads::Kind kind, const char* what,
                     DeviceHeads& target) {
    target.outputs = from.outputs(kind);
    target.inputs = from.inputs(kind);
    const size_t bytes =
        sizeof(Bf16) * static_cast<size_t>(target.outputs) * static_cast<size_t>(target.inputs);
    ASSIGN_OR_RETURN(target.memory,
                     cuda::DeviceBuffer::Create(static_cast<size_t>(from.heads()) * bytes, what));
    return upload_.Send(
        from.heads(), bytes,
        [&](int64_t first, int64_t count, std::byte* to) {
          for (int64_t head = first; head < first + count; ++head, to += bytes) {
            from.Read(kind, head, reinterpret_cast<Bf16*>(to));
          }
        },
        target.memory.as<std::byte>());
  }

  absl::Status Norms(const LayerWeights& from, CudaLayer& layer) {
    RETURN_IF_ERROR(Floats(from.attention_norm, "attention norm", layer.attention_norm));
    RETURN_IF_ERROR(Floats(from.attention_output_norm, "norm of attention's output",
                           layer.attention_output_norm));
    RETURN_IF_ERROR(Floats(from.mlp_norm, "MLP norm", layer.mlp_norm));
    RETURN_IF_ERROR(
        Floats(from.mlp_output_norm, "norm of the MLP's output", layer.mlp_output_norm));
    RETURN_IF_ERROR(Floats(from.q_norm, "norm of queries", layer.q_norm));
    return Floats(from.k_norm, "norm of keys", layer.k_norm);
  }

  // Those of the rank's heads.
  absl::Status Sinks(const std::vector<float>& from, const ModelConfig& config,
                     const ModelShard& shard, cuda::DeviceBuffer& target) {
    if (from.empty()) return absl::OkStatus();
    const int32_t heads = shard.Heads(config.heads);
    const auto first = from.begin() + ptrdiff_t{shard.rank} * heads;
    return Floats({first, first + heads}, "attention sinks", target);
  }

  // The router and the rank's part of every expert.
  absl::Status Experts(const ExpertLayer& from, const ModelShard& shard, CudaLayer& layer) {
    DeviceExperts& target = layer.experts.emplace();
    std::vector<float> router = from.router;
    router.insert(router.end(), from.shared_gate.begin(), from.shared_gate.end());
    RETURN_IF_ERROR(Floats(router, "router", target.router));
    RETURN_IF_ERROR(Floats(from.router_bias, "bias of the router", target.router_bias));
    RETURN_IF_ERROR(Floats(from.choice_bias, "bias of the choice", target.choice_bias));
    const int64_t width = ExpertWidth(from, shard), first = shard.rank * width;
    const DevicePart gate_up = GateUpPart(from.experts[0].gate_up, shard, width);
    RETURN_IF_ERROR(Grouped(MatricesOf(from, &GatedWeights::gate_up), gate_up,
                            "experts' gate and up projections", target.gate_up));
    const DevicePart down = InputsOf(from.experts[0].down, first, width);
    RETURN_IF_ERROR(Grouped(MatricesOf(from, &GatedWeights::down), down,
                            "experts' down projections", target.down));
    // One rank adds the biases of the outputs to the ranks' sum.
    const DevicePart outputs = shard.rank == 0 ? down : DevicePart{};
    RETURN_IF_ERROR(ExpertBiases(from, gate_up, outputs, target));
    target.shared = from.shared.has_value();
    target.shared_gate = !from.shared_gate.empty();
    if (!target.shared) return absl::OkStatus();
    return SharedExpert(*from.shared, shard, layer);
  }

  absl::Status SharedExpert(const GatedWeights& from, const ModelShard& shard, CudaLayer& layer) {
    const int64_t width = ShardWidth(from.down, shard);
    RETURN_IF_ERROR(Matrix(from.gate_up, {}, GateUpPart(from.gate_up, shard, width),
                           "shared expert's gate and up projection", layer.gate_up));
    return Matrix(from.down, {}, InputsOf(from.down, shard.rank * width, width),
                  "shared expert's down projection", layer.down);
  }

  absl::Status ExpertBiases(const ExpertLayer& from, const DevicePart& gate_up,
                            const DevicePart& down, DeviceExperts& target) {
    std::vector<float> of_gate_up, of_down;
    for (const GatedWeights& expert : from.experts) {
      AppendBias(expert.gate_up_bias, gate_up, of_gate_up);
      AppendBias(expert.down_bias, down, of_down);
    }
    RETURN_IF_ERROR(Floats(of_gate_up, "biases of experts' gates", target.gate_up.bias));
    return Floats(of_down, "biases of experts' outputs", target.down.bias);
  }

  // Own products multiply them, whatever multiplies other matrices.
  absl::Status Grouped(const std::vector<const WeightMatrix*>& from, const DevicePart& part,
                       const char* what, DeviceMatrices& target) {
    RETURN_IF_ERROR(CheckInputs(part, what));
    target.weight = {.outputs = static_cast<int32_t>(part.outputs),
                     .inputs = static_cast<int32_t>(part.inputs),
                     .experts = static_cast<int32_t>(from.size())};
    std::vector<CodeSections> codes;
    for (const WeightMatrix* matrix : from) {
      codes.emplace_back(*matrix, part, cuda::InputOrder::kOwn);
    }
    const bool alike =
        std::ranges::all_of(codes, [&](const auto& any) { return any.all() == codes[0].all(); });
    if (alike && codes[0].kept()) return GroupedCodes(codes, what, target);
    ASSIGN_OR_RETURN(target.memory,
                     cuda::DeviceBuffer::Create(from.size() * target.ExpandedBytes(), what));
    target.weight.data = target.memory.as<Bf16>();
    Bf16* to = target.memory.as<Bf16>();
    for (const WeightMatrix* matrix : from) {
      RETURN_IF_ERROR(SendRows(*matrix, part, to));
      to += part.outputs * part.inputs;
    }
    return absl::OkStatus();
  }

  absl::Status GroupedCodes(const std::vector<CodeSections>& codes, const char* what,
                            DeviceMatrices& target) {
    const size_t each = codes[0].bytes();
    ASSIGN_OR_RETURN(target.memory, cuda::DeviceBuffer::Create(codes.size() * each, what));
    auto* to = target.memory.as<std::byte>();
    target.sections = PlacesOf(codes[0], to);
    target.weight.sections = target.sections.data();
    target.weight.section_count = static_cast<int32_t>(target.sections.size());
    target.weight.expert_bytes = static_cast<int64_t>(each);
    for (const CodeSections& sections : codes) {
      RETURN_IF_ERROR(SendCodes(sections, to));
      to += each;
    }
    return absl::OkStatus();
  }

  static absl::Status CheckInputs(const DevicePart& part, const char* what) {
    if (part.inputs % 8 == 0) return absl::OkStatus();
    return FailedPrecondition(
        "{} has {} inputs; the CUDA kernels need a multiple of 8; use --device=cpu instead", what,
        part.inputs);
  }

  absl::Status Rows(const WeightMatrix& from, const DevicePart& part, const char* what,
                    cuda::DeviceBuffer& target) {
    const int64_t bytes = static_cast<int64_t>(sizeof(Bf16)) * part.outputs * part.inputs;
    ASSIGN_OR_RETURN(target, cuda::DeviceBuffer::Create(static_cast<size_t>(bytes), what));
    return SendRows(from, part, target.as<Bf16>());
  }

  absl::Status SendRows(const WeightMatrix& from, const DevicePart& part, Bf16* target) {
    return upload_.Send(
        part.outputs, sizeof(Bf16) * static_cast<size_t>(part.inputs),
        [&](int64_t first, int64_t count, std::byte* to) {
          auto* row = reinterpret_cast<Bf16*>(to);
          for (int64_t i = first; i < first + count; ++i, row += part.inputs) {
            ReadRow(from, part, i, row);
          }
        },
        reinterpret_cast<std::byte*>(target));
  }

  absl::Status Codes(const CodeSections& sections, const char* what, CudaMatrix& target) {
    ASSIGN_OR_RETURN(target.memory, cuda::DeviceBuffer::Create(sections.bytes(), what));
    target.sections = PlacesOf(sections, target.memory.as<std::byte>());
    target.weight.sections = target.sections.data();
    target.weight.section_count = static_cast<int32_t>(target.sections.size());
    return SendCodes(sections, target.memory.as<std::byte>());
  }

  // The sections one behind the other.
  absl::Status SendCodes(const CodeSections& sections, std::byte* to) {
    for (const CodeSections::Section& section : sections.all()) {
      const int64_t panels = cuda::PanelsOf(section.outputs);
      const auto fill = [&](int64_t first, int64_t count, std::byte* panel) {
        sections.Fill(section, first, count, panel);
      };
      RETURN_IF_ERROR(upload_.Send(panels, sections.panel_bytes(section), fill, to));
      to += panels * sections.panel_bytes(section);
    }
    return absl::OkStatus();
  }

  absl::Status Bias(const std::vector<float>& bias, const DevicePart& part, const char* what,
                    CudaMatrix& target) {
    if (bias.empty()) return absl::OkStatus();
    std::vector<float> ordered;
    AppendBias(bias, part, ordered);
    RETURN_IF_ERROR(Floats(ordered, what, target.bias_memory));
    target.bias = target.bias_memory.as<float>();
    return absl::OkStatus();
  }

  const cuda::InputOrder order_;
  void* const stream_;
  CudaUpload upload_;
};

size_t BytesOf(const CudaMatrix& matrix) {
  return matrix.memory.bytes() + matrix.bias_memory.bytes();
}

}  // namespace

std::vector<const CudaMatrix*> CudaLayer::Matrices() const {
  std::vector<const CudaMatrix*> matrices = {&qkv, &attention_output};
  if (latents.has_value()) matrices.push_back(&latent_down);
  if (query_down.weight.outputs > 0) matrices.push_back(&query_down);
  if (HasMlp()) matrices.insert(matrices.end(), {&gate_up, &down});
  return matrices;
}

absl::StatusOr<std::unique_ptr<CudaWeights>> CudaWeights::Upload(const Weights& weights,
                                                                 const ModelShard& shard,
                                                                 cuda::InputOrder order,
                                                                 int threads, void* stream) {
  auto target = std::make_unique<CudaWeights>();
  Uploader uploader(order, threads, stream);
  RETURN_IF_ERROR(uploader.Embedding(weights, target->embedding));
  RETURN_IF_ERROR(uploader.Positions(weights, target->positions));
  target->layers.resize(weights.layers.size());
  for (size_t i = 0; i < weights.layers.size(); ++i) {
    RETURN_IF_ERROR(uploader.Layer(weights.layers[i], weights.config, shard, target->layers[i]));
  }
  if (weights.mtp.has_value()) RETURN_IF_ERROR(uploader.Mtp(*weights.mtp, *target));
  RETURN_IF_ERROR(uploader.Floats(weights.final_norm, "final norm", target->final_norm));
  // Only rank 0 makes logits; but if lm_head is the embedding too, all ranks need it.
  if (shard.rank == 0 || target->embedding.bytes() == 0) {
    RETURN_IF_ERROR(uploader.Matrix(weights.lm_head, {}, WholeOf(weights.lm_head), "output matrix",
                                    target->lm_head));
  }
  RETURN_IF_ERROR(uploader.Finish());
  return target;
}

std::vector<const CudaMatrix*> CudaWeights::Matrices() const {
  std::vector<const CudaMatrix*> all;
  for (const CudaLayer& layer : layers) {
    for (const CudaMatrix* matrix : layer.Matrices()) all.push_back(matrix);
  }
  if (mtp_projection.weight.outputs > 0) all.push_back(&mtp_projection);
  return all;
}

size_t CudaWeights::bytes() const {
  size_t bytes = embedding.bytes() + positions.bytes() + final_norm.bytes() + BytesOf(lm_head) +
                 mtp.bytes() + BytesOf(mtp_projection);
  for (const CudaLayer& layer : layers) {
    bytes += layer.attention_norm.bytes() + layer.attention_output_norm.bytes() +
             layer.mlp_norm.bytes() + layer.mlp_output_norm.bytes() + layer.q_norm.bytes() +
             layer.k_norm.bytes() + layer.sinks.bytes();
    for (const CudaMatrix* matrix : layer.Matrices()) bytes += BytesOf(*matrix);
    if (layer.experts.has_value()) bytes += layer.experts->bytes();
    if (layer.latents.has_value()) bytes += layer.latents->bytes();
  }
  return bytes;
}

}  // namespace penstock
