#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lab/plan/model_cost.h"

namespace penstock {

// The KV that goes from prefill to decode workers, against the links that carry it.
struct LinkTraffic {
  double kv_tokens_per_s = 0;   // whose KV is handed over
  double bytes_per_token = 0;   // as it travels
  double link_bytes_per_s = 0;  // of one worker, in each direction
  double use_max = 0.7;         // share of a link that may be used at the mean rate
  int64_t prefill_workers = 1;
  int64_t decode_workers = 1;
};

struct LinkNeed {
  double bytes_per_s = 0;   // of all workers together
  double use = 0;           // of the busiest worker's link; above LinkTraffic::use_max: overloaded
  bool overloaded = false;  // prompts would wait for the link
  int64_t links = 0;        // of this speed that each role needs, one a worker
  double bytes_per_link = 0;        // bandwidth that cures it with these workers
  std::vector<std::string> codecs;  // with which the links are enough, smallest loss first
};

// Rounds up to a whole number of things, at least one and at most 10^15.
int64_t CountOf(double value);

// The busiest worker is one of the role with fewer workers. Pure.
LinkNeed NeedOf(const LinkTraffic& traffic, const std::vector<KvForm>& forms);

}  // namespace penstock
