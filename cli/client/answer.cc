#include "cli/client/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "base/bytes.h"

namespace penstock {
namespace {

using Json = nlohmann::ordered_json;

double Milliseconds(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) * 1e3 + duration.nanos() / 1e6;
}

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

double Rounded(double ms) { return std::round(ms * 1000) / 1000; }

std::string FinishName(v1::FinishReason reason) {
  switch (reason) {
    case v1::STOP:
      return "stop";
    case v1::LENGTH:
      return "length";
    case v1::TOOL_CALLS:
      return "tool_calls";
    default:
      return "unspecified";
  }
}

Json StatsJson(const Answer& answer) {
  const v1::Timing& timing = answer.last().timing();
  return {
      {"ttft_ms", Rounded(answer.first_token_ms())},
      {"tpot_ms", Rounded(answer.token_ms())},
      {"tokens_per_second", Rounded(answer.tokens_per_second())},
      {"queue_ms", Rounded(Milliseconds(timing.queue()))},
      {"prefill_ms", Rounded(Milliseconds(timing.prefill()))},
      {"kv_transfer_ms", Rounded(Milliseconds(timing.kv_transfer()))},
      {"first_token_ms", Rounded(Milliseconds(timing.first_token()))},
      {"decode_ms", Rounded(Milliseconds(timing.decode()))},
      {"router_ms", Rounded(Milliseconds(timing.router()))},
      {"kv_bytes_moved", timing.kv_bytes_moved()},
      {"kv_bytes_read", timing.kv_bytes_read()},
      {"layers", timing.layers()},
      {"layers_overlapped", timing.layers_overlapped()},
      {"transport", timing.transport()},
      {"kv_codecs", std::vector<std::string>(timing.kv_codecs().begin(), timing.kv_codecs().end())},
      {"prefill_worker", timing.prefill_worker()},
      {"decode_worker", timing.decode_worker()},
      {"migrations", timing.migrations()}};
}

Json FinalJson(const v1::Final& final) {
  Json json = {{"type", "final"},
               {"index", final.index()},
               {"finish_reason", FinishName(final.finish_reason())}};
  if (final.has_matched_stop_string()) json["matched_stop"] = final.matched_stop_string();
  if (final.has_matched_token_id()) json["matched_token_id"] = final.matched_token_id();
  if (final.has_usage()) {
    json["usage"] = {{"prompt_tokens", final.usage().prompt_tokens()},
                     {"completion_tokens", final.usage().completion_tokens()}};
    json["request_id"] = final.request_id();
  }
  return json;
}

}  // namespace

void Answer::Add(const v1::GenerateResponse& response) {
  if (response.has_final()) {
    if (response.final().has_usage()) last_ = response.final();
    return;
  }
  end_ = clock_->Now();
  if (!any_) first_ = end_;
  any_ = true;
  const v1::Chunk& chunk = response.chunk();
  if (texts_.size() <= chunk.index()) texts_.resize(std::min(chunk.index() + 1, 1024u));
  if (chunk.index() < texts_.size()) texts_[chunk.index()] += chunk.text();
}

const std::string& Answer::text(size_t choice) const {
  static const std::string kNone;
  return choice < texts_.size() ? texts_[choice] : kNone;
}

double Answer::first_token_ms() const { return any_ ? penstock::Milliseconds(first_ - start_) : 0; }

double Answer::token_ms() const {
  if (texts_.empty()) return 0;
  const double tokens =
      static_cast<double>(last_.usage().completion_tokens()) / static_cast<double>(texts_.size());
  return tokens > 1 ? penstock::Milliseconds(end_ - first_) / (tokens - 1) : 0;
}

double Answer::tokens_per_second() const {
  const double total_ms = penstock::Milliseconds(end_ - start_);
  return total_ms > 0 ? last_.usage().completion_tokens() * 1000.0 / total_ms : 0;
}

std::string StatsText(const Answer& answer) {
  const v1::Timing& timing = answer.last().timing();
  const v1::Usage& usage = answer.last().usage();
  const auto line = [](std::string_view name, const std::string& value) {
    return fmt::format("  {:<12}{}\n", name, value);
  };
  std::string text = line(
      "TTFT", fmt::format("{:.1f} ms   (prefill {:.1f} ms, waiting {:.1f} ms, router {:.2f} ms)",
                          answer.first_token_ms(), Milliseconds(timing.prefill()),
                          Milliseconds(timing.queue()), Milliseconds(timing.router())));
  text += line("TPOT", fmt::format("{:.2f} ms   ({:.0f} tokens/s overall)", answer.token_ms(),
                                   answer.tokens_per_second()));
  text += line("tokens",
               fmt::format("{} in, {} out", usage.prompt_tokens(), usage.completion_tokens()));
  text +=
      line("KV moved", fmt::format("{}, {} of {} layers overlapped with prefill; {:.1f} ms"
                                   " exposed",
                                   FormatBytes(timing.kv_bytes_moved()), timing.layers_overlapped(),
                                   timing.layers(), Milliseconds(timing.kv_transfer())));
  if (timing.kv_bytes_read() > 0) {
    text += line("KV read", fmt::format("{} from the decode worker's file",
                                        FormatBytes(timing.kv_bytes_read())));
  }
  text += line("transport", timing.transport().empty()
                                ? "none"
                                : fmt::format("{}, KV as {}", timing.transport(),
                                              fmt::join(timing.kv_codecs(), " and ")));
  text += line("workers", fmt::format("{} -> {}", timing.prefill_worker(), timing.decode_worker()));
  if (timing.migrations() > 0) text += line("replanned", fmt::format("{}x", timing.migrations()));
  return text;
}

std::string ResponseJson(const v1::GenerateResponse& response, const Answer& answer, bool stats) {
  if (response.has_final()) {
    Json json = FinalJson(response.final());
    if (stats && response.final().has_usage()) json["stats"] = StatsJson(answer);
    return Dump(json);
  }
  const v1::Chunk& chunk = response.chunk();
  return Dump({{"type", "chunk"}, {"index", chunk.index()}, {"text", chunk.text()}});
}

std::string ErrorJson(std::string_view code, std::string_view message) {
  return Dump({{"type", "error"}, {"code", code}, {"message", message}});
}

}  // namespace penstock
