#include "model/output/output_format.h"

#include <algorithm>
#include <array>

namespace penstock {
namespace {

using Words = std::string_view;

constexpr Words kQwen3Coder[] = {"<function=", "<parameter="};
constexpr Words kGlm45[] = {"<arg_key>", "<arg_value>"};
constexpr Words kDeepSeekV3[] = {"<｜tool▁calls▁begin｜>", "```json"};
constexpr Words kDeepSeekV31[] = {"<｜tool▁calls▁begin｜>"};
constexpr Words kMistralArgs[] = {"[TOOL_CALLS]", "[ARGS]"};
constexpr Words kMistral[] = {"[TOOL_CALLS]"};
constexpr Words kPhi4Mini[] = {"<|tool_call|>", "<|/tool_call|>"};
constexpr Words kGranite[] = {"<|tool_call|>", "<|start_of_role|>"};
constexpr Words kLlama3[] = {"ipython", "\"parameters\""};
constexpr Words kHarmony[] = {"<|channel|>commentary", "functions."};
constexpr Words kHermes[] = {"<tool_call>", "arguments"};

constexpr std::string_view kHarmonyCall = "<|channel|>commentary to=functions.";
constexpr std::string_view kHarmonyContent[] = {"<|channel|>final<|message|>",
                                                "<|channel|>commentary<|message|>"};

// Sources: the families' chat templates, OpenAI's description of harmony, and the built-in tags of
// XGrammar.
constexpr std::array kCallNotations = {
    CallNotation{.name = "qwen3-coder",
                 .words = kQwen3Coder,
                 .trigger = "<tool_call>",
                 .call_begin = "<tool_call>\n<function=",
                 .name_end = ">\n",
                 .call_end = "</function>\n</tool_call>",
                 .separator = "\n",
                 .key_begin = "<parameter=",
                 .key_end = ">\n",
                 .value_end = "\n</parameter>\n"},
    CallNotation{.name = "glm-4.5",
                 .words = kGlm45,
                 .trigger = "<tool_call>",
                 .call_begin = "<tool_call>",
                 .name_end = "\n",
                 .call_end = "</tool_call>",
                 .separator = "\n",
                 .key_begin = "<arg_key>",
                 .key_end = "</arg_key>\n<arg_value>",
                 .value_end = "</arg_value>\n"},
    CallNotation{.name = "deepseek-v3",
                 .words = kDeepSeekV3,
                 .trigger = "<｜tool▁calls▁begin｜>",
                 .section_begin = "<｜tool▁calls▁begin｜>",
                 .call_begin = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>",
                 .name_end = "\n```json\n",
                 .call_end = "\n```<｜tool▁call▁end｜>",
                 .separator = "\n",
                 .section_end = "<｜tool▁calls▁end｜>"},
    CallNotation{.name = "deepseek-v3.1",
                 .words = kDeepSeekV31,
                 .trigger = "<｜tool▁calls▁begin｜>",
                 .section_begin = "<｜tool▁calls▁begin｜>",
                 .call_begin = "<｜tool▁call▁begin｜>",
                 .name_end = "<｜tool▁sep｜>",
                 .call_end = "<｜tool▁call▁end｜>",
                 .section_end = "<｜tool▁calls▁end｜>"},
    CallNotation{.name = "mistral-args",
                 .words = kMistralArgs,
                 .trigger = "[TOOL_CALLS]",
                 .call_begin = "[TOOL_CALLS]",
                 .name_end = "[ARGS]",
                 .id_length = 9},
    CallNotation{.name = "mistral",
                 .words = kMistral,
                 .trigger = "[TOOL_CALLS]",
                 .section_begin = "[TOOL_CALLS][",
                 .call_begin = R"({"name": ")",
                 .name_end = R"(", "arguments": )",
                 .call_end = "}",
                 .separator = ", ",
                 .section_end = "]",
                 .id_length = 9},
    CallNotation{.name = "phi4-mini",
                 .words = kPhi4Mini,
                 .trigger = "<|tool_call|>",
                 .section_begin = "<|tool_call|>[",
                 .call_begin = R"({"name": ")",
                 .name_end = R"(", "arguments": )",
                 .call_end = "}",
                 .separator = ", ",
                 .section_end = "]<|/tool_call|>"},
    CallNotation{.name = "granite",
                 .words = kGranite,
                 .trigger = "<|tool_call|>",
                 .section_begin = "<|tool_call|>[",
                 .call_begin = R"({"name": ")",
                 .name_end = R"(", "arguments": )",
                 .call_end = "}",
                 .separator = ", ",
                 .section_end = "]"},
    // Its templates refuse a message with several calls.
    CallNotation{.name = "llama3",
                 .words = kLlama3,
                 .trigger = R"({"name": ")",
                 .call_begin = R"({"name": ")",
                 .name_end = R"(", "parameters": )",
                 .call_end = "}",
                 .parallel = false},
    // gpt-oss. A token that ends the answer, <|call|>, follows. Its template shows the first call
    // of a message alone, and the tool in the message's role.
    CallNotation{.name = "harmony",
                 .words = kHarmony,
                 .trigger = kHarmonyCall,
                 .call_begin = kHarmonyCall,
                 .name_end = " <|constrain|>json<|message|>",
                 .shown_begin = " to=functions.",
                 .shown_name_end = "<|channel|>commentary json<|message|>",
                 .parallel = false},
    // Qwen 2.5, Qwen 3 and many others, too.
    CallNotation{.name = "hermes",
                 .words = kHermes,
                 .trigger = "<tool_call>",
                 .call_begin = "<tool_call>\n{\"name\": \"",
                 .name_end = R"(", "arguments": )",
                 .call_end = "}\n</tool_call>",
                 .separator = "\n"},
};

constexpr std::array kReasoningNotations = {
    ReasoningNotation{.begin = "<think>", .end = "</think>"},
    ReasoningNotation{.begin = "[THINK]", .end = "[/THINK]"},
    // gpt-oss's harmony. A message of the channel commentary is a preamble, which users see.
    ReasoningNotation{.begin = "<|channel|>analysis<|message|>",
                      .end = "<|end|><|start|>assistant",
                      .word = "<|channel|>analysis<|message|>",
                      .content_begins = kHarmonyContent,
                      .stop = "<|end|>",
                      .opening = "<|channel|>",
                      .shown_in = "thinking"},
};

}  // namespace

std::span<const CallNotation> CallNotations() { return kCallNotations; }
std::span<const ReasoningNotation> ReasoningNotations() { return kReasoningNotations; }

const CallNotation* FindCallNotation(std::string_view chat_template) {
  const auto found = std::ranges::find_if(kCallNotations, [&](const CallNotation& notation) {
    return std::ranges::all_of(notation.words, [&](std::string_view word) {
      return chat_template.find(word) != std::string_view::npos;
    });
  });
  return found == kCallNotations.end() ? nullptr : &*found;
}

const CallNotation* CallNotationOf(std::string_view name) {
  const auto found = std::ranges::find(kCallNotations, name, &CallNotation::name);
  return found == kCallNotations.end() ? nullptr : &*found;
}

const ReasoningNotation* FindReasoningNotation(std::string_view chat_template) {
  const auto found =
      std::ranges::find_if(kReasoningNotations, [&](const ReasoningNotation& notation) {
        const std::string_view word = notation.word.empty() ? notation.end : notation.word;
        return chat_template.find(word) != std::string_view::npos;
      });
  return found == kReasoningNotations.end() ? nullptr : &*found;
}

}  // namespace penstock
