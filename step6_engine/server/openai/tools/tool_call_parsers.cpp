#include "step6_engine/server/openai/tools/tool_call_parsers.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <utility>

#include "step1_layers/core/error.h"
#include "step1_layers/core/task_not_implemented.h"

namespace ladder {

namespace {

constexpr size_t kMaxSpaceBytes = 4096;  // of a gap; what is longer is content

bool is_space(char c) {
  return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// "call_" and 24 hexadecimal digits.
std::string random_call_id() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return fmt::format("call_{:016x}{:08x}", random(), static_cast<uint32_t>(random()));
}

// The string that a JSON text is; none: it is no string, or no text (half a surrogate pair).
std::optional<std::string> string_of(std::string_view json_text) {
  const auto value = nlohmann::json::parse(json_text, nullptr, false);
  if (!value.is_string()) return {};
  return value.get<std::string>();
}

bool is_object(std::string_view json_text) {
  JsonScanner scanner;
  for (size_t i = 0; i < json_text.size(); ++i) {
    const JsonScanner::State state = scanner.feed(json_text[i]);
    if (state == JsonScanner::State::complete) return i + 1 == json_text.size();
    if (state == JsonScanner::State::malformed) return false;
  }
  return false;
}

// Name and arguments; none: this object calls nothing.
std::optional<ToolCallDelta> call_of(std::string_view object, const JsonScanner& scanner) {
  const auto part = [object](JsonScanner::Range range) { return object.substr(range.begin, range.length); };
  const std::string_view arguments =
      part(scanner.arguments.length > 0 ? scanner.arguments : scanner.parameters);
  if (scanner.name.length == 0 || arguments.empty()) return {};
  std::optional<std::string> name = string_of(part(scanner.name));
  if (!name || name->empty()) return {};
  std::optional<std::string> text =
      arguments.front() == '{' ? std::optional(std::string(arguments)) : string_of(arguments);
  if (!text || !is_object(*text)) return {};
  return ToolCallDelta{.name = *std::move(name), .arguments = *std::move(text)};
}

class FirstCallOnly final : public ToolCallParser {
 public:
  explicit FirstCallOnly(std::unique_ptr<ToolCallParser> parser) : parser_(std::move(parser)) {}
  ToolTextDelta append(std::string_view text) override { return filtered(parser_->append(text)); }
  ToolTextDelta finish() override { return filtered(parser_->finish()); }

 private:
  static ToolTextDelta filtered(ToolTextDelta delta) {
    std::erase_if(delta.tool_calls, [](const ToolCallDelta& call) { return call.index > 0; });
    return delta;
  }
  const std::unique_ptr<ToolCallParser> parser_;
};

}  // namespace

ToolCallParserMaker first_call_only(ToolCallParserMaker make) {
  return [make = std::move(make)] { return std::make_unique<FirstCallOnly>(make()); };
}

ToolCallParserMaker tool_call_parser_of(std::string_view name) {
  const bool hermes = name == "hermes";
  LADDER_CHECK(hermes || name == "llama3_json", "--tool-call-parser {}: there are hermes and llama3_json",
               name);
  return [marks = hermes ? kHermesMarks : kLlama3Marks] { return std::make_unique<MarkedCallParser>(marks); };
}

ToolTextDelta MarkedCallParser::append(std::string_view text) {
  for (const char c : text) feed(c);
  return std::exchange(delta_, {});
}

ToolTextDelta MarkedCallParser::finish() {
  if (num_calls_ > 0 && held_.empty()) space_.clear();  // after the last call
  if (within_ == Within::after_object && matched_ == 0)
    end_call();
  else
    give_back();
  return std::exchange(delta_, {});
}

// >>> task 6.8: in and out of a call
void MarkedCallParser::feed(char c) {
  if (held_.size() >= kMaxCallBytes) give_back();
  switch (within_) {
    case Within::text:
      return feed_text(c);
    case Within::open_mark:
      if (c != marks_.open[matched_]) break;
      held_ += c;
      if (++matched_ == marks_.open.size()) within_ = Within::before_object;
      return;
    case Within::before_object:
      if (c == '{') return begin_object();
      if (!is_space(c)) break;
      held_ += c;
      return;
    case Within::object: {
      const JsonScanner::State state = scanner_.feed(c);
      if (state == JsonScanner::State::malformed) break;
      held_ += c;
      if (state == JsonScanner::State::more) return;
      within_ = Within::after_object;
      matched_ = 0;
      if (marks_.close.empty()) end_call();
      return;
    }
    case Within::after_object:
      return feed_after_object(c);
  }
  give_back();
  feed_text(c);
}

void MarkedCallParser::feed_text(char c) {
  if (c == marks_.open[0]) {
    held_ = c;
    matched_ = 1;
    within_ = Within::open_mark;
    return;
  }
  if (in_gap_) {
    if (may_begin_ && c == '{') return begin_object();
    const bool separator = marks_.bare && !may_begin_ && c == ';';
    if ((separator || is_space(c)) && space_.size() < kMaxSpaceBytes) {
      may_begin_ = may_begin_ || separator;
      space_ += c;
      return;
    }
    give_back();
  }
  delta_.content += c;
}

void MarkedCallParser::feed_after_object(char c) {
  if (matched_ == 0 && is_space(c)) {
    held_ += c;
  } else if (c == marks_.close[matched_]) {
    held_ += c;
    if (++matched_ == marks_.close.size()) end_call();
  } else {  // what began like the end may be the beginning of another call
    const std::string again = held_.substr(held_.size() - matched_) + c;
    held_.resize(held_.size() - matched_);
    give_back();
    for (const char one : again) feed(one);
  }
}

void MarkedCallParser::begin_object() {
  scanner_ = {};
  scanner_.feed('{');
  object_begin_ = held_.size();
  held_ += '{';
  within_ = Within::object;
}

void MarkedCallParser::end_call() {
  std::optional<ToolCallDelta> call = call_of(std::string_view(held_).substr(object_begin_), scanner_);
  if (!call) return give_back();
  call->index = num_calls_++;
  call->id = random_call_id();
  delta_.tool_calls.push_back(*std::move(call));
  held_.clear();
  space_.clear();
  within_ = Within::text;
  in_gap_ = true;
  may_begin_ = false;
}

void MarkedCallParser::give_back() {
  delta_.content += space_;
  delta_.content += held_;
  held_.clear();
  space_.clear();
  within_ = Within::text;
  in_gap_ = may_begin_ = false;
}
// <<< task 6.8

}  // namespace ladder
