// members:  '{' [ string ':' value { ',' string ':' value } ] '}'
// value:    up to the ',' or '}' of this object: outside strings, and outside the brackets that it opens
#include "step8_advanced/disaggregation/router/json_members.h"

#include <algorithm>

#include "step2_model/json.h"

namespace ladder {

namespace {

constexpr std::string_view kSpace = " \t\r\n";

class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  std::optional<std::vector<JsonMember>> members() {
    std::vector<JsonMember> found;
    if (!take('{')) return std::nullopt;
    if (!take('}')) {
      do {
        std::optional<JsonMember> next = member();
        if (!next) return std::nullopt;
        found.push_back(std::move(*next));
      } while (take(','));
      if (!take('}')) return std::nullopt;
    }
    skip_space();
    if (at_ != text_.size()) return std::nullopt;
    return found;
  }

 private:
  void skip_space() { at_ = std::min(text_.find_first_not_of(kSpace, at_), text_.size()); }
  bool take(char wanted) {
    skip_space();
    if (at_ == text_.size() || text_[at_] != wanted) return false;
    ++at_;
    return true;
  }

  std::optional<JsonMember> member() {
    skip_space();
    const size_t begin = at_;
    if (at_ == text_.size() || text_[at_] != '"' || !skip_string()) return std::nullopt;
    const Json key = Json::parse(text_.substr(begin, at_ - begin), nullptr, false);
    if (!key.is_string() || !take(':')) return std::nullopt;
    skip_space();
    const size_t value = at_;
    if (!skip_value()) return std::nullopt;
    size_t end = at_;
    while (end > value && kSpace.find(text_[end - 1]) != kSpace.npos) --end;
    if (end == value) return std::nullopt;
    return JsonMember{key.get<std::string>(), text_.substr(begin, end - begin),
                      text_.substr(value, end - value)};
  }

  // From its first quote to behind its last one.
  bool skip_string() {
    for (++at_; at_ < text_.size(); ++at_) {
      at_ = std::min(text_.find_first_of("\\\"", at_), text_.size());
      if (at_ == text_.size()) return false;
      if (text_[at_] == '"') return ++at_, true;
      ++at_;  // what is escaped
    }
    return false;
  }

  bool skip_value() {
    int64_t depth = 0;
    while (at_ < text_.size()) {
      const char c = text_[at_];
      if (c == '"') {
        if (!skip_string()) return false;
        continue;
      }
      if (depth == 0 && (c == ',' || c == '}')) return true;
      if (c == '{' || c == '[') ++depth;
      if (c == '}' || c == ']') --depth;
      if (depth < 0) return false;
      ++at_;
    }
    return false;
  }

  const std::string_view text_;
  size_t at_ = 0;
};

}  // namespace

std::optional<std::vector<JsonMember>> json_members(std::string_view text) {
  return Scanner(text).members();
}

std::string_view json_member(const std::vector<JsonMember>& members, std::string_view key) {
  std::string_view value;
  for (const JsonMember& member : members)
    if (member.key == key) value = member.value;
  return value;
}

std::string json_object(const std::vector<JsonMember>& members, const std::vector<std::string_view>& without,
                        std::string_view added) {
  std::string out = "{";
  for (const JsonMember& member : members) {
    if (std::ranges::find(without, member.key) != without.end()) continue;
    if (out.size() > 1) out += ',';
    out += member.whole;
  }
  if (out.size() > 1 && !added.empty()) out += ',';
  out += added;
  return out += '}';
}

}  // namespace ladder
