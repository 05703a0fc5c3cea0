#pragma once

#include <string>

namespace penstock {

// The bytes of the bundled model as a GGUF file, with its tokenizer: matrices in Q4_0, but
// attn_v, ffn_down and the output in Q8_0, as people who quantise models mix them.
std::string BundledModelAsGguf();

}  // namespace penstock
