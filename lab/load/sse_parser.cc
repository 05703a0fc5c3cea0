#include "lab/load/sse_parser.h"

namespace penstock {

bool SseParser::Take(std::string_view bytes) {
  while (!bytes.empty() && !failed_) {
    if (after_cr_ && bytes.front() == '\n') bytes.remove_prefix(1);  // "\r\n" is one end of line
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    line_ += bytes.substr(0, end);
    failed_ = line_.size() + data_.size() > kMaxEventBytes;
    if (failed_ || end == std::string_view::npos) break;
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
    TakeLine(line_);
    line_.clear();
  }
  return !failed_;
}

void SseParser::TakeLine(std::string_view line) {
  if (line.empty()) {
    if (any_data_) on_event_(data_);
    data_.clear();
    any_data_ = false;
    return;
  }
  if (!line.starts_with("data")) return;  // comments, ids, names of events
  line.remove_prefix(4);
  if (!line.empty() && line.front() != ':') return;  // "database: ..."
  if (!line.empty()) line.remove_prefix(1);
  if (line.starts_with(' ')) line.remove_prefix(1);
  if (any_data_) data_ += '\n';
  data_ += line;
  any_data_ = true;
}

}  // namespace penstock
