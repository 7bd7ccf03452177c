#include "cli/flag_values.h"

#include <charconv>
#include <cstdlib>

#include "step1_layers/core/error.h"

namespace ladder {

CLI::Validator in_range(double low, double high) {
  return CLI::Validator(
      [low, high](std::string& text) -> std::string {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) && value >= low && value <= high) return {};
        return fmt::format("expected a number in [{}, {}], found \"{}\"", low, high, text);
      },
      "");
}

CLI::Validator whole_in_range(int64_t low, int64_t high) {
  constexpr int64_t kLowest = std::numeric_limits<int64_t>::min(),
                    kHighest = std::numeric_limits<int64_t>::max();
  const std::string range = low == kLowest && high == kHighest ? "" : fmt::format(" in [{}, {}]", low, high);
  return CLI::Validator(
      [low, high, range](std::string& text) -> std::string {
        int64_t value = 0;
        const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), value);
        if (error == std::errc() && rest == text.data() + text.size() && value >= low && value <= high) {
          text = std::to_string(value);  // or else CLI11 reads 010 as octal
          return {};
        }
        return fmt::format("expected an integer{}, found \"{}\"", range, text);
      },
      "");
}

CLI::Validator whole_in_range(FlagRange range) {
  return whole_in_range(range.min, range.max);
}

CLI::Validator whole_number() {
  return whole_in_range(std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
}

CLI::Validator above_zero(double high) {
  return CLI::Validator(
      [high](std::string& text) -> std::string {
        double value = 0.0;
        if (CLI::detail::lexical_cast(text, value) && value > 0.0 && value <= high) return {};
        return fmt::format(
            "expected a number above 0{}, found \"{}\"",
            high < std::numeric_limits<double>::max() ? fmt::format(" and at most {}", high) : "", text);
      },
      "");
}

int64_t parse_bytes(std::string_view text, std::string_view flag) {
  const size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  double value = 0.0;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + digits, value);
  std::string_view unit = text.substr(digits);
  double scale = -1.0;
  if (unit.empty() || unit == "B") scale = 1.0;
  if (unit == "K" || unit == "KiB") scale = 1024.0;
  if (unit == "M" || unit == "MiB") scale = 1024.0 * 1024.0;
  if (unit == "G" || unit == "GiB") scale = 1024.0 * 1024.0 * 1024.0;
  if (unit == "T" || unit == "TiB") scale = 1024.0 * 1024.0 * 1024.0 * 1024.0;
  if (unit == "KB") scale = 1e3;
  if (unit == "MB") scale = 1e6;
  if (unit == "GB") scale = 1e9;
  const bool number = digits > 0 && error == std::errc() && rest == text.data() + digits;
  LADDER_CHECK(number && scale > 0.0 && value * scale >= 1.0 && value * scale < 0x1p50,
               "{}: expected a size like 512MiB or 2GiB, found \"{}\"", flag, text);
  return static_cast<int64_t>(value * scale);
}

std::vector<int32_t> parse_token_ids(std::string_view text, std::string_view flag) {
  std::vector<int32_t> ids;
  for (size_t begin = 0; begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    std::string_view part = text.substr(begin, end - begin);
    while (!part.empty() && part.front() == ' ') part.remove_prefix(1);
    while (!part.empty() && part.back() == ' ') part.remove_suffix(1);
    int32_t id = -1;
    const auto [rest, error] = std::from_chars(part.data(), part.data() + part.size(), id);
    LADDER_CHECK(error == std::errc() && rest == part.data() + part.size() && id >= 0,
                 "{}: expected token ids like 1,2,3, found \"{}\"", flag, part);
    ids.push_back(id);
    begin = end + 1;
  }
  return ids;
}

std::vector<std::string> arguments_of(const std::vector<const CLI::Option*>& options) {
  std::vector<std::string> words;
  for (const CLI::Option* option : options) {
    if (option->count() == 0) continue;
    if (const char* value = std::getenv(option->get_envname().c_str());
        value != nullptr && option->results() == std::vector<std::string>{value})
      continue;
    if (option->get_items_expected_max() == 0) {
      words.push_back(option->get_name());
    } else {
      for (const std::string& value : option->results()) words.push_back(option->get_name() + "=" + value);
    }
  }
  return words;
}

}  // namespace ladder
