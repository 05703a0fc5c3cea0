#include "model/grammar/grammar.h"

#include <xgrammar/xgrammar.h>

#include <algorithm>
#include <bit>
#include <stdexcept>
#include <utility>

#include "model/tokenizer/marker_tokens.h"
#include "model/tokenizer/tokenizer.h"

// The library's messages: an error becomes an exception, which Guarded turns into a status. The
// others are dropped, because their number has no limit.
namespace xgrammar {
[[noreturn]] void LogFatalImpl(const std::string&, int, const std::string& message) {
  throw std::runtime_error(message);
}
void LogMessageImpl(const std::string&, int, int, const std::string&) {}
}  // namespace xgrammar

namespace penstock {
namespace {

constexpr int64_t kCacheBytes = int64_t{512} << 20;  // of grammars, and of rules that they share
constexpr size_t kShownBytes = 200;                  // of a message of the library

// Calls `call` and returns its result, or its exception as an error.
template <class Call>
auto Guarded(absl::StatusCode code, const Call& call) -> absl::StatusOr<decltype(call())> {
  try {
    return call();
  } catch (const std::exception& error) {
    std::string what = error.what();
    what = what.substr(0, std::min(what.find_last_not_of('\n') + 1, kShownBytes));
    return absl::Status(code, what);
  }
}

absl::StatusOr<xgrammar::Grammar> Parse(const std::string& ebnf) {
  return Guarded(absl::StatusCode::kInvalidArgument,
                 [&] { return xgrammar::Grammar::FromEBNF(ebnf); });
}

// A special token has no text, unless it is a marker that answers show: the library then never
// allows it as a part of one.
std::vector<std::string> TextsOf(const Tokenizer& tokenizer) {
  std::vector<std::string> texts(tokenizer.vocab_size());
  for (uint32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    const std::string_view text = tokenizer.TokenBytes(id);
    if (!tokenizer.is_special(id) || IsMarkerToken(text)) texts[id] = std::string(text);
  }
  return texts;
}

}  // namespace

absl::Status CheckGrammar(const std::string& ebnf) { return Parse(ebnf).status(); }

absl::StatusOr<std::string> ConvertSchema(const std::string& gated_schema, bool compact) {
  constexpr int kWhiteSpaceMax = 32;  // a weak model would fill the answer with it
  return Guarded(absl::StatusCode::kInvalidArgument, [&] {
    return xgrammar::Grammar::FromJSONSchema(gated_schema, /*any_whitespace=*/!compact,
                                             /*indent=*/std::nullopt, /*separators=*/std::nullopt,
                                             /*strict_mode=*/false,
                                             compact ? std::nullopt : std::optional(kWhiteSpaceMax))
        .ToString();
  });
}

uint64_t GrammarFingerprint() {
  return 0x0000'0208'0000'0004;
}  // XGrammar 0.2.8, our fourth options

struct CompiledGrammar::Parts {
  xgrammar::CompiledGrammar grammar;
};

CompiledGrammar::CompiledGrammar(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
CompiledGrammar::~CompiledGrammar() = default;
size_t CompiledGrammar::bytes() const { return parts_->grammar.MemorySizeBytes(); }

struct GrammarCompiler::Parts {
  xgrammar::GrammarCompiler compiler;
};

GrammarCompiler::GrammarCompiler(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
GrammarCompiler::~GrammarCompiler() = default;

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::Create(const Tokenizer& tokenizer,
                                                                         uint32_t logits_width) {
  if (logits_width < tokenizer.vocab_size()) {
    return FailedPrecondition("the tokenizer has {} tokens and the model {}",
                              tokenizer.vocab_size(), logits_width);
  }
  return CreateOver(TextsOf(tokenizer), logits_width);
}

absl::StatusOr<std::unique_ptr<GrammarCompiler>> GrammarCompiler::CreateOver(
    const std::vector<std::string>& texts, uint32_t width) {
  return Guarded(absl::StatusCode::kInternal, [&] {
    const xgrammar::TokenizerInfo vocabulary(texts, xgrammar::VocabType::RAW,
                                             static_cast<int>(width), std::vector<int32_t>());
    return std::unique_ptr<GrammarCompiler>(
        new GrammarCompiler(std::make_unique<Parts>(Parts{xgrammar::GrammarCompiler(
            vocabulary, /*max_threads=*/1, /*cache_enabled=*/true, kCacheBytes)})));
  });
}

absl::Status CheckGrammarBegins(const std::string& ebnf) {
  std::vector<std::string> bytes;
  for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
  ASSIGN_OR_RETURN(const auto compiler, GrammarCompiler::CreateOver(bytes, 256));
  return compiler->Compile(ebnf).status();
}

absl::StatusOr<std::shared_ptr<const CompiledGrammar>> GrammarCompiler::Compile(
    const std::string& ebnf) {
  // The library's cache keeps failed compilations for ever, so it only gets what can be parsed.
  ASSIGN_OR_RETURN(const xgrammar::Grammar grammar, Parse(ebnf));
  ASSIGN_OR_RETURN(auto compiled, Guarded(absl::StatusCode::kInvalidArgument, [&] {
                     return std::make_shared<const CompiledGrammar>(
                         std::make_unique<const CompiledGrammar::Parts>(
                             CompiledGrammar::Parts{parts_->compiler.CompileGrammar(grammar)}));
                   }));
  const uint32_t no_stop = 0;
  ASSIGN_OR_RETURN(const auto mask, TokenMask::Open(compiled, {&no_stop, 1}));
  const int width = compiled->parts().grammar.GetTokenizerInfo().GetVocabSize();
  std::vector<uint32_t> bits(TokenMask::WordsFor(static_cast<uint32_t>(width)));
  if (!mask->Fill(bits).ok()) return InvalidArgument("no answer satisfies the grammar");
  return compiled;
}

struct TokenMask::Parts {
  std::shared_ptr<const CompiledGrammar> grammar;
  xgrammar::GrammarMatcher matcher;
  std::vector<uint32_t> stop_ids;
  int64_t words = 0;
};

TokenMask::TokenMask(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
TokenMask::~TokenMask() = default;

absl::StatusOr<std::unique_ptr<TokenMask>> TokenMask::Open(
    std::shared_ptr<const CompiledGrammar> grammar, std::span<const uint32_t> stop_ids) {
  return Guarded(absl::StatusCode::kInternal, [&] {
    const xgrammar::CompiledGrammar& compiled = grammar->parts().grammar;
    const auto width = static_cast<uint32_t>(compiled.GetTokenizerInfo().GetVocabSize());
    xgrammar::GrammarMatcher matcher(compiled, std::vector<int>(stop_ids.begin(), stop_ids.end()));
    return std::unique_ptr<TokenMask>(new TokenMask(std::make_unique<Parts>(
        Parts{.grammar = std::move(grammar),
              .matcher = std::move(matcher),
              .stop_ids = std::vector<uint32_t>(stop_ids.begin(), stop_ids.end()),
              .words = static_cast<int64_t>(WordsFor(width))})));
  });
}

absl::Status TokenMask::Fill(std::span<uint32_t> bits) {
  DLTensor tensor{.data = bits.data(),
                  .device = {kDLCPU, 0},
                  .ndim = 1,
                  .dtype = xgrammar::GetBitmaskDLType(),
                  .shape = &parts_->words,
                  .strides = nullptr,
                  .byte_offset = 0};
  const auto filled = Guarded(absl::StatusCode::kInternal, [&] {
    return parts_->matcher.FillNextTokenBitmask(&tensor) ? 1 : 0;
  });
  if (!filled.ok()) return filled.status();
  // A stop token whose text would fit here ends the answer all the same: only where it may end.
  const bool complete = parts_->matcher.IsCompleted();
  for (const uint32_t id : parts_->stop_ids) {
    uint32_t& word = bits[id / 32];
    word = complete ? word | 1u << (id % 32) : word & ~(1u << (id % 32));
  }
  const bool some = std::ranges::any_of(bits, [](uint32_t word) { return word != 0; });
  return some ? absl::OkStatus() : Internal("the grammar allows no token here");
}

absl::Status TokenMask::Accept(uint32_t id) {
  const auto accepted = Guarded(absl::StatusCode::kInternal, [&] {
    return parts_->matcher.AcceptToken(static_cast<int32_t>(id)) ? 1 : 0;
  });
  if (!accepted.ok()) return accepted.status();
  return *accepted != 0 ? absl::OkStatus() : Internal("the grammar does not allow token {}", id);
}

bool TokenMask::ended() const { return parts_->matcher.IsTerminated(); }

}  // namespace penstock
