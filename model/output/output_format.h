#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace penstock {

// This room, model/output, knows how families of models write what is not plain text: tool calls
// and reasoning. It finds a model's notation from its chat template, makes the grammar that holds
// answers to the notation and to the tools' schemas, and splits an answer's text into its parts. It
// knows texts; it does not know requests, tokens, or the APIs that show the parts.

// How a family of models writes calls:
//
//   section_begin call_begin NAME name_end ARGUMENTS call_end
//       (separator call_begin NAME name_end ARGUMENTS call_end)* section_end
//
// ARGUMENTS is a JSON object, or, where `key_begin` is not empty, for each parameter
//
//   key_begin KEY key_end VALUE value_end
//
// VALUE is JSON, except that a text is written as it is.
struct CallNotation {
  std::string_view name;                    // as --tool_format has it
  std::span<const std::string_view> words;  // a chat template with all of them is of this family
  std::string_view trigger;                 // where it stands in an answer, a call begins
  std::string_view section_begin;           // with call_begin, it begins with `trigger`
  std::string_view call_begin;
  std::string_view name_end;
  std::string_view call_end;
  std::string_view separator;
  std::string_view section_end;
  std::string_view key_begin = "";
  std::string_view key_end = "";
  std::string_view value_end = "";
  // A template that does not show an earlier call as models write it has these instead of
  // `call_begin` and `name_end`.
  std::string_view shown_begin = "";
  std::string_view shown_name_end = "";
  bool parallel = true;    // templates take several calls in one message
  uint32_t id_length = 0;  // letters and digits of an id; 0: any id
};

// How a family of models marks its reasoning, with which an answer begins.
//
// Where `content_begins` is not empty, an answer is messages with `end` between them. Each begins
// with `begin`, with one of `content_begins`, or as a call does, and a call is the last one.
struct ReasoningNotation {
  std::string_view begin;
  std::string_view end;
  std::string_view word = "";  // a chat template with it is of this family; empty: `end`
  std::span<const std::string_view> content_begins = {};  // the first one begins a final answer
  // The special tokens with which `end`, and what begins a message, begin. Grammars allow `stop`
  // nowhere else. An answer that is cut behind one of them does not show it.
  std::string_view stop = "";
  std::string_view opening = "";

  // The field of an earlier message that templates have it in, where that is another one than
  // `reasoning_content`. Such a template refuses it beside the content of a message with calls.
  std::string_view shown_in = "";

  bool messages() const { return !content_begins.empty(); }
};

// The families. A template is of the first whose words it has.
std::span<const CallNotation> CallNotations();
std::span<const ReasoningNotation> ReasoningNotations();

// nullptr: the template is of no known family, or the name is of none.
const CallNotation* FindCallNotation(std::string_view chat_template);
const CallNotation* CallNotationOf(std::string_view name);
const ReasoningNotation* FindReasoningNotation(std::string_view chat_template);

}  // namespace penstock
