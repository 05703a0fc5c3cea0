#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace penstock {

// The name that a tensor of a GGUF file has in Hugging Face's checkpoints ("blk.3.attn_q.weight":
// "model.layers.3.self_attn.q_proj.weight"), for the architectures of GgufConfigJson; absent for
// other names. And the other way. Names are those of Llama, of mixtures of experts in Qwen's form
// and of DeepSeek's latents; where a family's checkpoints have others, the names are still these:
// post_attention_norm and post_ffw_norm (Gemma; in gpt-oss and glm4moe the first is the norm before
// the MLP), ln_attn (Falcon's norm of attention beside one of the MLP, which is input_layernorm),
// embed_positions, mlp.router, mlp.experts and mlp.shared_experts, and sinks that are a weight.
std::optional<std::string> HuggingFaceName(std::string_view gguf_name);
std::optional<std::string> GgufName(std::string_view hugging_face_name);

// True for the weights and biases of queries and keys, whose rows are pairs in files of
// architectures llama and granite (Checkpoint::Tensor::interleaved_head).
bool HasInterleavedRows(std::string_view architecture, std::string_view gguf_name);

// True for tables that GgufConfigJson reads and the checkpoint does not have ("rope_freqs.weight").
bool IsGgufTable(std::string_view architecture, std::string_view gguf_name);

}  // namespace penstock
