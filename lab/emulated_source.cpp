#include "lab/emulated_source.h"

#include <map>
#include <vector>

#include "lab/lab_error.h"
#include "lab/tokens.h"

namespace lab {
namespace {

class Translation {
 public:
  explicit Translation(std::string_view source) : source_(source), tokens_(tokenize(source)) {}

  std::string run() {
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (is_launch(i)) launch(i);
      if (tokens_[i].text == "__shared__") shared(i);
    }
    std::string text;
    size_t at = 0;
    for (const auto& [begin, edit] : edits_) {
      text += source_.substr(at, begin - at);
      text += edit.text;
      at = edit.end;
    }
    return text + std::string(source_.substr(at));
  }

 private:
  struct Edit {
    size_t end;
    std::string text;
  };

  std::string_view text(size_t i) const { return i < tokens_.size() ? tokens_[i].text : std::string_view(); }
  size_t end_of(size_t i) const { return tokens_[i].begin + tokens_[i].text.size(); }
  // The source from token `first` to before token `last`, comments included.
  std::string between(size_t first, size_t last) const {
    if (first >= last) return "";
    return std::string(source_.substr(tokens_[first].begin, end_of(last - 1) - tokens_[first].begin));
  }
  [[noreturn]] void fail(size_t i, const std::string& what) const {
    throw LabError("line " + std::to_string(line_of(source_, tokens_[i].begin)) + ": " + what);
  }
  bool three(size_t i, std::string_view symbol) const {
    return text(i) == symbol && text(i + 1) == symbol && text(i + 2) == symbol &&
           tokens_[i + 2].begin == tokens_[i].begin + 2;
  }
  bool is_launch(size_t i) const { return three(i, "<"); }

  // The token after the bracket that closes the one at i.
  size_t after_bracket(size_t i) const {
    int depth = 0;
    for (size_t at = i; at < tokens_.size(); ++at) {
      const std::string_view t = text(at);
      if (t == "(" || t == "[" || t == "{") ++depth;
      if ((t == ")" || t == "]" || t == "}") && --depth == 0) return at + 1;
    }
    fail(i, "a bracket that does not close");
  }

  // Where the name before `<<<` begins: a::b<c(), d<e>>.
  size_t kernel_begin(size_t launch) const {
    size_t at = launch;
    if (at > 0 && text(at - 1) == ">") {
      int angle = 0, round = 0;
      do {
        --at;
        if (text(at) == ")") ++round;
        if (text(at) == "(") --round;
        if (round == 0 && text(at) == ">") ++angle;
        if (round == 0 && text(at) == "<") --angle;
      } while (at > 0 && angle > 0);
    }
    if (at == 0 || tokens_[at - 1].kind != TokenKind::word) fail(launch, "no kernel before <<<");
    --at;
    while (at >= 2 && text(at - 1) == "::" && tokens_[at - 2].kind == TokenKind::word) at -= 2;
    return at;
  }

  void launch(size_t i) {
    const size_t kernel = kernel_begin(i);
    size_t close = i + 3;
    while (close < tokens_.size() && !(three(close, ">") && text(close + 3) == "(")) {
      if (text(close) == ";") fail(i, "a launch <<< without >>>(");
      close = text(close) == "(" || text(close) == "{" ? after_bracket(close) : close + 1;
    }
    if (close >= tokens_.size()) fail(i, "a launch <<< without >>>(");
    const std::string name = between(kernel, i), configuration = between(i + 3, close);
    const bool has_arguments = text(close + 4) != ")";
    edits_[tokens_[kernel].begin] = {
        end_of(close + 3), "::ladder_emulator::Launch(\"" + std::string(text(kernel_name(kernel, i))) +
                               "\", " + configuration + ").run([&](auto... ladder_arguments) { " + name +
                               "(ladder_arguments...); }" + (has_arguments ? ", " : "")};
  }
  size_t kernel_name(size_t kernel, size_t launch) const {
    while (kernel + 2 < launch && text(kernel + 1) == "::") kernel += 2;
    return kernel;
  }

  void shared(size_t i) {
    size_t begin = i, end = i;
    while (begin > 0 && text(begin - 1) != ";" && text(begin - 1) != "{" && text(begin - 1) != "}") {
      if (tokens_[begin - 1].kind == TokenKind::directive) break;
      --begin;
    }
    while (end < tokens_.size() && text(end) != ";")
      end = text(end) == "(" || text(end) == "[" || text(end) == "{" ? after_bracket(end) : end + 1;
    if (end >= tokens_.size()) fail(i, "a declaration of shared variables without ;");

    bool is_extern = false;
    std::string type;
    size_t at = begin;
    int angle = 0;
    for (; at < end; ++at) {  // up to the first variable's name
      if (text(at) == "<") ++angle;
      if (text(at) == ">") --angle;
      const std::string_view next = text(at + 1);
      if (angle == 0 && (next == "[" || next == "," || next == ";")) break;
      if (text(at) == "extern") is_extern = true;
      if (text(at) == "extern" || text(at) == "static" || text(at) == "__shared__") continue;
      if (text(at) == "alignas" || text(at) == "__align__") {  // all are aligned to 256 bytes
        at = after_bracket(at + 1) - 1;
        continue;
      }
      type += (type.empty() ? "" : " ") + std::string(text(at));
    }
    if (type.empty() || at >= end) fail(i, "expected __shared__ TYPE NAME, or NAME[SIZE], without a value");

    std::string made;
    while (at < end) {
      const std::string name(text(at));
      size_t next = at + 1;
      while (text(next) == "[") next = after_bracket(next);
      if (tokens_[at].kind != TokenKind::word || (text(next) != "," && text(next) != ";"))
        fail(at, "expected a shared variable without a value: shared memory cannot be initialised");
      const std::string sizes = between(at + 1, next);
      if (is_extern)
        made +=
            "auto* const " + name + " = ::ladder_emulator::dynamic_shared<" + type + ">(\"" + name + "\"); ";
      else
        made += "static ::ladder_emulator::Shared<::ladder_emulator::Same<" + type + ">" + sizes +
                "> ladder_" + name + "; auto& " + name + " = ladder_" + name + ".of_this_block(\"" + name +
                "\"); ";
      at = text(next) == "," ? next + 1 : next;
    }
    const std::string_view original =
        source_.substr(tokens_[begin].begin, end_of(end) - tokens_[begin].begin);
    for (const char c : original)
      if (c == '\n') made += '\n';
    edits_[tokens_[begin].begin] = {end_of(end), made};
  }

  std::string_view source_;
  std::vector<Token> tokens_;
  std::map<size_t, Edit> edits_;  // by where they begin
};

}  // namespace

std::string emulated_source(std::string_view source, const std::string& path) {
  try {
    return "#line 1 \"" + path + "\"\n" + Translation(source).run();
  } catch (const LabError& error) {
    throw LabError(path + ": " + error.what());
  }
}

}  // namespace lab
