#include "lab/rules.h"

#include <algorithm>
#include <array>
#include <map>

#include "lab/lab_error.h"
#include "lab/tokens.h"

namespace lab {
namespace {

constexpr size_t kMaxBytes = 256 * 1024;

// Refused wherever the word stands for something that is not a member: what it is, and what labs.json may allow.
struct Kind {
  std::string_view what, allows;
  std::vector<std::string_view> words;
};

const std::vector<Kind>& kinds() {
  static const std::vector<Kind> all = {
      {"assembly", "asm", {"asm", "__asm", "__asm__"}},
      {"declarations of what stands elsewhere", "extern", {"extern", "__extension__"}},
      {"the system", "", {"system",      "popen",        "fork",     "vfork",   "clone",     "execl",
                          "execle",      "execlp",       "execv",    "execve",  "execvp",    "execvpe",
                          "posix_spawn", "posix_spawnp", "syscall",  "ptrace",  "mmap",      "munmap",
                          "mprotect",    "dlopen",       "dlsym",    "dlclose", "sigaction", "raise",
                          "sbrk",        "prctl",        "setrlimit"}},
      {"the environment",
       "",
       {"getenv", "secure_getenv", "setenv", "putenv", "unsetenv", "environ", "__environ"}},
      {"the end of the process",
       "",
       {"exit", "_exit", "_Exit", "quick_exit", "at_quick_exit", "atexit", "on_exit", "terminate",
        "set_terminate", "longjmp", "siglongjmp", "setjmp", "sigsetjmp"}},
      {"files", "files", {"fopen",          "fopen64",       "freopen",       "fdopen",
                          "tmpfile",        "fstream",       "ifstream",      "ofstream",
                          "wfstream",       "wifstream",     "wofstream",     "filebuf",
                          "wfilebuf",       "basic_filebuf", "basic_fstream", "basic_ifstream",
                          "basic_ofstream", "filesystem",    "openat",        "creat",
                          "opendir",        "FILE"}},
      {"sockets", "", {"socket", "socketpair", "getaddrinfo", "sendto", "recvfrom"}},
      {"threads", "threads", {"jthread", "pthread_create", "thrd_create", "packaged_task", "this_thread"}},
      {"addresses made of other things", "casts", {"reinterpret_cast", "bit_cast", "start_lifetime_as"}},
      {"the test framework", "tests", {"testing", "RUN_ALL_TESTS", "main"}},
      {"the emulator", "", {"ladder_emulator"}},
      {"macros of the compiler",
       "builtins",
       {"_Pragma", "__pragma", "__attribute__", "__attribute", "__declspec"}},
  };
  return all;
}

// Only of std, or of the global namespace: by themselves these words are good names.
const std::map<std::string_view, std::pair<std::string_view, std::string_view>>& qualified() {
  static const std::map<std::string_view, std::pair<std::string_view, std::string_view>> all = {
      {"thread", {"threads", "threads"}},
      {"async", {"threads", "threads"}},
      {"abort", {"the end of the process", ""}},
      {"remove", {"files", "files"}},
      {"rename", {"files", "files"}},
      {"signal", {"the system", ""}}};
  return all;
}

constexpr std::array<std::string_view, 7> kGlobalCalls = {"open",   "read", "write",  "close",
                                                          "unlink", "kill", "connect"};
constexpr std::array<std::string_view, 7> kAttributes = {
    "maybe_unused", "nodiscard", "likely", "unlikely", "fallthrough", "noreturn", "no_unique_address"};
constexpr std::array<std::string_view, 7> kTestMacros = {"GTEST_",      "TEST_",        "EXPECT_",  "ASSERT_",
                                                         "LADDER_LAB_", "LADDER_TEST_", "RUNG_TEST"};
// Of CUDA C++, of vector registers, and of the language: not the compiler's own functions.
constexpr std::array<std::string_view, 24> kReserved = {
    "__global__",        "__device__",      "__host__",         "__shared__",     "__constant__",
    "__launch_bounds__", "__align__",       "__restrict__",     "__syncthreads",  "__syncwarp",
    "__shfl_sync",       "__shfl_xor_sync", "__shfl_down_sync", "__shfl_up_sync", "__any_sync",
    "__all_sync",        "__ballot_sync",   "__activemask",     "__ffs",          "__popc",
    "__threadfence",     "__func__",        "__forceinline__",  "__nv_bfloat16"};
// The same, all that begin so: `__half2float`, `__reduce_add_sync`.
constexpr std::array<std::string_view, 23> kReservedBegins = {
    "__m128",         "__m256",     "__m512",     "__nv_",    "__half",    "__syncthreads_",
    "__threadfence_", "__reduce_",  "__match_",   "__ldc",    "__ldg",     "__stc",
    "__bfloat162",    "__float2",   "__float_as", "__int_as", "__uint_as", "__expf",
    "__logf",         "__fdividef", "__frcp_rn",  "__clz",    "__umulhi"};
// Pure functions of their arguments.
constexpr std::array<std::string_view, 9> kBuiltins = {
    "__builtin_sqrtf",    "__builtin_sqrt",         "__builtin_fmaf",
    "__builtin_prefetch", "__builtin_mul_overflow", "__builtin_add_overflow",
    "__builtin_expect",   "__builtin_unreachable",  "__builtin_fma"};

bool is_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const auto lead = static_cast<unsigned char>(text[i]);
    const size_t more = lead < 0x80 ? 0 : lead >= 0xf0 ? 3 : lead >= 0xe0 ? 2 : 1;
    if ((lead >= 0x80 && lead < 0xc2) || lead > 0xf4 || i + more >= text.size() + (more == 0)) return false;
    for (size_t k = 1; k <= more; ++k)
      if ((static_cast<unsigned char>(text[i + k]) & 0xc0) != 0x80) return false;
    i += more + 1;
  }
  return true;
}

class Check {
 public:
  Check(std::string_view region, const std::vector<std::string>& allows) : region_(region), allows_(allows) {}

  std::vector<std::string> run() {
    if (region_.size() > kMaxBytes)
      return {std::to_string(region_.size()) + " bytes: a region has at most " + std::to_string(kMaxBytes)};
    if (const size_t at = region_.find('\0'); at != std::string_view::npos) return {line(at) + "a NUL byte"};
    if (!is_utf8(region_)) return {"it is not valid UTF-8"};
    lines();
    if (!found_.empty()) return found_;
    try {
      tokens_ = tokenize(region_);
    } catch (const LabError& error) {
      return {error.what()};
    }
    brackets();
    for (size_t i = 0; i < tokens_.size(); ++i) token(i);
    return std::move(found_);
  }

 private:
  bool allowed(std::string_view what) const {
    return !what.empty() && std::ranges::find(allows_, what) != allows_.end();
  }
  std::string line(size_t offset) const { return "line " + std::to_string(line_of(region_, offset)) + ": "; }
  void refuse(size_t i, const std::string& what, std::string_view allows = "") {
    if (allowed(allows)) return;
    const std::string_view text = tokens_[i].text.substr(0, 40);
    found_.push_back(line(tokens_[i].begin) + "`" + std::string(text.substr(0, text.find('\n'))) +
                     "`: " + what + " may not stand in a region");
  }
  std::string_view text(size_t i) const { return i < tokens_.size() ? tokens_[i].text : std::string_view(); }
  bool adjacent(size_t i) const {
    return i + 1 < tokens_.size() && tokens_[i].begin + tokens_[i].text.size() == tokens_[i + 1].begin;
  }

  // What would change the meaning of lines outside, or of the lines as they are read here.
  void lines() {
    for (size_t at = 0; at < region_.size();) {
      const size_t end = std::min(region_.find('\n', at), region_.size());
      std::string_view one = region_.substr(at, end - at);
      if (one.starts_with("<<<<<<<") || one.starts_with(">>>>>>>") || one.starts_with("=======") ||
          one.starts_with("|||||||"))
        found_.push_back(line(at) + "a merge conflict that is not resolved");
      while (!one.empty() && (one.back() == ' ' || one.back() == '\t' || one.back() == '\r' ||
                              one.back() == '\f' || one.back() == '\v'))
        one.remove_suffix(1);
      if (one.ends_with('\\') || one.ends_with("?"
                                               "?/"))
        found_.push_back(line(at) + "a line that a backslash continues may not stand in a region");
      const size_t first = one.find_first_not_of(" \t");
      const std::string_view trimmed = first == std::string_view::npos ? "" : one.substr(first);
      if (trimmed.starts_with("// >>> task") || trimmed.starts_with("// <<< task"))
        found_.push_back(line(at) + "the marker of a region may not stand in a region");
      at = end + 1;
    }
    // A carriage return ends a line for no compiler here, but some read it so.
    for (size_t i = 0; i < region_.size(); ++i)
      if (region_[i] == '\r' && (i + 1 == region_.size() || region_[i + 1] != '\n')) {
        found_.push_back(line(i) + "a carriage return without a line end");
        return;
      }
  }

  // Whole definitions: what opens closes, in the region itself.
  void brackets() {
    std::vector<size_t> open;
    for (size_t i = 0; i < tokens_.size(); ++i) {
      if (tokens_[i].kind != TokenKind::symbol) continue;
      const std::string_view t = text(i);
      if (t == "(" || t == "[" || t == "{") open.push_back(i);
      if (t != ")" && t != "]" && t != "}") continue;
      const std::string_view expected = t == ")" ? "(" : t == "]" ? "[" : "{";
      if (open.empty() || text(open.back()) != expected) {
        found_.push_back(line(tokens_[i].begin) + "a `" + std::string(t) +
                         "` without its other half: it would close what stands around the region");
        return;
      }
      open.pop_back();
    }
    if (!open.empty())
      found_.push_back(line(tokens_[open.back()].begin) + "a `" + std::string(text(open.back())) +
                       "` without its other half");
  }

  void token(size_t i) {
    const std::string_view t = text(i);
    if (tokens_[i].kind == TokenKind::directive) return directive(i);
    if (tokens_[i].kind == TokenKind::text) {
      if (const size_t quote = t.find_first_of("\"'"); quote > 0 && t[quote - 1] == 'R')
        refuse(i, "a raw string");
      return;
    }
    if (tokens_[i].kind == TokenKind::symbol) return symbol(i);
    if (tokens_[i].kind == TokenKind::word) word(i);
  }

  void directive(size_t i) {
    std::string_view rest = text(i).substr(1);
    const auto next_word = [&] {
      const size_t begin = std::min(rest.find_first_not_of(" \t"), rest.size());
      const size_t end = std::min(rest.find_first_of(" \t(", begin), rest.size());
      const std::string_view word = rest.substr(begin, end - begin);
      rest.remove_prefix(end);
      return word;
    };
    if (next_word() == "pragma") {
      std::string_view which = next_word();
      if (which == "GCC") which = next_word() == "unroll" ? "unroll" : "";
      if (which == "omp" || which == "unroll") {  // their clauses hold expressions
        for (const std::string& found : Check(rest, allows_).run())
          found_.push_back(line(tokens_[i].begin) + found.substr(found.find(": ") + 2));
        return;
      }
    }
    refuse(i, "a line of the preprocessor, other than #pragma omp and #pragma (GCC) unroll,");
  }

  void symbol(size_t i) {
    const std::string_view t = text(i);
    if (t == "\\" || t == "@" || t == "`" || static_cast<unsigned char>(t[0]) >= 0x80)
      refuse(i, "this character");
    if (t == "#") refuse(i, "a line of the preprocessor");
    const std::string_view next = adjacent(i) ? text(i + 1) : std::string_view();
    const bool digraph = (t == "%" && (next == ":" || next == "::" || next == ">")) ||
                         (t == "<" && (next == "%" || next == "%=" || next == ":")) ||
                         (t == ":" && next == ">") || (t == "::" && next == ">") || (t == "?" && next == "?");
    if (digraph)
      refuse(i,
             "another spelling of a symbol (<% %> <: :> %: ?"
             "?)");
    if (t == "[" && text(i + 1) == "[" && adjacent(i)) attribute(i);
    // (T*) x and (T*)(x): a pointer made of something else.
    if ((t == "*" || t == "&") && text(i + 1) == ")" && i + 2 < tokens_.size()) {
      const Token& after = tokens_[i + 2];
      const bool value = after.kind == TokenKind::number || after.kind == TokenKind::text ||
                         (after.kind == TokenKind::word && !is_qualifier(after.text)) || after.text == "&" ||
                         (after.text == "(" && closes_cast(i + 1));
      if (value) refuse(i, "a cast to a pointer", "casts");
    }
  }

  static bool is_qualifier(std::string_view word) {
    return word == "const" || word == "noexcept" || word == "override" || word == "final" ||
           word == "requires" || word == "volatile" || word == "mutable" || word == "and" || word == "or";
  }

  // Whether the parenthesis that closes at `close` is one of a cast: nothing that could be called stands before it.
  bool closes_cast(size_t close) const {
    int depth = 0;
    for (size_t i = close;; --i) {
      if (text(i) == ")") ++depth;
      if (text(i) == "(" && --depth == 0) {
        if (i == 0) return true;
        const Token& before = tokens_[i - 1];
        return !(before.kind == TokenKind::word && before.text != "return") && before.text != ">" &&
               before.text != ")" && before.text != "]";
      }
      if (i == 0) return false;
    }
  }

  void attribute(size_t i) {
    int depth = 0;
    for (size_t k = i + 2; k < tokens_.size() && text(k) != "]"; ++k) {
      if (text(k) == "(") ++depth;
      if (text(k) == ")") --depth;
      if (depth == 0 && tokens_[k].kind == TokenKind::word &&
          std::ranges::find(kAttributes, text(k)) == kAttributes.end())
        return refuse(
            k, "an attribute other than maybe_unused, nodiscard, likely, unlikely, fallthrough, noreturn",
            "builtins");
    }
  }

  // A member of ours, of which `.`, `->` or the name of a class other than std stands before.
  bool is_member(size_t i) const {
    if (i == 0) return false;
    const std::string_view before = text(i - 1);
    if (before == "." || before == "->") return true;
    return before == "::" && i >= 2 && tokens_[i - 2].kind == TokenKind::word && text(i - 2) != "std";
  }

  void word(size_t i) {
    const std::string_view t = text(i);
    if (t == "using" && text(i + 1) == "namespace") return refuse(i, "using namespace", "tests");
    if (t == "namespace" && text(i + 1) != "{" && (i == 0 || text(i - 1) != "using"))
      return refuse(i, "a namespace with a name", "tests");
    if (t == "operator" && (text(i + 1) == "new" || text(i + 1) == "delete"))
      return refuse(i, "operator new or delete");
    for (const Kind& kind : kinds())
      if (std::ranges::find(kind.words, t) != kind.words.end() && !is_member(i))
        return refuse(i, std::string(kind.what), kind.allows);
    const std::string_view before = i > 0 ? text(i - 1) : std::string_view();
    const bool global =
        before == "::" && (i < 2 || (tokens_[i - 2].kind != TokenKind::word && text(i - 2) != ">") ||
                           text(i - 2) == "return" || text(i - 2) == "else");
    const bool of_std = before == "::" && i >= 2 && text(i - 2) == "std";
    if (const auto found = qualified().find(t); found != qualified().end() && (global || of_std)) {
      // std::remove(begin, end, value) is an algorithm.
      if (t == "remove" && of_std) return;
      return refuse(i, std::string(found->second.first), found->second.second);
    }
    if (global && std::ranges::find(kGlobalCalls, t) != kGlobalCalls.end())
      return refuse(i, "files and sockets", "files");
    for (const std::string_view begin : kTestMacros)
      if (t.starts_with(begin)) return refuse(i, "the test framework", "tests");
    if (t.find('\\') != std::string_view::npos) return refuse(i, "this character");
    if (t.starts_with("__") && std::ranges::find(kReserved, t) == kReserved.end() &&
        std::ranges::find(kBuiltins, t) == kBuiltins.end() &&
        std::ranges::none_of(kReservedBegins, [&](std::string_view begin) { return t.starts_with(begin); }) &&
        !is_member(i) && !allowed("asm"))
      return refuse(i, "a name of the compiler's own", "builtins");
  }

  std::string_view region_;
  const std::vector<std::string>& allows_;
  std::vector<Token> tokens_;
  std::vector<std::string> found_;
};

}  // namespace

std::vector<std::string> forbidden_in(std::string_view region, const std::vector<std::string>& allows,
                                      int first_line) {
  const std::string in_file = std::string(first_line - 1, '\n') + std::string(region);
  return Check(in_file, allows).run();
}

}  // namespace lab
