// Tasks 2.6.lexer, 2.6.expressions and 2.6.parser: random templates, made together with the tokens or the tree that they
// must become.
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "step2_model/chat/jinja/lexer.h"
#include "step2_model/chat/jinja/parser.h"
#include "tests/step2_model/jinja_tree.h"
#include "tests/support/numerics.h"

namespace ladder {
namespace {

using testing::Random;

bool chance(Random& random, int percent) {
  return random.integer(1, 100) <= percent;
}

// ---- 2.6.lexer -----------------------------------------------------------------------------------------------------

using Characters = std::vector<std::string>;

bool is_space(const std::string& character) {
  return character == " " || character == "\n" || character == "\t" || character == "\u00a0" ||
         character == "\u3000";
}

std::string joined(const Characters& characters) {
  std::string text;
  for (const std::string& one : characters) text += one;
  return text;
}

// What stands on one side of a text.
struct Side {
  enum class Kind { variable, block, raw_begin, edge };  // block: a comment, too; edge: of the template
  Kind kind = Kind::edge;
  std::string sign;
};

// What is left of the characters between two tags, by the rules of lexer.h.
std::string left_of(Characters text, const Side& before, const Side& after) {
  using Kind = Side::Kind;
  if (after.kind == Kind::edge && !text.empty() && text.back() == "\n") text.pop_back();
  bool begins_line = before.kind == Kind::edge;
  size_t gone = 0;
  if (before.sign == "-")
    while (gone < text.size() && is_space(text[gone])) ++gone;
  else if (before.kind == Kind::block && before.sign.empty() && !text.empty() && text[0] == "\n")
    gone = 1;
  if (gone > 0) begins_line = text[gone - 1] == "\n";
  text.erase(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(gone));
  if (after.sign == "-") {
    while (!text.empty() && is_space(text.back())) text.pop_back();
  } else if (after.kind == Kind::block && after.sign.empty()) {
    Characters line = text;
    while (!line.empty() && line.back() != "\n" && is_space(line.back())) line.pop_back();
    if (line.empty() ? begins_line : line.back() == "\n") text = line;
  }
  return joined(text);
}

struct Expected {
  std::string token;
  int line = 0;  // 0: is not compared
  bool operator==(const Expected&) const = default;
};

std::ostream& operator<<(std::ostream& out, const Expected& expected) {
  return out << expected.token << " in line " << expected.line;
}

std::vector<Expected> tokens_of(const std::string& source) {
  constexpr std::string_view kNames[] = {"data",   "{{",      "}}",   "{%",     "%}", "name",
                                         "string", "integer", "real", "symbol", "end"};
  std::vector<Expected> list;
  int line = 1;
  for (const jinja::Token& token : jinja::read_tokens(source, line)) {
    const bool in_tag = token.kind >= jinja::TokenKind::name && token.kind != jinja::TokenKind::end;
    list.push_back(
        {std::string(kNames[static_cast<size_t>(token.kind)]) + ":" + token.text, in_tag ? token.line : 0});
  }
  return list;
}

// A template under construction: text and tags in turn.
class TemplateOfTokens {
 public:
  explicit TemplateOfTokens(Random& random) : random_(random) {}

  void make(int64_t tags) {
    for (; tags > 0; --tags) {
      const int64_t kind = random_.integer(0, 5);
      if (kind < 2)
        tag(true);
      else if (kind < 4)
        tag(false);
      else if (kind == 4)
        comment();
      else
        raw();
    }
    text({Side::Kind::edge, ""}, {});
    expected.push_back({"end:"});
  }

  std::string source;
  std::vector<Expected> expected;

 private:
  std::string sign() { return random_.one_of<std::string>({"", "", "-", "+"}); }
  std::string space() { return random_.one_of<std::string>({" ", "  ", "\n", " \n ", "\t", "\u00a0"}); }

  // The text in front of a tag, and the tag's beginning.
  void text(const Side& after, const std::string& tag, const Characters& more = {}) {
    Characters all = {" ", " ", "\n", "\n", "\t", "\u00a0", "\u3000", "a", "漢", "{;", "}", "%}", "-"};
    all.insert(all.end(), more.begin(), more.end());
    Characters characters;
    for (int64_t left = random_.integer(0, 6); left > 0; --left) characters.push_back(random_.one_of(all));
    if (const std::string data = left_of(characters, before_, after); !data.empty())
      expected.push_back({"data:" + data});
    source += joined(characters) + tag;
  }

  void tag(bool block) {
    using Kind = Side::Kind;
    const std::string left = sign(), right = block ? sign() : random_.one_of<std::string>({"", "-"});
    text({block ? Kind::block : Kind::variable, left}, (block ? "{%" : "{{") + left);
    expected.push_back({block ? "{%:" : "{{:"});
    source += space();
    for (int64_t left_over = random_.integer(0, 5); left_over > 0; --left_over) {
      const auto [written, tokens] = random_.one_of(parts());
      const int line = 1 + static_cast<int>(std::ranges::count(source, '\n'));
      for (const std::string& token : tokens) expected.push_back({token, line});
      source += written + space();
    }
    if (!block && chance(random_, 10)) {  // no sign there, but an operator
      expected.push_back({"symbol:+", 1 + static_cast<int>(std::ranges::count(source, '\n'))});
      source += "+";
    }
    source += right + (block ? "%}" : "}}");
    expected.push_back({block ? "%}:" : "}}:"});
    before_ = {block ? Kind::block : Kind::variable, right};
  }

  void comment() {
    const std::string left = sign(), right = sign();
    text({Side::Kind::block, left}, "{#" + left + " ");
    for (int64_t left_over = random_.integer(0, 3); left_over > 0; --left_over)
      source += random_.one_of<std::string>({"x ", "\n", "{{ b }} ", "%} ", "' ", "# ", "- "});
    source += " " + right + "#}";
    before_ = {Side::Kind::block, right};
  }

  void raw() {
    const std::string strips = random_.one_of<std::string>({"", "-"}), left = sign(), right = sign();
    const std::string begin = sign();
    text({Side::Kind::block, begin}, "{%" + begin + space() + "raw" + space() + strips + "%}");
    before_ = {Side::Kind::raw_begin, strips};
    text({Side::Kind::block, left}, "{%" + left + space() + "endraw" + space() + right + "%}",
         {"{{ a }}", "{# b", "'"});
    before_ = {Side::Kind::block, right};
  }

  // What may stand in a tag, each with white space around it.
  static const std::vector<std::pair<std::string, std::vector<std::string>>>& parts() {
    static const std::vector<std::pair<std::string, std::vector<std::string>>> all = [] {
      std::vector<std::pair<std::string, std::vector<std::string>>> made = {
          {"message", {"name:message"}},
          {"é1_x", {"name:é1_x"}},
          {"'}}'", {"string:}}"}},
          {"\"a'%}\\n\"", {"string:a'%}\n"}},
          {R"('\'\u6f22\\')", {"string:'漢\\"}},
          {"'a\nb'", {"string:a\nb"}},
          {"12", {"integer:12"}},
          {"1_000", {"integer:1000"}},
          {"1.50", {"real:1.50"}},
          {"2e-3", {"real:2e-3"}},
          {"1_0.5E+2", {"real:10.5E+2"}},
          {"a.0.5", {"name:a", "symbol:.", "integer:0", "symbol:.", "integer:5"}},
          {"1.x", {"integer:1", "symbol:.", "name:x"}},
          {"a//b", {"name:a", "symbol://", "name:b"}},
          {"2**-1", {"integer:2", "symbol:**", "symbol:-", "integer:1"}},
          {"x|f(y)[0]",
           {"name:x", "symbol:|", "name:f", "symbol:(", "name:y", "symbol:)", "symbol:[", "integer:0",
            "symbol:]"}},
          {"{'a':{'b':1}}",
           {"symbol:{", "string:a", "symbol::", "symbol:{", "string:b", "symbol::", "integer:1", "symbol:}",
            "symbol:}"}},
          {"[5%{}]", {"symbol:[", "integer:5", "symbol:%", "symbol:{", "symbol:}", "symbol:]"}}};
      for (const char* symbol :
           {"==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", ">", "<", "=", ".", ",", ":"})
        made.push_back({symbol, {std::string("symbol:") + symbol}});
      return made;
    }();
    return all;
  }

  Random& random_;
  Side before_;
};

TEST(Hidden2_6_Lexer, RandomTemplatesBecomeTheirTokens) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 3000; ++round) {
    TemplateOfTokens made(random);
    made.make(random.integer(0, 6));
    ASSERT_EQ(tokens_of(made.source), made.expected) << made.source;
  }
}

TEST(Hidden2_6_Lexer, WhatIsNotClosedIsRefusedInItsLine) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 200; ++round) {
    TemplateOfTokens made(random);
    made.make(random.integer(0, 3));
    const std::string source =
        made.source + "\n" +
        random.one_of<std::string>({"{{ a", "{% a -", "{# a -", "{{ 'a\\' }}", "{% raw %}{{ a }}",
                                    "{{ (1] }}", "{% x) %}", "{{ ? }}", "{{ [{ }}", "{{ \"%}"});
    const auto expected = 1 + std::ranges::count(source, '\n');
    int line = 0;
    EXPECT_THROW(jinja::read_tokens(source, line), jinja::Refusal) << source;
    EXPECT_EQ(line, expected) << source;
  }
}

// ---- 2.6.expressions -----------------------------------------------------------------------------------------------

struct Made {
  std::string source;
  std::string shown;  // with brackets around every operator (jinja_tree.h)
};

// An expression of each level of precedence, made of those below it; in brackets all begins anew.
class RandomExpressions {
 public:
  explicit RandomExpressions(Random& random) : random_(random) {}

  Made one(int depth) {
    left_ = 50;
    return expression(depth);
  }
  // With commas, perhaps: a tuple.
  Made one_or_tuple(int depth) {
    left_ = 50;
    return more(15) ? tuple(depth) : expression(depth);
  }

 private:
  // Whether there is something more to it; not without end.
  bool more(int percent) { return left_ > 0 && chance(random_, percent) && left_-- > 0; }

  Made expression(int depth) {
    Made made = any_of(depth);
    if (!more(15)) return made;
    const Made condition = any_of(depth);
    made = {made.source + " if " + condition.source, "(" + made.shown + " if " + condition.shown};
    if (chance(random_, 70)) {
      const Made otherwise = expression(depth);
      made = {made.source + " else " + otherwise.source, made.shown + " else " + otherwise.shown};
    }
    made.shown += ")";
    return made;
  }

  // 0 to 2 operators behind what `operand` gives; each takes all before it as its left side.
  template <class Operand>
  Made chain(const std::vector<std::string>& operators, const Operand& operand) {
    Made made = operand();
    for (int64_t i = count(); i > 0; --i) {
      const std::string op = random_.one_of(operators);
      const Made right = operand();
      made = {made.source + spaced(op) + right.source, "(" + made.shown + " " + op + " " + right.shown + ")"};
    }
    return made;
  }
  int64_t count() { return more(25) ? random_.integer(1, 2) : 0; }
  std::string spaced(const std::string& op) {
    return op[0] < 'a' || op[0] > 'z' ? random_.one_of<std::string>({op, " " + op + " "}) : " " + op + " ";
  }

  Made any_of(int depth) {
    return chain({"or"}, [&] { return chain({"and"}, [&] { return negation(depth); }); });
  }
  Made negation(int depth) {
    if (!more(12)) return comparison(depth);
    const Made inner = negation(depth);
    return {"not " + inner.source, "(not " + inner.shown + ")"};
  }
  Made comparison(int depth) {
    Made made = sum(depth);
    const int64_t operators = count();
    for (int64_t i = 0; i < operators; ++i) {
      const std::string op = random_.one_of<std::string>({"==", "!=", "<", "<=", ">", ">=", "in", "not in"});
      const Made right = sum(depth);
      made = {made.source + " " + op + " " + right.source, made.shown + " " + op + " " + right.shown};
    }
    if (operators > 0) made.shown = "(" + made.shown + ")";
    return made;
  }
  Made sum(int depth) {
    return chain({"+", "-"}, [&] { return joined_texts(depth); });
  }
  Made joined_texts(int depth) {
    Made made = product(depth);
    const int64_t operators = count();
    for (int64_t i = 0; i < operators; ++i) {
      const Made right = product(depth);
      made = {made.source + spaced("~") + right.source, made.shown + " ~ " + right.shown};
    }
    if (operators > 0) made.shown = "(" + made.shown + ")";
    return made;
  }
  Made product(int depth) {
    return chain({"*", "/", "//", "%"}, [&] { return chain({"**"}, [&] { return filtered(depth); }); });
  }
  Made filtered(int depth) {
    Made made = with_sign(depth);
    for (int64_t i = count(); i > 0; --i) {
      const std::string name = random_.one_of<std::string>({"upper", "trim", "length", "abs"});
      if (depth <= 0 || !more(40)) {
        made = {made.source + spaced("|") + name, "(" + made.shown + " | " + name + ")"};
      } else {
        const Made argument = expression(depth - 1);
        made = {made.source + "|default(" + argument.source + ", boolean=true)",
                "(" + made.shown + " | default(" + argument.shown + ", boolean=True))"};
      }
    }
    if (!more(12)) return made;
    const bool negated = chance(random_, 40);
    const auto [source, shown] =
        random_.one_of<std::pair<std::string, std::string>>({{"odd", "odd"},
                                                             {"none", "none"},
                                                             {"divisibleby 3", "divisibleby(3)"},
                                                             {"divisibleby(x, )", "divisibleby(x)"}});
    made = {made.source + (negated ? " is not " : " is ") + source, "(" + made.shown + " is " + shown + ")"};
    if (negated) made.shown = "(not " + made.shown + ")";
    return made;
  }
  Made with_sign(int depth) {
    if (!more(12)) return value(depth);
    const std::string sign = random_.one_of<std::string>({"-", "+"});
    const Made inner = with_sign(depth);
    return {sign + random_.one_of<std::string>({"", " "}) + inner.source, "(" + sign + inner.shown + ")"};
  }

  // A value with what follows it.
  Made value(int depth) {
    Made made = first(depth);
    const char end = made.source.back();
    if (end >= '0' && end <= '9') return made;  // 1.x would be read as a number
    for (int64_t i = more(40) ? random_.integer(1, 3) : 0; i > 0; --i) {
      switch (random_.integer(0, depth <= 0 ? 2 : 4)) {
        case 0:
          made = {made.source + ".role", made.shown + ".role"};
          break;
        case 1:
          made = {made.source + ".0", made.shown + "[0]"};
          break;
        case 2: {
          const bool three = chance(random_, 50);
          std::string parts[3];
          for (int i = 0; i < (three ? 3 : 2); ++i)
            if (chance(random_, 50)) parts[i] = std::to_string(random_.integer(0, 9));
          made = {made.source + "[" + parts[0] + ":" + parts[1] + (three ? ":" + parts[2] : "") + "]",
                  made.shown + "[" + parts[0] + ":" + parts[1] + ":" + parts[2] + "]"};
          break;
        }
        case 3: {
          const Made index = expression(depth - 1);
          made = {made.source + "[" + index.source + "]", made.shown + "[" + index.shown + "]"};
          break;
        }
        default: {
          const Made list = arguments(depth);
          made = {made.source + "(" + list.source + ")", made.shown + "(" + list.shown + ")"};
        }
      }
    }
    return made;
  }

  Made leaf() {
    switch (random_.integer(0, 3)) {
      case 0: {
        const std::string number = std::to_string(random_.integer(0, 99));
        return {number, number};
      }
      case 1: {
        const std::string text = random_.one_of<std::string>({"'a'", "'<|im_end|>'", "''", "'x y'"});
        return {text, text};
      }
      case 2:
        return random_.one_of<Made>({{"true", "True"}, {"False", "False"}, {"none", "None"}});
      default: {
        const std::string name = random_.one_of<std::string>({"x", "messages", "not_x", "order", "é"});
        return {name, name};
      }
    }
  }
  Made first(int depth) {
    if (depth <= 0 || chance(random_, 65)) return leaf();
    switch (random_.integer(0, 3)) {
      case 0: {
        const Made inner = expression(depth - 1);
        return {"(" + inner.source + ")", inner.shown};
      }
      case 1: {
        const Made inner = tuple(depth - 1);
        return {"(" + inner.source + ")", inner.shown};
      }
      case 2: {
        const Made inner = items(depth - 1, random_.integer(0, 3));
        return {"[" + inner.source + "]", "[" + inner.shown + "]"};
      }
      default: {
        Made made{"{", "{"};
        for (int64_t i = 0; i < random_.integer(0, 2); ++i) {
          const Made key = expression(depth - 1), item = expression(depth - 1);
          made.source += (i == 0 ? "" : ", ") + key.source + ": " + item.source;
          made.shown += (i == 0 ? "" : ", ") + key.shown + ": " + item.shown;
        }
        return {made.source + "}", made.shown + "}"};
      }
    }
  }

  // With a comma behind the last one, perhaps.
  Made items(int depth, int64_t count) {
    Made made;
    for (int64_t i = 0; i < count; ++i) {
      const Made item = expression(depth);
      made = {made.source + (i == 0 ? "" : ", ") + item.source,
              made.shown + (i == 0 ? "" : ", ") + item.shown};
    }
    if (count > 0 && chance(random_, 20)) made.source += ", ";
    return made;
  }
  Made tuple(int depth) {
    const int64_t count = random_.integer(1, 3);
    Made made = items(depth, count);
    if (count == 1 && !made.source.ends_with(", ")) made.source += ",";
    return {made.source, "(" + made.shown + (count == 1 ? ",)" : ")")};
  }
  Made arguments(int depth) {
    Made made = items(depth - 1, random_.integer(0, 2));
    if (!more(30)) return made;
    const Made named = expression(depth - 1);
    if (made.source.ends_with(", ")) made.source.resize(made.source.size() - 2);
    const std::string comma = made.source.empty() ? "" : ", ";
    return {made.source + comma + "key=" + named.source, made.shown + comma + "key=" + named.shown};
  }

  Random& random_;
  int left_ = 0;
};

std::string tree_of(const std::string& source) {
  int line = 1;
  return testing::shown(jinja::parse_template(source, line).body);
}

TEST(Hidden2_6_Expressions, EveryOperatorTakesWhatItsLevelGives) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomExpressions expressions(random);
  for (int round = 0; round < 1500; ++round) {
    const Made made = expressions.one_or_tuple(2);
    ASSERT_EQ(tree_of("{{ " + made.source + " }}"), made.shown) << made.source;
  }
}

TEST(Hidden2_6_Expressions, AnOperandThatIsNotThereIsRefused) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomExpressions expressions(random);
  for (int round = 0; round < 300; ++round) {
    const std::string whole = "(" + expressions.one(1).source + ")";
    const std::string broken = random.one_of<std::string>(
        {whole + " +", whole + " and", "not", "- ", whole + ".", whole + "[]", whole + "[1:2:3:4]",
         whole + " ~", whole + " if", whole + " if x else", whole + " 1", whole + " is", whole + " |",
         whole + " not 1", whole + " ** * 2", "or " + whole, whole + "." + whole});
    EXPECT_THROW(tree_of("{{ " + broken + " }}"), jinja::Refusal) << broken;
  }
}

// ---- 2.6.parser ----------------------------------------------------------------------------------------------------

// Bodies of statements within each other.
class RandomStatements {
 public:
  explicit RandomStatements(Random& random) : random_(random) {}

  struct Reads {  // of the innermost macro
    bool varargs = false, kwargs = false, caller = false;
    std::string shown() const {
      return std::string(varargs ? " varargs" : "") + (kwargs ? " kwargs" : "") + (caller ? " caller" : "");
    }
  };
  struct Place {
    int depth;
    int loops;     // around, within the macro
    Reads* reads;  // nullptr: in no macro
  };

  Made body(const Place& place) {
    Made made;
    bool was_data = false;
    for (int64_t i = random_.integer(1, 3); i > 0; --i) {
      Made one;
      if (!was_data && chance(random_, 40)) {
        one.source = "t" + std::to_string(random_.integer(0, 99));
        one.shown = "\"" + one.source + "\"";
        was_data = true;
      } else {
        one = statement(place);
        was_data = false;
      }
      made = {made.source + one.source, made.shown + (made.shown.empty() ? "" : " ") + one.shown};
    }
    return made;
  }

 private:
  Made block(const Place& place) {
    Made made = body({place.depth - 1, place.loops, place.reads});
    made.shown = " [" + made.shown + "]";
    return made;
  }
  static std::string tag(const std::string& inside) { return "{% " + inside + " %}"; }
  Made condition() {
    return random_.one_of<Made>({{"x", "x"}, {"n == 1", "(n == 1)"}, {"a and not b", "(a and (not b))"}});
  }

  Made statement(const Place& place) {
    const int64_t kind = place.depth <= 0 ? random_.integer(0, 2) : random_.integer(0, 8);
    switch (kind) {
      case 0: {
        if (place.loops > 0 && chance(random_, 50))
          return random_.one_of<Made>({{tag("break"), "break"}, {tag("continue"), "continue"}});
        return random_.one_of<Made>({{"{{ x }}", "x"}, {"{{ 1, y }}", "(1, y)"}});
      }
      case 1:
        if (place.reads == nullptr) return {"{{ f() }}", "f()"};
        switch (random_.integer(0, 2)) {
          case 0:
            place.reads->varargs = true;
            return {"{{ varargs }}", "varargs"};
          case 1:
            place.reads->kwargs = true;
            return {"{{ kwargs }}", "kwargs"};
          default:
            place.reads->caller = true;
            return {"{{ caller(2) }}", "caller(2)"};
        }
      case 2:
        return random_.one_of<Made>({{tag("set x = 1 if y"), "set x = (1 if y)"},
                                     {tag("set ns.x = y, 2"), "set ns.x = (y, 2)"},
                                     {tag("set a, (b, c) = z"), "set (a, (b, c)) = z"}});
      case 3:
      case 4:
        return conditions(place);
      case 5:
      case 6:
        return loop(place);
      case 7: {
        const Made inner = block(place);
        const Made filters = random_.one_of<Made>(
            {{"", ""}, {" | upper", " (_ | upper)"}, {" | trim | upper", " ((_ | trim) | upper)"}});
        return {tag("set x" + filters.source) + inner.source + tag("endset"),
                "set x" + filters.shown + inner.shown};
      }
      default:
        return macro_or_call(place);
    }
  }

  Made conditions(const Place& place) {
    Made made;
    for (int64_t i = 0, branches = random_.integer(1, 5); i < branches; ++i) {
      const Made when = condition(), then = block(place);
      made.source += tag((i == 0 ? "if " : "elif ") + when.source) + then.source;
      made.shown += (i == 0 ? "if " : " if ") + when.shown + then.shown;
    }
    if (chance(random_, 50)) {
      const Made otherwise = block(place);
      made.source += tag("else") + otherwise.source;
      made.shown += " else" + otherwise.shown;
    }
    return {made.source + tag("endif"), made.shown};
  }

  Made loop(const Place& place) {
    const Made target = random_.one_of<Made>(
        {{"x", "x"}, {"k, v", "(k, v)"}, {"k, (a, b)", "(k, (a, b))"}, {"(a, b)", "(a, b)"}, {"a, ", "(a)"}});
    const Made over = random_.one_of<Made>({{"l", "l"}, {"d.items()", "d.items()"}, {"1, x", "(1, x)"}});
    Made made{"for " + target.source + " in " + over.source, "for " + target.shown + " in " + over.shown};
    if (chance(random_, 40)) {
      const Made when = condition();
      made = {made.source + " if " + when.source, made.shown + " if " + when.shown};
    }
    const Made inner = block({place.depth, place.loops + 1, place.reads});
    made = {tag(made.source) + inner.source, made.shown + inner.shown};
    if (chance(random_, 40)) {
      const Made otherwise = block(place);
      made = {made.source + tag("else") + otherwise.source, made.shown + " else" + otherwise.shown};
    }
    return {made.source + tag("endfor"), made.shown};
  }

  Made macro_or_call(const Place& place) {
    Reads reads;
    const Made inner = block({place.depth, 0, &reads});
    const Made parameters = random_.one_of<Made>(
        {{"()", "()"}, {"(a)", "(a)"}, {"(a, b='x', )", "(a, b='x')"}, {"(c=1)", "(c=1)"}});
    if (chance(random_, 50))
      return {tag("macro f" + parameters.source) + inner.source + tag("endmacro"),
              "macro f" + parameters.shown + reads.shown() + inner.shown};
    const std::string given =
        parameters.shown == "()" ? random_.one_of<std::string>({"", "()"}) : parameters.source;
    return {tag("call" + given + " g(1)") + inner.source + tag("endcall"),
            "call" + parameters.shown + reads.shown() + " g(1)" + inner.shown};
  }

  Random& random_;
};

TEST(Hidden2_6_Parser, EveryTagEndsItsOwnBody) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomStatements statements(random);
  for (int round = 0; round < 1500; ++round) {
    const Made made = statements.body({static_cast<int>(random.integer(1, 4)), 0, nullptr});
    ASSERT_EQ(tree_of(made.source), made.shown) << made.source;
  }
}

TEST(Hidden2_6_Parser, ABreakNeedsALoopInItsOwnMacro) {
  Random random;
  SCOPED_TRACE(random.describe());
  for (int round = 0; round < 500; ++round) {
    int loops = 0;
    std::string begin, end;
    for (int64_t depth = random.integer(0, 6); depth > 0; --depth) {
      switch (random.integer(0, 6)) {
        case 0:
        case 1:
          ++loops;
          begin += "{% for x in y %}", end = "{% endfor %}" + end;
          break;
        case 2:  // in the loop's else it is over
          begin += "{% for x in y %}{% break %}{% else %}", end = "{% endfor %}" + end;
          break;
        case 3:
          loops = 0;
          begin += "{% macro f() %}", end = "{% endmacro %}" + end;
          break;
        case 4:
          loops = 0;
          begin += "{% call f() %}", end = "{% endcall %}" + end;
          break;
        case 5:
          begin += "{% if x %}{% else %}", end = "{% endif %}" + end;
          break;
        default:
          begin += "{% set x %}", end = "{% endset %}" + end;
      }
    }
    const std::string source = begin + random.one_of<std::string>({"{% break %}", "{% continue %}"}) + end;
    if (loops > 0) {
      EXPECT_NO_THROW(tree_of(source)) << source;
    } else {
      EXPECT_THROW(tree_of(source), jinja::Refusal) << source;
    }
  }
}

// After a macro or a call block the loop around it goes on.
TEST(Hidden2_6_Parser, WhatIsNotClosedOrEndsNothingIsRefused) {
  Random random;
  SCOPED_TRACE(random.describe());
  RandomStatements statements(random);
  EXPECT_NO_THROW(tree_of("{% for x in y %}{% macro f() %}{% endmacro %}{% break %}{% endfor %}"));
  for (int round = 0; round < 300; ++round) {
    const std::string inner = statements.body({1, 0, nullptr}).source;
    const std::string broken = random.one_of<std::string>(
        {"{% if x %}" + inner, "{% for x in y %}" + inner + "{% endif %}",
         "{% if x %}{% else %}" + inner + "{% elif y %}{% endif %}",
         "{% if x %}{% else %}" + inner + "{% else %}{% endif %}",
         "{% for x in y %}" + inner + "{% else %}{% else %}{% endfor %}", "{% set x %}" + inner,
         "{% macro f() %}" + inner + "{% endcall %}", "{% macro f %}" + inner + "{% endmacro %}",
         "{% call x %}" + inner + "{% endcall %}", "{% macro f(a=1, b) %}" + inner + "{% endmacro %}",
         inner + "{% endfor %}", "{% for x %}" + inner + "{% endfor %}",
         "{% for x in y recursive %}" + inner + "{% endfor %}", "{% if %}" + inner + "{% endif %}",
         "{% set 1 = 2 %}" + inner, "{% set x.y.z = 2 %}" + inner});
    EXPECT_THROW(tree_of(broken), jinja::Refusal) << broken;
  }
}

}  // namespace
}  // namespace ladder
