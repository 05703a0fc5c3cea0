#include "model/tokenizer/marker_tokens.h"

#include <algorithm>
#include <array>

namespace penstock {

bool IsMarkerToken(std::string_view spelling) {
  static constexpr std::array<std::string_view, 24> kMarkers = {"<think>",
                                                                "</think>",
                                                                "[THINK]",
                                                                "[/THINK]",
                                                                "<tool_call>",
                                                                "</tool_call>",
                                                                "<|tool_call|>",
                                                                "<|/tool_call|>",
                                                                "[TOOL_CALLS]",
                                                                "[ARGS]",
                                                                "<｜tool▁calls▁begin｜>",
                                                                "<｜tool▁calls▁end｜>",
                                                                "<｜tool▁call▁begin｜>",
                                                                "<｜tool▁call▁end｜>",
                                                                "<｜tool▁sep｜>",
                                                                "<|channel|>",
                                                                "<|message|>",
                                                                "<|constrain|>",
                                                                "<|start|>",
                                                                "<|end|>",
                                                                "<arg_key>",
                                                                "</arg_key>",
                                                                "<arg_value>",
                                                                "</arg_value>"};
  return std::ranges::find(kMarkers, spelling) != kMarkers.end();
}

}  // namespace penstock
