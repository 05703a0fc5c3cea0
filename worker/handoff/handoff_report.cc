#include "worker/handoff/handoff_report.h"

#include <set>
#include <string>

namespace penstock {

v1::HandoffDone HandoffDoneOf(const KvSendStats& stats) {
  v1::HandoffDone done;
  done.set_kv_bytes(stats.kv_bytes);
  done.set_slabs(stats.slabs);
  done.set_layers(stats.layers);
  done.set_layers_overlapped(stats.layers_overlapped);
  done.set_transport(stats.transport);
  done.set_exposed_ms(Milliseconds(stats.exposed));
  std::set<std::string> codecs;
  for (const KvCodecSpec& codec : stats.codecs) codecs.insert(KvCodecName(codec));
  for (const std::string& codec : codecs) done.add_codecs(codec);
  return done;
}

void LogHandedOff(const RequestTag& tag, const KvSendStats& stats) {
  LogRequest(LogLevel::kDebug, tag, "handed_off",
             {{"bytes", stats.kv_bytes},
              {"wire_bytes", stats.wire_bytes},
              {"slabs", stats.slabs},
              {"transport", stats.transport},
              {"exposed_ms", Milliseconds(stats.exposed)}});
}

}  // namespace penstock
