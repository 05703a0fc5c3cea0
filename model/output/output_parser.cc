#include "model/output/output_parser.h"

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

using Kind = OutputPiece::Kind;

constexpr std::string_view kBlank = " \n\r\t";

// `text` within a JSON string.
std::string Escaped(std::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      escaped += '\\';
      escaped += c;
    } else if (c == '\n') {
      escaped += "\\n";
    } else if (static_cast<unsigned char>(c) < 0x20) {
      escaped += fmt::format("\\u{:04x}", static_cast<int>(c));
    } else {
      escaped += c;
    }
  }
  return escaped;
}

// The length of the longest end of `text` that is a true beginning of `marker`.
size_t BegunAtEnd(std::string_view text, std::string_view marker) {
  if (marker.empty()) return 0;
  for (size_t length = std::min(text.size(), marker.size() - 1); length > 0; --length) {
    if (text.ends_with(marker.substr(0, length))) return length;
  }
  return 0;
}

std::string Joined(std::string_view first, std::string_view second) {
  return std::string(first) + std::string(second);
}

}  // namespace

OutputParser::OutputParser(OutputParts parts)
    : parts_(std::move(parts)),
      opening_(parts_.calls == nullptr
                   ? ""
                   : Joined(parts_.calls->section_begin, parts_.calls->call_begin)),
      again_(parts_.calls == nullptr ? ""
                                     : Joined(parts_.calls->separator, parts_.calls->call_begin)),
      message_end_(parts_.reasoning != nullptr && parts_.reasoning->messages()
                       ? parts_.reasoning->end
                       : "") {
  if (parts_.reasoning == nullptr) state_ = State::kContent;
  if (parts_.reasoning != nullptr && parts_.reasoning_begun) state_ = State::kReasoning;
}

std::vector<OutputPiece> OutputParser::Feed(std::string_view text) {
  held_ += text;
  while (Step()) {
  }
  return std::exchange(pieces_, {});
}

std::vector<OutputPiece> OutputParser::Flush() {
  const std::string rest = WithoutCutBorder(std::exchange(held_, ""));
  switch (state_) {
    case State::kReasoning:
      EmitReasoning(rest);
      break;
    case State::kBegin:
    case State::kContent:
      EmitContent(rest);
      // Blanks alone are an answer, except beside calls and behind reasoning.
      if (calls_ == 0 && !reasoned_) Emit(Kind::kContent, std::exchange(blanks_, ""));
      break;
    case State::kName:
      if (IsCutCall(rest)) break;
      EmitContent(begun_by_);
      EmitContent(rest);
      break;
    case State::kValue:
      EmitValue(rest);
      break;
    case State::kParameters:
    case State::kKey:
    case State::kArguments:
    case State::kTail:
    case State::kNext:
      break;
  }
  state_ = State::kContent;
  return std::exchange(pieces_, {});
}

// The end of an answer, without the beginning of what stands between messages.
std::string OutputParser::WithoutCutBorder(std::string text) const {
  if (message_end_.empty()) return text;
  const ReasoningNotation& notation = *parts_.reasoning;
  const size_t begun = BegunAtEnd(text, message_end_);
  if (begun >= notation.stop.size()) text.resize(text.size() - begun);
  const bool sure = reasoned_ || text.size() >= notation.opening.size();
  if (state_ == State::kBegin && sure && MayOpen(text)) return "";
  return text;
}

// True if `text` is the beginning of a tool's name and of what stands behind it, in a notation
// whose calls are messages: what begins a message is never shown.
bool OutputParser::IsCutCall(std::string_view text) const {
  return !message_end_.empty() && std::ranges::any_of(parts_.tools, [&](const CalledTool& tool) {
    return Joined(tool.name, parts_.calls->name_end).starts_with(text);
  });
}

// True if `text` is the beginning of what begins a message.
bool OutputParser::MayOpen(std::string_view text) const {
  const auto begins = [&](std::string_view marker) { return marker.starts_with(text); };
  return begins(parts_.reasoning->begin) || begins(opening_) ||
         std::ranges::any_of(parts_.reasoning->content_begins, begins);
}

bool OutputParser::Step() {
  if (held_.empty()) return false;
  switch (state_) {
    case State::kBegin:
      return Begin();
    case State::kReasoning:
      return Reason();
    case State::kContent:
      return Content();
    case State::kName:
      return Name();
    case State::kArguments:
      return Arguments();
    case State::kTail:
      return Tail();
    case State::kParameters:
      return Parameters();
    case State::kKey:
      return Key();
    case State::kValue:
      return Value();
    case State::kNext:
      return Next();
  }
  return false;
}

// Reasoning stands at the beginning of an answer or of a message, behind white space at most.
bool OutputParser::Begin() {
  const size_t begin = held_.find_first_not_of(kBlank);
  if (std::min(begin, held_.size()) < kMaxBlanks) {
    if (begin == std::string::npos) return false;
    bool may_open = false;
    const auto opens = [&](std::string_view marker, State state) {
      const std::string_view rest = std::string_view(held_).substr(begin);
      may_open |= marker.starts_with(rest);
      if (!rest.starts_with(marker)) return false;
      Drop(begin + marker.size());
      state_ = state;
      return true;
    };
    if (opens(parts_.reasoning->begin, State::kReasoning)) return true;
    for (const std::string_view marker : parts_.reasoning->content_begins) {
      if (opens(marker, State::kContent)) return true;
    }
    if (may_open) return false;
  }
  state_ = State::kContent;
  return true;
}

bool OutputParser::Reason() {
  const std::string_view marker = parts_.reasoning->end;
  const size_t end = held_.find(marker);
  if (end != std::string::npos) {
    EmitReasoning(std::string_view(held_).substr(0, end));
    Drop(end + marker.size());
    EndReasoning();
    return true;
  }
  const size_t sure = held_.size() - BegunAtEnd(held_, marker);
  EmitReasoning(std::string_view(held_).substr(0, sure));
  Drop(sure);
  return false;
}

// More reasoning, in a further message, begins on a new line.
void OutputParser::EndReasoning() {
  const bool messages = !message_end_.empty();
  newlines_ = messages && reasoned_ ? 1 : 0;
  reasoned_ = true;
  state_ = messages ? State::kBegin : State::kContent;
}

bool OutputParser::Content() {
  const size_t call = opening_.empty() ? std::string::npos : held_.find(opening_);
  const size_t end = message_end_.empty() ? std::string::npos : held_.find(message_end_);
  if (call == end) {  // there is neither
    const size_t begun = std::max(BegunAtEnd(held_, opening_), BegunAtEnd(held_, message_end_));
    EmitContent(std::string_view(held_).substr(0, held_.size() - begun));
    Drop(held_.size() - begun);
    return false;
  }
  EmitContent(std::string_view(held_).substr(0, std::min(call, end)));
  if (call < end) {
    Drop(call + opening_.size());
    begun_by_ = opening_;
    state_ = State::kName;
  } else {
    Drop(end + message_end_.size());
    EndMessage();
  }
  return true;
}

// The content of a further message begins on a new line.
void OutputParser::EndMessage() {
  had_content_ |= has_content_;
  has_content_ = false;
  blanks_ = had_content_ ? "\n" : "";
  reasoned_ = true;
  state_ = State::kBegin;
}

bool OutputParser::Name() {
  const std::string_view name_end = parts_.calls->name_end;
  const std::string_view head = std::string_view(held_).substr(0, kMaxNameBytes + name_end.size());
  const size_t end = head.find(name_end);
  if (end == std::string_view::npos && head.size() < kMaxNameBytes + name_end.size()) return false;
  const std::string name(head.substr(0, end));
  const auto tool = std::ranges::find(parts_.tools, name, &CalledTool::name);
  if (end == std::string_view::npos || tool == parts_.tools.end()) {
    EmitContent(begun_by_);  // and the text behind it is read again
    state_ = State::kContent;
    return true;
  }
  blanks_.clear();
  has_content_ = false;  // white space behind calls is dropped, too
  ++calls_;
  Emit(Kind::kCall, name);
  Drop(end + name_end.size());
  object_ = JsonObjectEnd();
  tool_ = static_cast<size_t>(tool - parts_.tools.begin());
  has_parameters_ = false;
  state_ = parts_.calls->key_begin.empty() ? State::kArguments : State::kParameters;
  return true;
}

bool OutputParser::Arguments() {
  const size_t taken = object_.Feed(held_);
  Emit(Kind::kArguments, std::string_view(held_).substr(0, taken));
  Drop(taken);
  if (!object_.ended()) return false;
  state_ = State::kTail;
  return true;
}

bool OutputParser::Tail() {
  const std::string_view call_end = parts_.calls->call_end;
  if (!Take(call_end) && MayBecome(call_end)) return false;
  state_ = State::kNext;
  return true;
}

bool OutputParser::Parameters() {
  const CallNotation& notation = *parts_.calls;
  if (Take(notation.key_begin)) {
    state_ = State::kKey;
    return true;
  }
  if (MayBecome(notation.key_begin) || MayBecome(notation.call_end)) return false;
  Take(notation.call_end);
  return EndParameters();
}

bool OutputParser::EndParameters() {
  Emit(Kind::kArguments, has_parameters_ ? "}" : "{}");
  state_ = State::kNext;
  return true;
}

bool OutputParser::Key() {
  const std::string_view key_end = parts_.calls->key_end;
  const std::string_view head = std::string_view(held_).substr(0, kMaxNameBytes + key_end.size());
  const size_t end = head.find(key_end);
  if (end == std::string_view::npos) {
    return head.size() == kMaxNameBytes + key_end.size() && EndParameters();
  }
  const std::string key(head.substr(0, end));
  is_text_ = std::ranges::count(parts_.tools[tool_].texts, key) > 0;
  Emit(Kind::kArguments, fmt::format("{}\"{}\": {}", has_parameters_ ? ", " : "{", Escaped(key),
                                     is_text_ ? "\"" : ""));
  has_parameters_ = true;
  Drop(end + key_end.size());
  state_ = State::kValue;
  return true;
}

bool OutputParser::Value() {
  const std::string_view value_end = parts_.calls->value_end;
  const size_t end = held_.find(value_end);
  if (end != std::string::npos) {
    EmitValue(std::string_view(held_).substr(0, end));
    if (is_text_) Emit(Kind::kArguments, "\"");
    Drop(end + value_end.size());
    state_ = State::kParameters;
    return true;
  }
  const size_t sure = held_.size() - BegunAtEnd(held_, value_end);
  EmitValue(std::string_view(held_).substr(0, sure));
  Drop(sure);
  return false;
}

void OutputParser::EmitValue(std::string_view text) {
  Emit(Kind::kArguments, is_text_ ? Escaped(text) : std::string(text));
}

// Behind a call: another one, the end of all calls, or content.
bool OutputParser::Next() {
  if (Take(again_)) {
    begun_by_ = again_;
    state_ = State::kName;
    return true;
  }
  const std::string_view section_end = parts_.calls->section_end;
  if (MayBecome(again_) || MayBecome(section_end)) return false;
  Take(section_end);
  state_ = State::kContent;
  return true;
}

bool OutputParser::Take(std::string_view literal) {
  if (!held_.starts_with(literal)) return false;
  Drop(literal.size());
  return true;
}

bool OutputParser::MayBecome(std::string_view literal) const {
  return held_.size() < literal.size() && literal.starts_with(held_);
}

void OutputParser::Emit(Kind kind, std::string_view text) {
  if (text.empty()) return;
  const bool joins = !pieces_.empty() && pieces_.back().kind == kind && kind != Kind::kCall;
  if (joins) {
    pieces_.back().text += text;
  } else {
    pieces_.push_back({.kind = kind, .text = std::string(text)});
  }
}

// Without the line breaks at both ends.
void OutputParser::EmitReasoning(std::string_view text) {
  for (const char c : text) {
    if (c == '\n') {
      newlines_ += reasoned_ ? 1 : 0;
      continue;
    }
    Emit(Kind::kReasoning, std::string(std::exchange(newlines_, 0), '\n'));
    Emit(Kind::kReasoning, std::string_view(&c, 1));
    reasoned_ = true;
  }
}

// White space before the first content waits: it is dropped if calls follow, and behind reasoning
// or calls.
void OutputParser::EmitContent(std::string_view text) {
  if (!has_content_) {
    const size_t blank = std::min(text.find_first_not_of(kBlank), text.size());
    if (!reasoned_) blanks_ += text.substr(0, blank);
    text.remove_prefix(blank);
    if (text.empty() && blanks_.size() < kMaxBlanks) return;
    Emit(Kind::kContent, std::exchange(blanks_, ""));
    has_content_ = true;
  }
  Emit(Kind::kContent, text);
}

}  // namespace penstock
