#include "tests/e2e/cluster/requests.h"

#include <grpcpp/grpcpp.h>

#include <random>

namespace penstock {
namespace {

SamplingParams RandomSampling(std::mt19937& random) {
  SamplingParams params{.temperature = 0.5f + static_cast<float>(random() % 100) / 100.0f,
                        .top_p = random() % 2 == 0 ? 1.0f : 0.9f,
                        .top_k = random() % 2 == 0 ? 0 : 40,
                        .min_p = random() % 2 == 0 ? 0.0f : 0.02f,
                        .frequency_penalty = random() % 2 == 0 ? 0.0f : 0.5f,
                        .presence_penalty = random() % 2 == 0 ? 0.0f : 0.5f,
                        .repetition_penalty = random() % 2 == 0 ? 1.0f : 1.2f,
                        .seed = random()};
  return params;
}

}  // namespace

std::vector<TestRequest> MakeRequests(int count, int prompt_tokens_max, uint32_t vocab,
                                      uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<TestRequest> requests;
  for (int i = 0; i < count; ++i) {
    TestRequest request;
    int tokens = 1 + static_cast<int>(random() % prompt_tokens_max);
    if (i == 0) tokens = 1;
    if (i == 1) tokens = prompt_tokens_max;
    for (int t = 0; t < tokens; ++t) request.prompt.push_back(random() % vocab);
    request.sampling = RandomSampling(random);
    if (i % 2 == 0) request.sampling.temperature = 0.0f;
    request.tokens_max = 1 + static_cast<int>(random() % 32);
    requests.push_back(std::move(request));
  }
  return requests;
}

TestRequest MakeRequest(int tokens, uint32_t vocab, uint32_t seed, int tokens_max) {
  TestRequest request = MakeRequests(2, tokens, vocab, seed)[1];
  request.prompt.resize(static_cast<size_t>(tokens), 7);
  request.tokens_max = tokens_max;
  return request;
}

v1::GenerateRequest ToProto(const TestRequest& request) {
  v1::GenerateRequest proto;
  proto.mutable_tokens()->mutable_ids()->Add(request.prompt.begin(), request.prompt.end());
  v1::SamplingParams* sampling = proto.mutable_sampling();
  sampling->set_temperature(request.sampling.temperature);
  sampling->set_top_p(request.sampling.top_p);
  sampling->set_top_k(static_cast<uint32_t>(request.sampling.top_k));
  sampling->set_min_p(request.sampling.min_p);
  sampling->set_frequency_penalty(request.sampling.frequency_penalty);
  sampling->set_presence_penalty(request.sampling.presence_penalty);
  sampling->set_repetition_penalty(request.sampling.repetition_penalty);
  sampling->set_seed(static_cast<int64_t>(request.sampling.seed));
  sampling->set_n(static_cast<uint32_t>(request.choices));
  for (const auto& [token, bias] : request.sampling.logit_bias) {
    (*sampling->mutable_logit_bias())[token] = bias;
  }
  if (request.beams > 0) {
    sampling->mutable_beam_search()->set_width(static_cast<uint32_t>(request.beams));
  }
  *proto.mutable_structured() = request.structured;
  proto.mutable_stop()->set_max_tokens(static_cast<uint32_t>(request.tokens_max));
  proto.mutable_stop()->set_ignore_eos(true);
  proto.mutable_output()->set_return_token_ids(true);
  proto.mutable_output()->set_timing(true);
  return proto;
}

TestAnswer Ask(v1::Inference::Stub& client, const v1::GenerateRequest& request,
               grpc::ClientContext& context,
               const std::function<void(const TestAnswer&)>& on_tokens) {
  const size_t choices = std::max<size_t>(1, request.sampling().n());
  TestAnswer answer{.tokens = std::vector<std::vector<uint32_t>>(choices),
                    .finish = std::vector<v1::FinishReason>(choices)};
  const auto stream = client.Generate(&context, request);
  v1::GenerateResponse response;
  while (stream->Read(&response)) {
    if (response.has_chunk()) {
      const auto& ids = response.chunk().token_ids();
      auto& tokens = answer.tokens[response.chunk().index()];
      tokens.insert(tokens.end(), ids.begin(), ids.end());
      if (on_tokens) on_tokens(answer);
    } else if (response.has_final()) {
      answer.finish[response.final().index()] = response.final().finish_reason();
      if (response.final().has_usage()) answer.usage = response.final().usage();
      if (response.final().has_timing()) answer.timing = response.final().timing();
      if (response.final().has_explanation()) {
        answer.explanation = response.final().explanation();
      }
    }
  }
  answer.status = stream->Finish();
  return answer;
}

}  // namespace penstock
