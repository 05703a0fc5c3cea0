#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// The name that a tensor of a GGUF file has in Hugging Face's checkpoints ("blk.3.attn_q.weight":
// "model.layers.3.self_attn.q_proj.weight"), for the architectures of GgufConfigJson; absent for
// other names. And the other way. Names of gpt-oss that differ from its checkpoints: the norm
// before the MLP is post_attention_norm, sinks are a weight, and experts have a gate and an up
// projection.
std::optional<std::string> HuggingFaceName(std::string_view gguf_name);
std::optional<std::string> GgufName(std::string_view hugging_face_name);

// True for the weights and biases of queries and keys, whose rows are pairs in files of
// architecture llama (Checkpoint::Tensor::interleaved_head).
bool HasInterleavedRows(std::string_view architecture, std::string_view gguf_name);

// True if each of the tensors ffn_gate_exps, ffn_up_exps and ffn_down_exps of files of the
// architecture has the matrices of all experts of a layer.
bool HasExpertsTogether(std::string_view architecture);

// True for tables that GgufConfigJson reads and the checkpoint does not have ("rope_freqs.weight").
bool IsGgufTable(std::string_view gguf_name);

}  // namespace penstock
