#pragma once

// Openings of gpt-oss's messages (harmony), as tests of grammar and parser write them.

namespace penstock {

inline constexpr char kAnalysis[] = "<|channel|>analysis<|message|>";
inline constexpr char kFinal[] = "<|channel|>final<|message|>";
inline constexpr char kPreamble[] = "<|channel|>commentary<|message|>";
inline constexpr char kNextMessage[] = "<|end|><|start|>assistant";

}  // namespace penstock
