#include "tests/e2e/cluster/script.h"

#include <cstdlib>
#include <iterator>
#include <regex>

#include "lab/fake/temp_folder.h"
#include "tests/support/files.h"

namespace penstock {

std::pair<std::string, bool> RunScript(const std::string& command) {
  TempFolder folder;
  const std::string log = folder.path() + "/log";
  const int status = std::system((command + " > " + log + " 2>&1").c_str());
  return {ReadFile(log), status == 0};
}

bool AllHold(const std::string& output) {
  static const std::regex kTotal("(^|\n)([1-9][0-9]*) of ([0-9]+) hold\n");
  static const std::regex kOk("(^|\n)ok   ");
  std::smatch total;
  if (!std::regex_search(output, total, kTotal) || total[2] != total[3]) return false;
  const auto oks = std::distance(std::sregex_iterator(output.begin(), output.end(), kOk), {});
  return std::to_string(oks) == total[2];
}

}  // namespace penstock
