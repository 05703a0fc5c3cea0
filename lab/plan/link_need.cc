#include "lab/plan/link_need.h"

#include <algorithm>
#include <cmath>

namespace penstock {

int64_t CountOf(double value) {
  return static_cast<int64_t>(std::clamp(std::ceil(value), 1.0, 1e15));
}

LinkNeed NeedOf(const LinkTraffic& traffic, const std::vector<KvForm>& forms) {
  const auto links = static_cast<double>(std::min(traffic.prefill_workers, traffic.decode_workers));
  const double usable = traffic.link_bytes_per_s * traffic.use_max;
  const double raw = traffic.kv_tokens_per_s * traffic.bytes_per_token;
  LinkNeed need{.bytes_per_s = raw, .use = raw / links / traffic.link_bytes_per_s};
  need.overloaded = need.use > traffic.use_max;
  need.links = CountOf(raw / usable);
  need.bytes_per_link = raw / links / traffic.use_max;
  for (const KvForm& form : forms) {
    if (form.resident) continue;
    if (traffic.kv_tokens_per_s * form.bytes_per_token <= links * usable) {
      need.codecs.push_back(form.name);
    }
  }
  return need;
}

}  // namespace penstock
