#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/output/json_end.h"
#include "model/output/output_format.h"

namespace penstock {

// A piece of an answer. Reasoning comes before content, or between messages of it.
struct OutputPiece {
  enum class Kind : uint8_t {
    kReasoning,
    kContent,
    kCall,       // `text` is the name of the tool that is called
    kArguments,  // of the last call: the next piece of a JSON object
  };
  Kind kind;
  std::string text;
  bool operator==(const OutputPiece&) const = default;
};

// A tool that an answer may call.
struct CalledTool {
  std::string name;
  std::vector<std::string> texts = {};  // its parameters that are text (CallNotation.key_begin)
};

// The parts that an answer may have beside content.
struct OutputParts {
  const CallNotation* calls = nullptr;           // nullptr: calls are content
  std::vector<CalledTool> tools;                 // text that calls another tool is content
  const ReasoningNotation* reasoning = nullptr;  // nullptr: there is none
  bool reasoning_begun = false;                  // by the prompt
};

// Splits the text of one answer into its parts while it is written. The joined pieces do not depend
// on how the text is divided into calls. Text that may be the beginning of a marker is held back:
// at most the longest marker, the longest name or key, and kMaxBlanks. Whatever does not follow the
// notation is content. Pure; one thread.
class OutputParser {
 public:
  static constexpr size_t kMaxNameBytes = 128;
  static constexpr size_t kMaxBlanks = 64;

  explicit OutputParser(OutputParts parts);

  // `text` ends at the end of a code point.
  std::vector<OutputPiece> Feed(std::string_view text);
  // Ends the answer: returns the text that was held back.
  std::vector<OutputPiece> Flush();

  bool in_reasoning() const { return state_ == State::kReasoning; }
  uint32_t calls() const { return calls_; }  // begun so far

 private:
  enum class State : uint8_t {
    kBegin,
    kReasoning,
    kContent,
    kName,
    kArguments,  // a JSON object
    kTail,
    kParameters,  // before a key, or before the end of the call
    kKey,
    kValue,
    kNext
  };

  // Each returns false when it needs more text.
  bool Step();
  bool Begin();
  bool Reason();
  bool Content();
  void EndReasoning();
  void EndMessage();
  bool MayOpen(std::string_view text) const;
  bool IsCutCall(std::string_view text) const;
  std::string WithoutCutBorder(std::string text) const;
  bool Name();
  bool Arguments();
  bool Tail();
  bool Parameters();
  bool Key();
  bool Value();
  bool Next();

  void Emit(OutputPiece::Kind kind, std::string_view text);
  void EmitReasoning(std::string_view text);
  void EmitContent(std::string_view text);
  void EmitValue(std::string_view text);
  bool EndParameters();
  // Takes `literal` from the front of the held text, if it is there.
  bool Take(std::string_view literal);
  // True while the held text is shorter than `literal` and begins it.
  bool MayBecome(std::string_view literal) const;
  void Drop(size_t bytes) { held_.erase(0, bytes); }

  const OutputParts parts_;
  const std::string opening_;           // of the first call
  const std::string again_;             // of a further call
  const std::string_view message_end_;  // empty: content goes on to the end
  State state_ = State::kBegin;
  std::string held_;
  std::string blanks_;     // white space before content that may not come
  std::string begun_by_;   // the opening of the call whose name is read
  size_t newlines_ = 0;    // of the reasoning, held back
  bool reasoned_ = false;  // or had another message: white space before content is dropped
  bool has_content_ = false;
  bool had_content_ = false;  // in an earlier message
  uint32_t calls_ = 0;
  JsonObjectEnd object_;
  size_t tool_ = 0;  // that is called, of parts_.tools
  bool has_parameters_ = false;
  bool is_text_ = false;  // the value that is read
  std::vector<OutputPiece> pieces_;
};

}  // namespace penstock
