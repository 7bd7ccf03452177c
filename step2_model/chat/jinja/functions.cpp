// The functions that every template sees.
#include <ctime>

#include "step2_model/chat/jinja/arguments.h"
#include "step2_model/chat/jinja/interpreter.h"
#include "step2_model/chat/jinja/print.h"

namespace ladder::jinja {
namespace {

// As jinja2's sandbox has it.
constexpr int64_t kMaxRange = 100000;

Value range(Interpreter& in, const Arguments& given) {
  const auto [first, second, third] = bind<3>(given, "range", {"start", "stop", "step"}, 1);
  const int64_t start = second == nullptr ? 0 : integer_argument(first, "range", 0);
  const int64_t stop = integer_argument(second == nullptr ? first : second, "range", 0);
  const int64_t step = integer_argument(third, "range", 1);
  if (step == 0) refuse("range: the step is 0");
  std::vector<Value> items;
  for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
    if (std::ssize(items) == kMaxRange) refuse("range: more than {} numbers", kMaxRange);
    items.push_back(Value::of(i));
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  return in.list(std::move(items), Sequence::range);
}

// The pairs of a dict, and of named arguments behind them.
Dict::Items pairs_of(Interpreter& in, const Arguments& given, std::string_view who) {
  Dict::Items items;
  if (given.positional.size() > 1) refuse("{} takes at most one dict", who);
  if (!given.positional.empty()) {
    const Value& source = given.positional[0];
    if (const Dict* dict = source.dict()) {
      items = dict->items;
    } else {
      for (const auto elements = in.iterate(source); const Value& pair : elements->items) {
        const std::shared_ptr<List> two = in.iterate(pair);
        if (two->items.size() != 2) refuse("{}: expected pairs", who);
        items.emplace_back(two->items[0], two->items[1]);
      }
    }
  }
  for (const auto& [name, value] : given.named) items.emplace_back(in.text(name), value);
  // The last of equal keys counts, at the place of the first.
  Dict::Items distinct;
  for (auto& [key, value] : items) {
    in.budget().step(static_cast<int64_t>(distinct.size() / 8));
    check_key(key, in.budget());
    const auto same = std::find_if(distinct.begin(), distinct.end(),
                                   [&](const auto& other) { return equal(other.first, key, in.budget()); });
    if (same != distinct.end()) {
      same->second = value;
    } else {
      distinct.emplace_back(key, value);
    }
  }
  return distinct;
}

Value dict(Interpreter& in, const Arguments& given) {
  return in.dict(pairs_of(in, given, "dict"));
}

Value name_space(Interpreter& in, const Arguments& given) {
  std::vector<std::pair<std::string, Value>> attributes;
  for (const auto& [key, value] : pairs_of(in, given, "namespace"))
    attributes.emplace_back(string_argument(&key, "namespace").text.bytes(), value);
  return in.name_space(std::move(attributes));
}

Value raise_exception(Interpreter& in, const Arguments& given) {
  const auto [message] = bind<1>(given, "raise_exception", {"message"}, 1);
  refuse("the template refuses the conversation: {}", print(in, *message).bytes());
}

Value strftime(Interpreter& in, const Arguments& given,
               std::optional<std::chrono::system_clock::time_point> now) {
  const auto [format] = bind<1>(given, "strftime_now", {"format"}, 1);
  const Text& text = string_argument(format, "strftime_now").text;
  const std::string& wanted = text.bytes();
  std::tm time{};
  if (now) {
    const std::time_t seconds = std::chrono::system_clock::to_time_t(*now);
    localtime_r(&seconds, &time);
  } else {
    time.tm_year = 124;
    time.tm_mon = 6;
    time.tm_mday = 26;
    time.tm_wday = 5;
    time.tm_yday = 207;
  }
  if (wanted.size() > 200) refuse("strftime_now: a format has at most 200 bytes");
  char buffer[8192];
  const size_t size = std::strftime(buffer, sizeof buffer, wanted.c_str(), &time);
  return in.text(std::string_view(buffer, size), text.least_origin());
}

}  // namespace

void define_functions(Interpreter& interpreter, std::optional<std::chrono::system_clock::time_point> now) {
  interpreter.define("range", interpreter.function("range", range));
  interpreter.define("dict", interpreter.function("dict", dict));
  interpreter.define("namespace", interpreter.function("namespace", name_space));
  interpreter.define("raise_exception", interpreter.function("raise_exception", raise_exception));
  interpreter.define("strftime_now",
                     interpreter.function("strftime_now", [now](Interpreter& in, const Arguments& given) {
                       return strftime(in, given, now);
                     }));
}

}  // namespace ladder::jinja
