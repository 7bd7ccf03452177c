#include "step8_advanced/disaggregation/router/answer_filter.h"

#include "step1_layers/core/error.h"
#include "step8_advanced/disaggregation/router/json_members.h"

namespace ladder {

namespace {

constexpr size_t kLimit = size_t{64} << 20;
constexpr std::string_view kTransfer = "kv_transfer_params";
constexpr std::string_view kData = "data: ";

// Nearly every line is looked through once and copied.
void append_line(std::string& out, std::string_view line) {
  if (line.find(kTransfer) == line.npos) {
    out += line;
    return;
  }
  const std::string_view before = line.starts_with(kData) ? kData : std::string_view();
  const std::string_view object = line.substr(before.size());
  const auto members = json_members(object);
  if (!members || json_member(*members, kTransfer).empty()) {  // a text speaks of it
    out += line;
    return;
  }
  out += before;
  out += json_object(*members, {kTransfer}, {});
  out += object.substr(object.find_last_not_of("\r\n") + 1);
}

}  // namespace

void AnswerFilter::feed(std::string_view bytes, std::string& out) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    if (end == bytes.npos) break;
    if (line_.empty()) {
      append_line(out, bytes.substr(0, end + 1));
    } else {
      line_ += bytes.substr(0, end + 1);
      append_line(out, line_);
      line_.clear();
    }
    bytes.remove_prefix(end + 1);
  }
  LADDER_CHECK(line_.size() + bytes.size() <= kLimit, "an answer's line of more than 64 MiB");
  line_ += bytes;
}

void AnswerFilter::finish(std::string& out) {
  append_line(out, line_);
  line_.clear();
}

}  // namespace ladder
