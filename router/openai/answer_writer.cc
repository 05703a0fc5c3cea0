#include "router/openai/answer_writer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"
#include "router/openai/error.h"
#include "router/openai/message_json.h"
#include "router/openai/prompt_logprobs_json.h"
#include "router/request/json.h"

namespace penstock {
namespace {

using Logprobs = google::protobuf::RepeatedPtrField<v1::TokenLogprob>;

void AppendString(std::string_view name, std::string_view value, std::string& out) {
  out += '"';
  out += name;
  out += "\":";
  AppendJsonString(value, out);
}

template <class Ids>
void AppendIds(const Ids& ids, std::string& out) {
  out += fmt::format("[{}]", fmt::join(ids, ","));
}

void AppendFinishReason(v1::FinishReason reason, std::string& out) {
  out += reason == v1::STOP         ? R"("finish_reason":"stop")"
         : reason == v1::LENGTH     ? R"("finish_reason":"length")"
         : reason == v1::TOOL_CALLS ? R"("finish_reason":"tool_calls")"
                                    : R"("finish_reason":null)";
}

// vLLM's field stop_reason of a Final or a Choice: the matched stop string or token.
template <class Ending>
void AppendStopReason(const Ending& ending, std::string& out) {
  out += R"(,"stop_reason":)";
  if (ending.has_matched_stop_string()) {
    AppendJsonString(ending.matched_stop_string(), out);
  } else if (ending.has_matched_token_id()) {
    out += std::to_string(ending.matched_token_id());
  } else {
    out += "null";
  }
}

// {"token": ..., "logprob": ..., "bytes": [...] without its closing brace.
template <class Token>
void AppendTokenObject(const Token& token, std::string& out) {
  out += '{';
  AppendString("token", ReplaceInvalidUtf8(token.token_bytes()), out);
  out += R"(,"logprob":)";
  AppendJsonNumber(token.logprob(), out);
  out += R"(,"bytes":[)";
  for (size_t i = 0; i < token.token_bytes().size(); ++i) {
    if (i > 0) out += ',';
    out += std::to_string(static_cast<unsigned char>(token.token_bytes()[i]));
  }
  out += ']';
}

void AppendChatLogprobs(const Logprobs& logprobs, std::string& out) {
  out += R"("logprobs":{"content":[)";
  for (int i = 0; i < logprobs.size(); ++i) {
    if (i > 0) out += ',';
    AppendTokenObject(logprobs[i], out);
    out += R"(,"top_logprobs":[)";
    for (int j = 0; j < logprobs[i].top_size(); ++j) {
      if (j > 0) out += ',';
      AppendTokenObject(logprobs[i].top(j), out);
      out += '}';
    }
    out += "]}";
  }
  out += R"(],"refusal":null})";
}

template <class Each>
void AppendList(std::string_view name, const Logprobs& logprobs, std::string& out,
                const Each& append) {
  out += fmt::format("\"{}\":[", name);
  for (int i = 0; i < logprobs.size(); ++i) {
    if (i > 0) out += ',';
    append(logprobs[i]);
  }
  out += ']';
}

uint64_t CountCharacters(std::string_view valid) {
  return static_cast<uint64_t>(std::count_if(valid.begin(), valid.end(),
                                             [](unsigned char c) { return (c & 0xc0) != 0x80; }));
}

// The first token of a prompt has none.
void AppendLogprob(const v1::TokenLogprob& token, std::string& out) {
  if (!token.has_logprob()) {
    out += "null";
  } else {
    AppendJsonNumber(token.logprob(), out);
  }
}

// {"token": logprob, ...} of the most likely tokens and the sampled one.
void AppendTopObject(const v1::TokenLogprob& token, std::string& out) {
  std::vector<std::string> seen;
  out += '{';
  const auto append = [&](const auto& one) {
    std::string text = ReplaceInvalidUtf8(one.token_bytes());
    if (std::find(seen.begin(), seen.end(), text) != seen.end()) return;
    if (!seen.empty()) out += ',';
    AppendJsonString(text, out);
    out += ':';
    AppendJsonNumber(one.logprob(), out);
    seen.push_back(std::move(text));
  };
  for (const v1::TopLogprob& top : token.top()) append(top);
  append(token);
  out += '}';
}

}  // namespace

std::string UsageJson(const v1::Usage& usage) {
  std::string drafts;
  if (usage.accepted_draft_tokens() + usage.rejected_draft_tokens() > 0) {
    drafts = fmt::format(R"(,"accepted_prediction_tokens":{},"rejected_prediction_tokens":{})",
                         usage.accepted_draft_tokens(), usage.rejected_draft_tokens());
  }
  std::string attended;
  if (usage.attended_tokens() > 0) {
    attended = fmt::format(R"(,"attended_tokens":{})", usage.attended_tokens());
  }
  std::string policy;  // what kv_policy did to the prompt
  if (usage.evicted_tokens() > 0) {
    policy = fmt::format(R"(,"evicted_tokens":{})", usage.evicted_tokens());
  }
  if (usage.has_blend()) {
    const v1::BlendUsage& blend = usage.blend();
    policy += fmt::format(
        R"(,"reused_tokens":{},"recomputed_tokens":{},"fallback_tokens":{},"filled_tokens":{})",
        blend.reused_tokens(), blend.recomputed_tokens(), blend.fallback_tokens(),
        blend.filled_tokens());
  }
  std::string compacted;
  if (usage.compactions() > 0) {
    compacted = fmt::format(R"(,"evicted_tokens":{},"compactions":{})",
                            usage.decode_evicted_tokens(), usage.compactions());
  }
  return fmt::format(R"({{"prompt_tokens":{},"completion_tokens":{},"total_tokens":{},)"
                     R"("prompt_tokens_details":{{"cached_tokens":{}{}}},)"
                     R"("completion_tokens_details":{{"reasoning_tokens":{}{}{}{}}}}})",
                     usage.prompt_tokens(), usage.completion_tokens(),
                     usage.prompt_tokens() + usage.completion_tokens(), usage.cached_tokens(),
                     policy, usage.reasoning_tokens(), compacted, attended, drafts);
}

AnswerWriter::AnswerWriter(AnswerStyle style)
    : style_(std::move(style)), choices_(style_.choices) {}

void AnswerWriter::BeginObject(std::string& out) const {
  out += '{';
  AppendString("id", style_.id, out);
  out += fmt::format(R"(,"created":{},)", style_.created);
  AppendString("model", style_.model, out);
}

void AnswerWriter::EndChunk(std::string& out) const {
  if (style_.continuous_usage) {
    v1::Usage usage;
    usage.set_prompt_tokens(style_.prompt_tokens);
    usage.set_completion_tokens(answer_tokens_);
    out += R"(,"usage":)" + UsageJson(usage);
  } else if (style_.include_usage) {
    out += R"(,"usage":null)";
  }
  out += "}\n\n";
}

// `first` is the choice's first chunk: its content is null where no text begins it.
void AnswerWriter::AppendRole(uint32_t index, const v1::Chunk& first, std::string& out) {
  ChoiceState& choice = choices_[index];
  if (!style_.chat || choice.begun) return;
  choice.begun = true;
  out += "data: ";
  BeginObject(out);
  out += fmt::format(
      R"(,"object":"chat.completion.chunk","choices":[{{"index":{},)"
      R"("delta":{{"role":"assistant","content":{}}},"logprobs":null,"finish_reason":null}}])",
      index, BeginsWithText(first) ? R"("")" : "null");
  EndChunk(out);
}

void AnswerWriter::AppendChunk(const v1::Chunk& chunk, std::string& out) {
  AppendRole(chunk.index(), chunk, out);
  answer_tokens_ += static_cast<uint32_t>(chunk.token_ids_size());
  if (!style_.chat) {
    std::string text =
        fmt::format(R"(,"object":"text_completion","choices":[{{"index":{},)", chunk.index());
    AppendString("text", chunk.text(), text);
    return AppendEvent(chunk, text, out);
  }
  v1::Chunk rest;  // the events of one chunk share its tokens: the first has them
  const v1::Chunk* tokens = &chunk;
  for (const std::string& delta : DeltasOf(chunk)) {
    AppendEvent(
        *tokens,
        fmt::format(R"(,"object":"chat.completion.chunk","choices":[{{"index":{},"delta":{})",
                    chunk.index(), delta),
        out);
    rest.set_index(chunk.index());
    tokens = &rest;
  }
}

// One event: `fields`, and the log-probabilities and ids of the chunk's tokens.
void AnswerWriter::AppendEvent(const v1::Chunk& chunk, const std::string& fields,
                               std::string& out) {
  out += "data: ";
  BeginObject(out);
  out += fields;
  out += ',';
  AppendLogprobs(chunk.logprobs(), choices_[chunk.index()], out);
  if (style_.return_token_ids) {
    out += R"(,"token_ids":)";
    AppendIds(chunk.token_ids(), out);
  }
  out += R"(,"finish_reason":null}])";
  EndChunk(out);
}

void AnswerWriter::AppendFinal(const v1::Final& ending, std::string& out) {
  AppendRole(ending.index(), v1::Chunk(), out);
  out += "data: ";
  BeginObject(out);
  out += ',';
  AppendString("system_fingerprint", ending.system_fingerprint(), out);
  out += style_.chat
             ? fmt::format(
                   R"(,"object":"chat.completion.chunk","choices":[{{"index":{},"delta":{{}},)",
                   ending.index())
             : fmt::format(R"(,"object":"text_completion","choices":[{{"index":{},"text":"",)",
                           ending.index());
  out += R"("logprobs":null,)";
  AppendFinishReason(ending.finish_reason(), out);
  AppendStopReason(ending, out);
  out += "}]";
  EndChunk(out);
}

void AnswerWriter::AppendEnd(const v1::Usage& usage, std::string& out) {
  if (style_.include_usage) AppendUsage(usage, out);
  out += "data: [DONE]\n\n";
}

void AnswerWriter::AppendError(const absl::Status& status, std::string& out) {
  out += fmt::format("data: {}\n\n", ErrorJson(status));
}

void AnswerWriter::AppendUsage(const v1::Usage& usage, std::string& out) const {
  out += "data: ";
  BeginObject(out);
  out += fmt::format(R"(,"object":"{}","choices":[],"usage":{}}})",
                     style_.chat ? "chat.completion.chunk" : "text_completion", UsageJson(usage));
  out += "\n\n";
}

void AnswerWriter::AppendLogprobs(const Logprobs& logprobs, ChoiceState& choice, std::string& out) {
  if (!style_.logprobs) {
    out += R"("logprobs":null)";
    return;
  }
  if (style_.chat) return AppendChatLogprobs(logprobs, out);
  out += R"("logprobs":{)";
  AppendList("tokens", logprobs, out, [&](const v1::TokenLogprob& token) {
    AppendJsonString(ReplaceInvalidUtf8(token.token_bytes()), out);
  });
  out += ',';
  AppendList("token_logprobs", logprobs, out,
             [&](const v1::TokenLogprob& token) { AppendLogprob(token, out); });
  out += ',';
  if (style_.top_logprobs == 0) {
    out += R"("top_logprobs":null)";
  } else {
    AppendList("top_logprobs", logprobs, out, [&](const v1::TokenLogprob& token) {
      token.has_logprob() ? AppendTopObject(token, out) : void(out += "null");
    });
  }
  out += ',';
  AppendList("text_offset", logprobs, out, [&](const v1::TokenLogprob& token) {
    out += std::to_string(choice.text_offset);
    if (token.omitted()) return;
    choice.text_offset += CountCharacters(ReplaceInvalidUtf8(token.token_bytes()));
  });
  out += '}';
}

void AnswerWriter::AppendChoice(const v1::Choice& choice, std::string& out) {
  out += fmt::format(R"({{"index":{},)", choice.index());
  if (style_.chat) {
    AppendMessage(choice, out);
    out += ',';
  } else {
    AppendString("text", choice.text(), out);
    out += ',';
  }
  AppendLogprobs(choice.logprobs(), choices_[choice.index()], out);
  if (style_.return_token_ids) {
    out += R"(,"token_ids":)";
    AppendIds(choice.token_ids(), out);
  }
  out += ',';
  AppendFinishReason(choice.finish_reason(), out);
  AppendStopReason(choice, out);
  if (style_.prompt_logprobs && !style_.chat) {
    out += R"(,"prompt_logprobs":)";
    AppendPromptLogprobs(choice.prompt_logprobs(), out);
  }
  out += '}';
}

std::string AnswerWriter::Whole(const v1::GenerateUnaryResponse& answer) {
  std::string out;
  BeginObject(out);
  out += ',';
  AppendString("system_fingerprint", answer.system_fingerprint(), out);
  out += fmt::format(R"(,"object":"{}","choices":[)",
                     style_.chat ? "chat.completion" : "text_completion");
  for (int i = 0; i < answer.choices_size(); ++i) {
    if (i > 0) out += ',';
    AppendChoice(answer.choices(i), out);
  }
  out += ']';
  if (style_.prompt_logprobs && style_.chat) {
    out += R"(,"prompt_logprobs":)";
    AppendPromptLogprobs(answer.choices(0).prompt_logprobs(), out);
  }
  out += R"(,"usage":)" + UsageJson(answer.usage()) + "}";
  return out;
}

}  // namespace penstock
