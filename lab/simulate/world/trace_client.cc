#include "lab/simulate/world/trace_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace penstock {
namespace {

// Tokens are bytes. A block begins with its number, so equal numbers are equal tokens.
void AddBlock(google::protobuf::RepeatedField<uint32_t>& tokens, uint64_t number, uint32_t count) {
  for (uint32_t i = 0; i < count; ++i) {
    tokens.Add(i < 8 ? static_cast<uint32_t>(number >> (8 * i)) & 0xff : 'a');
  }
}

v1::GenerateRequest RequestOf(const SimRequest& asked, uint32_t number, uint32_t answer_tokens,
                              uint32_t block_tokens) {
  v1::GenerateRequest request;
  request.set_client_request_id(fmt::format("{}", number));
  auto& tokens = *request.mutable_tokens()->mutable_ids();
  tokens.Reserve(static_cast<int>(asked.prompt_tokens));
  uint32_t left = asked.prompt_tokens;
  for (const uint32_t block : asked.blocks) {
    const uint32_t count = std::min(left, block_tokens);
    AddBlock(tokens, block, count);
    left -= count;
  }
  // The trace names no block for these tokens, so no other prompt shares them.
  if (left > 0) AddBlock(tokens, ~uint64_t{number}, left);
  request.mutable_sampling()->set_temperature(0);
  request.mutable_stop()->set_max_tokens(answer_tokens);
  return request;
}

}  // namespace

TraceClient* TraceClient::starting_ = nullptr;

TraceClient::TraceClient(const SimRequest& request, uint32_t number, uint32_t answer_tokens,
                         uint32_t block_tokens, std::function<void()> on_end)
    : request_(RequestOf(request, number, answer_tokens, block_tokens)),
      on_end_(std::move(on_end)) {}

void TraceClient::OnStarting() {
  arrived_ = SteadyClock().Now();
  starting_ = this;
}

void TraceClient::OnRouterDeath() { Finish(absl::UnavailableError("the router is gone")); }

void TraceClient::Send(v1::GenerateResponse response) {
  if (response.has_chunk()) {
    last_ = SteadyClock().Now();
    if (first_ == TimePoint()) first_ = last_;
  }
  if (!response.has_final() || !response.final().has_usage()) return;
  tokens_ = response.final().usage().completion_tokens();
  cached_tokens_ = response.final().usage().cached_tokens();
}

void TraceClient::Finish(const absl::Status& status) {
  status_ = status;
  if (status.ok() && first_ == TimePoint()) status_ = absl::InternalError("an empty answer");
  request_.Clear();
  LetDriverGo();
  on_end_();
}

std::optional<double> TraceClient::tpot_ms() const {
  if (tokens_ < 2) return std::nullopt;
  return Milliseconds(last_ - first_) / (tokens_ - 1);
}

}  // namespace penstock
