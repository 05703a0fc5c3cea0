#pragma once

#include <functional>
#include <memory>
#include <string>

#include "base/status.h"
#include "lab/load/record.h"
#include "lab/load/requests.h"

namespace penstock {

// A request that is ready to go out.
class LoadCall {
 public:
  using OnDone = std::function<void(LoadRecord)>;

  virtual ~LoadCall() = default;
  // Does not wait for anything. `done` comes once, on any thread. At most once.
  virtual void Start(TimePoint planned, OnDone done) = 0;
};

// A server under load: a seam between protocols and the load. Any thread.
class LoadTarget {
 public:
  virtual ~LoadTarget() = default;
  // Does what would take time when the request is due.
  virtual std::shared_ptr<LoadCall> Prepare(const LoadRequest& request) = 0;
  // Calls that run end soon, as unfinished ones.
  virtual void CancelAll() = 0;
  // The name of the one model that is served; NOT_FOUND or FAILED_PRECONDITION names what there is.
  virtual absl::StatusOr<std::string> FindModel() = 0;
  virtual void SetModel(const std::string& model) = 0;
};

struct TargetOptions {
  std::string host;
  uint16_t port = 0;
  std::string path;  // in front of /v1, without a '/' at its end
  std::string api_key;
  bool chat = false;         // /v1/chat/completions instead of /v1/completions
  bool text = false;         // prompts of words instead of token ids
  bool openai_only = false;  // no field that OpenAI's API does not have
  double temperature = 0;
  Duration timeout = std::chrono::seconds(600);  // of a request
  PromptAlphabet alphabet;
};

// OpenAI's API over HTTP/1.1. UNAVAILABLE when nobody listens.
absl::StatusOr<std::unique_ptr<LoadTarget>> ConnectOpenAi(const TargetOptions& options);

// FAILED_PRECONDITION for several models: none can be guessed.
absl::StatusOr<std::string> TheOnlyModel(const std::vector<std::string>& models);

}  // namespace penstock
