#include "base/config/renamed_fields.h"

#include <algorithm>
#include <array>

namespace penstock {

std::span<const RenamedField> RenamedFields() {
  static constexpr std::array kRenamed = {
      RenamedField{"penstock.v1.WorkerConfig", "prefill_most", "local_prefill_max_tokens"},
  };
  return kRenamed;
}

const RenamedField* FindRenamed(std::span<const RenamedField> table,
                                const google::protobuf::Descriptor& type, std::string name) {
  std::ranges::replace(name, '-', '_');
  const auto found = std::ranges::find_if(table, [&](const RenamedField& renamed) {
    return renamed.message == type.full_name() && renamed.old_name == name;
  });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace penstock
