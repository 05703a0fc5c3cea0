#include "router/openai/prompt_logprobs_json.h"

#include <fmt/format.h>

#include "base/utf8.h"
#include "router/request/json.h"

namespace penstock {
namespace {

template <class Token>
void AppendEntry(const Token& token, uint32_t rank, std::string& out) {
  out += fmt::format(R"("{}":{{"logprob":)", token.token_id());
  AppendJsonNumber(token.logprob(), out);
  out += fmt::format(R"(,"rank":{},"decoded_token":)", rank);
  AppendJsonString(ReplaceInvalidUtf8(token.token_bytes()), out);
  out += '}';
}

void AppendToken(const v1::TokenLogprob& token, std::string& out) {
  out += '{';
  AppendEntry(token, token.rank(), out);
  for (int i = 0; i < token.top_size(); ++i) {
    if (token.top(i).token_id() == token.token_id()) continue;
    out += ',';
    AppendEntry(token.top(i), static_cast<uint32_t>(i) + 1, out);
  }
  out += '}';
}

}  // namespace

void AppendPromptLogprobs(const google::protobuf::RepeatedPtrField<v1::TokenLogprob>& prompt,
                          std::string& out) {
  out += '[';
  for (int i = 0; i < prompt.size(); ++i) {
    if (i > 0) out += ',';
    prompt[i].has_logprob() ? AppendToken(prompt[i], out) : void(out += "null");
  }
  out += ']';
}

}  // namespace penstock
