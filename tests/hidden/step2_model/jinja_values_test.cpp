// Tasks 2.6.evaluate, 2.6.filters and 2.6.statements: random expressions, texts and templates, made or computed together
// with what they must give.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <memory>
#include <optional>

#include "step1_layers/core/error.h"
#include "step2_model/chat/jinja/python_text.h"
#include "tests/step2_model/jinja.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using jinja::Origin;
using jinja::Text;
using testing::Random;
using testing::render_jinja;
using testing::render_marked;
using testing::value_of_jinja;

bool chance(Random& random, int percent) {
  return random.integer(1, 100) <= percent;
}

// ---- 2.6.evaluate --------------------------------------------------------------------------------------------------

// An expression, in brackets if it has an operator, and its value: an integer or a bool.
struct Valued {
  std::string source;
  int64_t value = 0;
  bool is_bool = false;

  bool holds() const { return value != 0; }
  std::string printed() const { return !is_bool ? std::to_string(value) : value != 0 ? "True" : "False"; }
};

class RandomValues {
 public:
  explicit RandomValues(Random& random) : random_(random) {}

  Valued any(int depth) {
    if (depth <= 0 || chance(random_, 30)) return chance(random_, 50) ? number(depth) : truth(depth);
    const Valued left = any(depth - 1);
    switch (random_.integer(0, 2)) {
      case 0: {  // the right side only where it is asked for
        const Valued right = left.holds() ? dead() : any(depth - 1);
        return in_brackets(left.source + " or " + right.source, left.holds() ? left : right);
      }
      case 1: {
        const Valued right = left.holds() ? any(depth - 1) : dead();
        return in_brackets(left.source + " and " + right.source, left.holds() ? right : left);
      }
      default: {
        const Valued taken = any(depth - 1);
        const Valued &yes = left.holds() ? taken : dead(), &no = left.holds() ? dead() : taken;
        return in_brackets(yes.source + " if " + left.source + " else " + no.source, taken);
      }
    }
  }

  Valued number(int depth) {
    if (depth <= 0 || chance(random_, 25)) {
      const int64_t value = random_.integer(0, 9);
      return {std::to_string(value), value};
    }
    const Valued a = number(depth - 1), b = number(depth - 1);
    switch (random_.integer(0, 7)) {
      case 0:
        return {"(" + a.source + " + " + b.source + ")", a.value + b.value};
      case 1:
        return {"(" + a.source + " - " + b.source + ")", a.value - b.value};
      case 2:
        return {"(" + a.source + " * " + b.source + ")", a.value * b.value};
      case 3:
        return {"(-" + a.source + ")", -a.value};
      case 4:
        return {"(+" + a.source + ")", a.value};
      case 5: {
        const bool first = chance(random_, 50);
        return {"[" + a.source + ", " + b.source + "][" + (first ? "0" : "-1") + "]",
                first ? a.value : b.value};
      }
      case 6: {
        const std::string dict = "{'a': " + a.source + ", 'items': " + b.source + "}";
        return {dict + random_.one_of<std::string>(
                           {".a", "['a']", ".get('a')", ".get('z', 1 and " + a.source + ")"}),
                a.value};
      }
      default:
        return {"((" + a.source + ", " + b.source + ", " + a.source + ") | length)", 3};
    }
  }

  Valued truth(int depth) {
    if (depth <= 0 || chance(random_, 15)) {
      const bool value = chance(random_, 50);
      return {value ? "true" : "false", value, true};
    }
    switch (random_.integer(0, 4)) {
      case 0: {
        const Valued inner = any(depth - 1);
        return {"(not " + inner.source + ")", !inner.holds(), true};
      }
      case 1: {
        const Valued inner = number(depth - 1);
        return {"((" + inner.source + ") is odd)", inner.value % 2 != 0, true};
      }
      default:
        return comparison(depth);
    }
  }

 private:
  static Valued in_brackets(const std::string& source, Valued value) {
    value.source = "(" + source + ")";
    return value;
  }

  // Whoever asks for its value is refused.
  Valued dead() {
    return {random_.one_of<std::string>({"u.x", "(u.x + 1)", "u()", "u[0]", "'a'.nothing()", "(1 + 'a')"})};
  }

  // A chain; what stands behind the first comparison that does not hold is not asked for.
  Valued comparison(int depth) {
    Valued left = number(depth - 1);
    std::string source = "((" + left.source + ")";
    bool holds = true;
    for (int64_t i = random_.integer(1, 3); i > 0; --i) {
      const std::string op = random_.one_of<std::string>({"==", "!=", "<", "<=", ">", ">="});
      if (!holds) {
        source += " " + op + " " + dead().source;
        continue;
      }
      const int64_t a = left.value;
      const Valued right = chance(random_, 30) ? Valued{"(" + left.source + ")", a} : number(depth - 1);
      const int64_t b = right.value;
      holds = op == "=="   ? a == b
              : op == "!=" ? a != b
              : op == "<"  ? a < b
              : op == "<=" ? a <= b
              : op == ">"  ? a > b
                           : a >= b;
      source += " " + op + " (" + right.source + ")";
      left = right;
    }
    return {source + ")", holds, true};
  }

  Random& random_;
};

TEST(Hidden2_6_Evaluate, OperatorsTakeWhatTheyNeedAndNoMore) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomValues values(random);
  for (int round = 0; round < 2000; ++round) {
    const Valued made = values.any(4);
    ASSERT_EQ(value_of_jinja(made.source), made.printed()) << made.source;
  }
}

TEST(Hidden2_6_Evaluate, ListsDictsSlicesAndJoinedTextsHoldTheirParts) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomValues values(random);
  const auto listed = [](const std::vector<Valued>& items, const std::string& open,
                         const std::string& close) {
    std::pair<std::string, std::string> text{open, open};  // source, printed
    for (size_t i = 0; i < items.size(); ++i) {
      text.first += (i == 0 ? "" : ", ") + items[i].source;
      text.second += (i == 0 ? "" : ", ") + items[i].printed();
    }
    return std::pair(text.first + close, text.second + close);
  };
  for (int round = 0; round < 500; ++round) {
    std::vector<Valued> items;
    for (int64_t i = random.integer(2, 6); i > 0; --i) items.push_back(values.any(2));
    const auto count = std::ssize(items);
    const auto [list, printed] = listed(items, "[", "]");
    ASSERT_EQ(value_of_jinja(list), printed);
    const auto [tuple, printed_tuple] = listed(items, "(", ")");
    ASSERT_EQ(value_of_jinja(tuple), printed_tuple);
    // Python's slice, by its definition.
    std::string parts[2];
    int64_t step = random.one_of<int64_t>({1, 1, 2, 3, -1, -2});
    int64_t ends[2] = {step > 0 ? 0 : count - 1, step > 0 ? count : -1};
    for (int i = 0; i < 2; ++i)
      if (chance(random, 60)) {
        const int64_t end = random.integer(-count - 2, count + 2);
        parts[i] = std::to_string(end);
        ends[i] =
            std::clamp<int64_t>(end < 0 ? end + count : end, step > 0 ? 0 : -1, step > 0 ? count : count - 1);
      }
    std::vector<Valued> cut;
    for (int64_t at = ends[0]; step > 0 ? at < ends[1] : at > ends[1]; at += step)
      cut.push_back(items[static_cast<size_t>(at)]);
    const std::string slice =
        list + "[" + parts[0] + ":" + parts[1] + (step == 1 ? "" : ":" + std::to_string(step)) + "]";
    ASSERT_EQ(value_of_jinja(slice), listed(cut, "[", "]").second) << slice;
    std::string together, expected;
    for (size_t i = 0; i < items.size(); ++i) {
      together += (i == 0 ? "" : " ~ ") + items[i].source + " ~ 'x'";
      expected += items[i].printed() + "x";
    }
    ASSERT_EQ(value_of_jinja(together), expected) << together;
    const std::string dict = "{'k': " + items[0].source + ", 'k' ~ 1: " + items[1].source + "}";
    ASSERT_EQ(value_of_jinja(dict), "{'k': " + items[0].printed() + ", 'k1': " + items[1].printed() + "}")
        << dict;
  }
}

// Of a value's attributes a method of its type is called first.
TEST(Hidden2_6_Evaluate, CallsFindMethodsMacrosAndArguments) {
  Random random;
  SCOPED_TRACE(random.describe());
  const std::string macro = "{% macro m(a, b=7) %}<{{ a }},{{ b }}>{% endmacro %}";
  for (int round = 0; round < 200; ++round) {
    const std::string a = std::to_string(random.integer(0, 99)), b = std::to_string(random.integer(0, 99));
    const auto [given, expected] =
        random.one_of<std::pair<std::string, std::string>>({{a, "<" + a + ",7>"},
                                                            {a + ", " + b, "<" + a + "," + b + ">"},
                                                            {"b=" + b + ", a=" + a, "<" + a + "," + b + ">"},
                                                            {a + ", b=" + b, "<" + a + "," + b + ">"}});
    const std::string name = random.one_of<std::string>({"go", "keys", "items", "split"});
    const bool is_method = name == "keys" || name == "items";
    const std::string method = name == "keys" ? "['" + name + "']" : "[('" + name + "', 1)]";
    EXPECT_EQ(render_jinja(macro + "{{ m(" + given + ") }}"), expected);
    EXPECT_EQ(
        render_jinja(macro + "{% set ns = namespace(" + name + "=m) %}{{ ns." + name + "(" + given + ") }}"),
        expected)
        << "a namespace has no methods: " << name;
    EXPECT_EQ(render_jinja(macro + "{% set d = {'" + name + "': m} %}{{ d." + name + "(" +
                           (is_method ? ") | list | length" : given + ")") + " }}"),
              is_method ? "1" : expected)
        << name;
    if (is_method) {
      EXPECT_EQ(value_of_jinja("{'" + name + "': 1}." + name + "() | list"), method);
    } else {
      EXPECT_THROW(value_of_jinja("{'" + name + "': 1}." + name + "()"), Error) << "an integer is not called";
    }
  }
}

// ---- 2.6.filters ---------------------------------------------------------------------------------------------------

struct Character {
  std::string bytes;
  Origin origin;
  bool operator==(const Character&) const = default;
};
using Characters = std::vector<Character>;

Text text_of(const Characters& characters) {
  Text text;
  for (const Character& one : characters) text.append(one.bytes, one.origin);
  return text;
}

Characters part_of(const Characters& all, size_t begin, size_t end) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(end)};
}

void append(Characters& to, const Characters& more) {
  to.insert(to.end(), more.begin(), more.end());
}

std::string marked(const Text& text) {
  std::string result;
  for (size_t at = 0; at < text.size(); ++at)
    result.append(text.origin_at(at) == Origin::outside ? "!" : "").append(1, text.bytes()[at]);
  return result;
}

std::vector<std::string> marked(const std::vector<Text>& texts) {
  std::vector<std::string> list;
  for (const Text& text : texts) list.push_back(marked(text));
  return list;
}

class RandomTexts {
 public:
  explicit RandomTexts(Random& random) : random_(random) {}

  Characters characters(int64_t most, const std::vector<std::string>& alphabet) {
    Characters all;
    Origin origin = Origin::trusted;
    for (int64_t left = random_.integer(0, most); left > 0; --left) {
      if (chance(random_, 30)) origin = chance(random_, 50) ? Origin::trusted : Origin::outside;
      all.push_back({random_.one_of(alphabet), origin});
    }
    return all;
  }

 private:
  Random& random_;
};

const std::vector<std::string>& letters() {
  static const std::vector<std::string> all = {"a", "a", "b", "é", "漢", "😀"};
  return all;
}
const std::vector<std::string>& letters_and_spaces() {
  static const std::vector<std::string> all = {"a",  "b",  "漢",     " ",      " ",
                                               "\n", "\t", "\u00a0", "\u3000", "\r"};
  return all;
}

bool is_space(const Character& one) {
  return std::ranges::count(std::vector<std::string>{" ", "\n", "\t", "\r", "\u00a0", "\u3000"}, one.bytes) >
         0;
}

bool stands_at(const Characters& all, size_t at, const Characters& part) {
  if (at + part.size() > all.size()) return false;
  for (size_t i = 0; i < part.size(); ++i)
    if (all[at + i].bytes != part[i].bytes) return false;
  return true;
}

TEST(Hidden2_6_Filters, StripTakesFromTheEndsAlone) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomTexts texts(random);
  jinja::Budget budget{{}};
  for (int round = 0; round < 2000; ++round) {
    const bool of_set = chance(random, 50), left = chance(random, 60), right = chance(random, 60);
    const Characters all = texts.characters(9, of_set ? letters() : letters_and_spaces());
    const Characters set = texts.characters(3, letters());
    const auto goes = [&](const Character& one) {
      return of_set ? std::ranges::count(set, one.bytes, &Character::bytes) > 0 : is_space(one);
    };
    size_t begin = 0, end = all.size();
    while (left && begin < end && goes(all[begin])) ++begin;
    while (right && begin < end && goes(all[end - 1])) --end;
    const std::string characters = text_of(set).bytes();
    ASSERT_EQ(marked(jinja::strip(budget, text_of(all), of_set ? &characters : nullptr, left, right)),
              marked(text_of(part_of(all, begin, end))))
        << marked(text_of(all)) << " of " << characters;
  }
}

TEST(Hidden2_6_Filters, ReplacedPartsHaveTheirOwnMarks) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomTexts texts(random);
  jinja::Budget budget{{}};
  for (int round = 0; round < 2000; ++round) {
    const Characters all = texts.characters(12, letters()), old_part = texts.characters(2, letters()),
                     new_part = texts.characters(3, letters_and_spaces());
    const int64_t count = random.integer(-1, 4);
    Characters expected;
    int64_t left = count;
    size_t at = 0;
    while (at < all.size()) {
      if (left != 0 && stands_at(all, at, old_part)) {
        append(expected, new_part);
        --left;
        at += old_part.size();
        if (!old_part.empty()) continue;
      }
      expected.push_back(all[at++]);
    }
    if (old_part.empty() && left != 0) append(expected, new_part);
    ASSERT_EQ(
        marked(jinja::replace_all(budget, text_of(all), text_of(old_part).bytes(), text_of(new_part), count)),
        marked(text_of(expected)))
        << marked(text_of(all)) << ", " << text_of(old_part).bytes() << ", " << count;
  }
}

// From the right: the last place where the separator stands, then what is before it.
std::vector<Text> split_by_definition(Characters all, const Characters& separator, int64_t most,
                                      bool from_right) {
  std::vector<Text> pieces;
  for (; most != 0; --most) {
    std::optional<size_t> found;
    for (size_t at = 0; at < all.size() && (from_right || !found); ++at)
      if (stands_at(all, at, separator)) found = at;
    if (!found) break;
    const Characters before = part_of(all, 0, *found),
                     behind = part_of(all, *found + separator.size(), all.size());
    pieces.push_back(text_of(from_right ? behind : before));
    all = from_right ? before : behind;
  }
  pieces.push_back(text_of(all));
  if (from_right) std::ranges::reverse(pieces);
  return pieces;
}

// The ends of the words are cut off one by one; the rest is stripped at the side where it was cut.
std::vector<Text> words_by_definition(Characters all, int64_t most, bool from_right) {
  if (from_right) std::ranges::reverse(all);
  std::vector<Characters> pieces;
  while (true) {
    size_t begin = 0;
    while (begin < all.size() && is_space(all[begin])) ++begin;
    all = part_of(all, begin, all.size());
    if (all.empty()) break;
    size_t end = 0;
    while (end < all.size() && !is_space(all[end])) ++end;
    if (most-- == 0) end = all.size();
    pieces.push_back(part_of(all, 0, end));
    all = part_of(all, end, all.size());
    if (most == -1 && all.empty()) break;
  }
  if (from_right) {
    std::ranges::reverse(pieces);
    for (Characters& piece : pieces) std::ranges::reverse(piece);
  }
  std::vector<Text> texts;
  for (const Characters& piece : pieces) texts.push_back(text_of(piece));
  return texts;
}

TEST(Hidden2_6_Filters, SplitsAtSeparatorsAndAtWhiteSpace) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomTexts texts(random);
  jinja::Budget budget{{}};
  for (int round = 0; round < 2000; ++round) {
    const bool from_right = chance(random, 50);
    const int64_t most = random.integer(-1, 4);
    Characters all = texts.characters(12, letters());
    Characters separator = texts.characters(1, letters());
    append(separator, {{random.one_of<std::string>({"a", "b", "é"}), Origin::trusted}});
    const std::string bytes = text_of(separator).bytes();
    ASSERT_EQ(marked(jinja::split(budget, text_of(all), &bytes, most, from_right)),
              marked(split_by_definition(all, separator, most, from_right)))
        << marked(text_of(all)) << " at " << bytes << ", at most " << most
        << (from_right ? " from the right" : "");
    all = texts.characters(12, letters_and_spaces());
    ASSERT_EQ(marked(jinja::split(budget, text_of(all), nullptr, most, from_right)),
              marked(words_by_definition(all, most, from_right)))
        << marked(text_of(all)) << ", at most " << most << (from_right ? " from the right" : "");
  }
  const std::string nothing;
  EXPECT_THROW(jinja::split(budget, text_of(texts.characters(9, letters())), &nothing, -1, false),
               jinja::Refusal);
}

// ---- 2.6.statements ------------------------------------------------------------------------------------------------

// A template as its source, and what it does to scopes and text when it is run by hand.
class Program {
 public:
  struct Statement {
    enum class Kind { text, print, set, set_block, filter, condition, loop, leave, go_on };
    Kind kind = Kind::text;
    std::string word;  // the text, or the name that is printed or set
    int64_t number = 0;
    std::vector<int64_t> items;
    bool chosen = false;  // the loop leaves out items up to `number`
    std::vector<Statement> body, otherwise;
  };
  using Body = std::vector<Statement>;

  explicit Program(Random& random) : random_(random) {
    for (const std::string& name : kNames) source_ += "{% set " + name + " = 0 %}";
    body_ = made(4, 0);
    source_ += source_of(body_);
  }
  const std::string& source() const { return source_; }

  std::string run() {
    scopes_.assign(1, {});
    for (const std::string& name : kNames) scopes_.back()[name] = "0";
    out_.clear();
    run(body_);
    return out_;
  }

 private:
  using Kind = Statement::Kind;
  enum class Flow { next, leave, go_on };
  static inline const std::vector<std::string> kNames = {"a", "b", "c"};

  Body made(int depth, int loops) {
    Body body;
    for (int64_t left = random_.integer(1, 4); left > 0; --left) {
      Statement one;
      one.kind = static_cast<Kind>(random_.integer(0, depth <= 0 ? 2 : loops > 0 ? 8 : 6));
      one.word = random_.one_of(kNames);
      one.number = random_.integer(0, 5);
      switch (one.kind) {
        case Kind::text:
          one.word = random_.one_of<std::string>({"x", "yz", "é;"});
          break;
        case Kind::loop:
          for (int64_t count = random_.integer(0, 4); count > 0; --count)
            one.items.push_back(random_.integer(0, 6));
          one.chosen = chance(random_, 50);
          one.body = made(depth - 1, loops + 1);
          if (chance(random_, 40)) one.otherwise = made(depth - 1, loops);
          break;
        case Kind::condition:
          one.body = made(depth - 1, loops);
          if (chance(random_, 50)) one.otherwise = made(depth - 1, loops);
          break;
        case Kind::set_block:
        case Kind::filter:
          one.body = made(depth - 1, 0);
          break;
        default:
          break;
      }
      body.push_back(std::move(one));
    }
    return body;
  }

  // What is printed of a loop, where one is around, stands behind the name.
  static std::string source_of(const Body& body) {
    std::string text;
    for (const Statement& one : body) text += source_of(one);
    return text;
  }
  static std::string source_of(const Statement& one) {
    const std::string number = std::to_string(one.number);
    switch (one.kind) {
      case Kind::text:
        return one.word;
      case Kind::print:
        return "{{ " + one.word + " }}";
      case Kind::set:
        return "{% set " + one.word + " = " + number + " %}";
      case Kind::set_block:
        return "{% set " + one.word + " %}" + source_of(one.body) + "{% endset %}";
      case Kind::filter:
        return "{% filter upper %}" + source_of(one.body) + "{% endfilter %}";
      case Kind::condition:
        return "{% if " + one.word + " ~ '' != '" + number + "' %}" + source_of(one.body) +
               (one.otherwise.empty() ? "" : "{% else %}" + source_of(one.otherwise)) + "{% endif %}";
      case Kind::loop: {
        std::string items;
        for (const int64_t item : one.items) items += std::to_string(item) + ", ";
        return "{% for " + one.word + " in [" + items + "]" +
               (one.chosen ? " if " + one.word + " > " + number : "") +
               " %}{{ loop.index }}/{{ loop.length }}{{ '.' if loop.last }}" + source_of(one.body) +
               (one.otherwise.empty() ? "" : "{% else %}" + source_of(one.otherwise)) + "{% endfor %}";
      }
      case Kind::leave:
        return "{% break %}";
      default:
        return "{% continue %}";
    }
  }

  std::string& find(const std::string& name) {
    for (size_t i = scopes_.size(); i-- > 0;)
      if (const auto found = scopes_[i].find(name); found != scopes_[i].end()) return found->second;
    return scopes_[0][name];
  }

  Flow run(const Body& body) {
    for (const Statement& one : body)
      if (const Flow flow = run(one); flow != Flow::next) return flow;
    return Flow::next;
  }
  // In a scope of its own.
  Flow run_within(const Body& body) {
    scopes_.emplace_back();
    const Flow flow = run(body);
    scopes_.pop_back();
    return flow;
  }
  std::string text_of(const Body& body) {
    const std::string before = std::exchange(out_, "");
    run_within(body);
    return std::exchange(out_, before);
  }

  Flow run(const Statement& one) {
    switch (one.kind) {
      case Kind::text:
        out_ += one.word;
        break;
      case Kind::print:
        out_ += find(one.word);
        break;
      case Kind::set:
        scopes_.back()[one.word] = std::to_string(one.number);
        break;
      case Kind::set_block: {
        const std::string text = text_of(one.body);
        scopes_.back()[one.word] = text;
        break;
      }
      case Kind::filter: {
        std::string text = text_of(one.body);
        for (size_t at = 0; at < text.size(); ++at) {
          if (text[at] >= 'a' && text[at] <= 'z') text[at] = static_cast<char>(text[at] - 'a' + 'A');
          if (text.compare(at, 2, "é") == 0) text.replace(at, 2, "É");
        }
        out_ += text;
        break;
      }
      case Kind::condition:
        return run(find(one.word) != std::to_string(one.number) ? one.body : one.otherwise);
      case Kind::loop:
        return run_loop(one);
      case Kind::leave:
        return Flow::leave;
      case Kind::go_on:
        return Flow::go_on;
    }
    return Flow::next;
  }

  Flow run_loop(const Statement& one) {
    std::vector<int64_t> items;
    for (const int64_t item : one.items)
      if (!one.chosen || item > one.number) items.push_back(item);
    bool completed = false;
    for (size_t i = 0; i < items.size(); ++i) {
      scopes_.emplace_back();
      scopes_.back()[one.word] = std::to_string(items[i]);
      out_ += std::to_string(i + 1) + "/" + std::to_string(items.size()) + (i + 1 == items.size() ? "." : "");
      const Flow flow = run(one.body);
      scopes_.pop_back();
      if (flow == Flow::leave) break;
      completed |= flow == Flow::next;
    }
    return completed ? Flow::next : run_within(one.otherwise);
  }

  Random& random_;
  std::string source_, out_;
  Body body_;
  std::vector<std::map<std::string, std::string>> scopes_;
};

TEST(Hidden2_6_Statements, ProgramsDoWhatTheyDoByHand) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 1000; ++round) {
    Program program(random);
    ASSERT_EQ(render_jinja(program.source()), program.run()) << program.source();
  }
}

}  // namespace
}  // namespace ladder
