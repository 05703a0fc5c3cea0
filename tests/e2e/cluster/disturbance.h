#pragma once

#include <cstddef>

#include "tests/e2e/cluster/cluster.h"
#include "tests/e2e/cluster/requests.h"

namespace penstock {

// What happens to a decode worker in the middle of an answer: it dies (SIGKILL), or it ends and
// hands its sequences over (SIGTERM). Passed to Ask as `on_tokens`, by std::ref.
class Disturbance {
 public:
  // The worker that decodes gets `signal` when the first choice has `tokens` tokens.
  Disturbance(Cluster& cluster, int signal, size_t tokens)
      : cluster_(cluster), signal_(signal), tokens_(tokens) {}

  void operator()(const TestAnswer& so_far);

  bool happened() const { return happened_; }

 private:
  Cluster& cluster_;
  const int signal_;
  const size_t tokens_;
  bool happened_ = false;
};

}  // namespace penstock
