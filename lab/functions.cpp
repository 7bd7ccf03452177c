#include "lab/functions.h"

#include <algorithm>
#include <array>

#include "lab/lab_error.h"
#include "lab/tokens.h"

namespace lab {
namespace {

// A declaration up to its brace, with everything in (), [], {} and <> folded into one item.
struct Item {
  std::string_view text;  // "(", "[", "{" or "<" for what is folded
  size_t token;
  bool folded = false;
};

// Words before a parenthesis that opens no parameter list.
constexpr std::array<std::string_view, 8> kNoNames = {
    "alignas", "decltype", "noexcept", "requires", "explicit", "__attribute__", "__launch_bounds__", "throw"};

class Finder {
 public:
  explicit Finder(std::string_view source) : source_(source), tokens_(tokenize(source)) {}

  std::vector<Function> run() {
    const size_t end = scope(0, false);
    if (end < tokens_.size()) wrong(end, "a } without its {");
    return std::move(functions_);
  }

 private:
  [[noreturn]] void wrong(size_t token, const std::string& what) const {
    const size_t offset = token < tokens_.size() ? tokens_[token].begin : source_.size();
    throw LabError("line " + std::to_string(line_of(source_, offset)) + ": " + what);
  }

  std::string_view text(size_t token) const { return token < tokens_.size() ? tokens_[token].text : ""; }

  // The token that closes the bracket at `open`; strings and comments are no tokens that could mislead.
  size_t closing(size_t open) const {
    std::vector<std::string_view> expected;
    for (size_t i = open; i < tokens_.size(); ++i) {
      if (tokens_[i].kind != TokenKind::symbol) continue;
      const std::string_view t = text(i);
      if (t == "(") expected.push_back(")");
      if (t == "[") expected.push_back("]");
      if (t == "{") expected.push_back("}");
      if (t == ")" || t == "]" || t == "}") {
        if (t != expected.back())
          wrong(i, "expected " + std::string(expected.back()) + ", found " + std::string(t));
        expected.pop_back();
        if (expected.empty()) return i;
      }
    }
    wrong(open, "a " + std::string(text(open)) + " that is not closed");
  }

  // The > of the template list that begins at `open`; `open` itself where it is a comparison.
  size_t closing_angle(size_t open) const {
    int depth = 0;
    for (size_t i = open; i < tokens_.size(); ++i) {
      const std::string_view t = text(i);
      if (tokens_[i].kind != TokenKind::symbol) continue;
      if (t == "<") ++depth;
      if (t == ">" && --depth == 0) return i;
      if (t == "(" || t == "[" || t == "{") i = closing(i);
      if (t == ";" || t == ")" || t == "}") return open;
    }
    return open;
  }

  // Declarations up to the } that ends the scope, or the end; returns where.
  size_t scope(size_t i, bool in_class) {
    std::vector<Item> head;
    for (; i < tokens_.size(); ++i) {
      const std::string_view t = text(i);
      if (tokens_[i].kind == TokenKind::directive) continue;
      if (tokens_[i].kind != TokenKind::symbol) {
        head.push_back({t, i});
      } else if (t == "}") {
        return i;
      } else if (t == ";") {
        head.clear();
      } else if (t == ":" && in_class && head.size() == 1 &&
                 (head[0].text == "public" || head[0].text == "private" || head[0].text == "protected")) {
        head.clear();
      } else if (t == "(" || t == "[") {
        head.push_back({t, i, true});
        i = closing(i);
      } else if (t == "<" && !head.empty() && tokens_[head.back().token].kind == TokenKind::word &&
                 head.back().text != "operator" && closing_angle(i) != i) {
        head.push_back({t, i, true});
        i = closing_angle(i);
      } else if (t == "{") {
        i = brace(i, head);
      } else {
        head.push_back({t, i});
      }
    }
    return i;
  }

  static bool has(const std::vector<Item>& head, std::string_view word) {
    return std::ranges::any_of(head, [&](const Item& item) { return !item.folded && item.text == word; });
  }

  // The index of a function's parameter list in its head, or of the head's end.
  static size_t parameters(const std::vector<Item>& head) {
    for (size_t i = 1; i < head.size(); ++i) {
      if (!head[i].folded || head[i].text != "(") continue;
      const Item& before = head[i - 1];
      if (before.text == "operator" && i + 1 < head.size() && head[i + 1].folded && head[i + 1].text == "(")
        return i + 1;
      const bool names = std::ranges::find(kNoNames, before.text) == kNoNames.end();
      const bool word =
          before.folded ? before.text != "(" : (before.text[0] == '_' || std::isalpha(before.text[0]));
      const bool oper =
          i > 1 && (head[i - 2].text == "operator" || (i > 2 && head[i - 3].text == "operator"));
      if (names && (word || oper)) return i;
    }
    return head.size();
  }

  // What stands between this { and its }; returns the token to go on from.
  size_t brace(size_t open, std::vector<Item>& head) {
    const size_t close = closing(open);
    const size_t list = parameters(head);
    const bool function = list < head.size();
    if (!function && (has(head, "namespace") || (head.size() == 2 && head[0].text == "extern"))) {
      head.clear();
      return scope(open + 1, false);
    }
    if (!function && !has(head, "enum") && !has(head, "=") &&
        (has(head, "struct") || has(head, "class") || has(head, "union"))) {
      scope(open + 1, true);
      head = {{"=", open}};  // what follows up to the ; are variables of this type
      return close;
    }
    const bool requirement =
        !head.empty() &&
        (head.back().text == "requires" || (head.size() > 1 && head.back().text == "(" &&
                                            head[head.size() - 2].text == "requires" && list == head.size()));
    const auto assigned = std::ranges::find_if(head, [&](const Item& item) {
      return !item.folded && item.text == "=" && (&item == head.data() || (&item - 1)->text != "operator");
    });
    if (!function || requirement || assigned != head.end()) {
      if (assigned != head.end() && assigned + 1 != head.end() && (assigned + 1)->text == "[")
        wrong(open, "a lambda outside functions, which cannot be a stub: expected a function");
      head.push_back({"{", open, true});
      return close;
    }
    const bool initializes = std::any_of(head.begin() + list, head.end(),
                                         [](const Item& item) { return !item.folded && item.text == ":"; });
    const Item& before = head.back();
    const bool names_member =
        (before.folded && before.text == "<") || tokens_[before.token].kind == TokenKind::word;
    if (initializes && names_member) {  // a_{1} of a constructor's list
      head.push_back({"{", open, true});
      return close;
    }
    add(head, list, open, close);
    head.clear();
    return close;
  }

  void add(const std::vector<Item>& head, size_t list, size_t open, size_t close) {
    if (has(head, "constexpr") || has(head, "consteval"))
      wrong(open, "a constexpr function, which cannot be a stub: expected it outside of the region");
    if (head.back().text == "try") wrong(open, "a function that is a try block, which cannot be a stub");
    for (size_t i = list; i < head.size(); ++i)
      if (head[i].text == "noexcept" && (i + 1 == head.size() || !head[i + 1].folded))
        wrong(open, "a noexcept function, whose stub could not throw");

    size_t name = list;  // walk back over a::b<c>::d, ~a, operator+
    const size_t oper = std::ranges::find(head, "operator", &Item::text) - head.begin();
    if (oper < list) name = oper;
    while (name > 0) {
      const Item& item = head[name - 1];
      const bool part = item.text == "::" || item.text == "~" || (item.folded && item.text == "<") ||
                        tokens_[item.token].kind == TokenKind::word;
      const bool joined = name == list || item.text == "::" || item.text == "~" || head[name].text == "::" ||
                          head[name].folded || head[name].text == "~";
      if (!part || !joined || item.text == "template") break;
      --name;
    }
    Function function;
    for (size_t i = name; i < list; ++i)
      function.name += head[i].text == "(" ? "()" : head[i].folded ? "<>" : std::string(head[i].text);
    function.open = tokens_[open].begin;
    function.close = tokens_[close].begin;
    function.on_gpu = has(head, "__global__") || has(head, "__device__");
    const bool trailing =
        std::any_of(head.begin() + list, head.end(), [](const Item& item) { return item.text == "->"; });
    const auto returned = std::vector<Item>(head.begin(), head.begin() + name);
    if (has(returned, "auto") && !trailing)
      wrong(open, "a function with a deduced return type, which cannot be a stub: expected `-> type`");
    if (has(returned, "void") && !has(returned, "*")) function.returns_value = false;
    functions_.push_back(std::move(function));
  }

  std::string_view source_;
  std::vector<Token> tokens_;
  std::vector<Function> functions_;
};

}  // namespace

std::vector<Function> find_functions(std::string_view source) {
  return Finder(source).run();
}

}  // namespace lab
