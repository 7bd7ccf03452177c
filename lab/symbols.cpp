#include <algorithm>
#include <array>
#include <sstream>

#include "lab/lab_error.h"
#include "lab/process.h"
#include "lab/rules.h"

namespace lab {
namespace {

// Of the C library and the compiler's run-time library: no file, no process, no thread, no clock.
constexpr std::array<std::string_view, 98> kHarmless = {"memcpy",
                                                        "memmove",
                                                        "memset",
                                                        "memcmp",
                                                        "memchr",
                                                        "strlen",
                                                        "strcmp",
                                                        "strncmp",
                                                        "strchr",
                                                        "strtol",
                                                        "strtoll",
                                                        "strtoull",
                                                        "strtod",
                                                        "strtof",
                                                        "malloc",
                                                        "free",
                                                        "calloc",
                                                        "realloc",
                                                        "aligned_alloc",
                                                        "bcmp",
                                                        "__memcpy_chk",
                                                        "__memmove_chk",
                                                        "__memset_chk",
                                                        "__stack_chk_fail",
                                                        "__assert_fail",
                                                        "__errno_location",
                                                        "__gxx_personality_v0",
                                                        "_Unwind_Resume",
                                                        "__dso_handle",
                                                        "_GLOBAL_OFFSET_TABLE_",
                                                        "__tls_get_addr",
                                                        "__libc_single_threaded",
                                                        "__dynamic_cast",
                                                        "__cpu_model",
                                                        "qsort",
                                                        "bsearch",
                                                        "printf",
                                                        "fprintf",
                                                        "puts",
                                                        "putchar",
                                                        "fputs",
                                                        "fputc",
                                                        "fwrite",
                                                        "fflush",
                                                        "stdout",
                                                        "stderr",
                                                        "snprintf",
                                                        "__printf_chk",
                                                        "__fprintf_chk",
                                                        "__snprintf_chk",
                                                        "abs",
                                                        "labs",
                                                        "llabs",
                                                        "__popcountdi2",
                                                        "__mulodi4",
                                                        "__powidf2",
                                                        "__powisf2",
                                                        "__cpu_indicator_init",
                                                        "__cpu_features2",
                                                        "toupper",
                                                        "tolower",
                                                        "isalpha",
                                                        "__divti3",
                                                        "strtold",
                                                        "strtoul",
                                                        "strstr",
                                                        "strrchr",
                                                        "strcpy",
                                                        "strncpy",
                                                        "strspn",
                                                        "strcspn",
                                                        "vsnprintf",
                                                        "__vsnprintf_chk",
                                                        "sprintf",
                                                        "__sprintf_chk",
                                                        "__strcpy_chk",
                                                        "__strncpy_chk",
                                                        "isalnum",
                                                        "isdigit",
                                                        "isxdigit",
                                                        "isspace",
                                                        "isblank",
                                                        "isupper",
                                                        "islower",
                                                        "ispunct",
                                                        "isprint",
                                                        "iscntrl",
                                                        "isgraph",
                                                        "__muldc3",
                                                        "__mulsc3",
                                                        "__divdc3",
                                                        "__divsc3",
                                                        "__truncsfhf2",
                                                        "__truncdfhf2",
                                                        "__extendhfsf2",
                                                        "__extendhfdf2",
                                                        "__truncsfbf2",
                                                        "__extendbfsf2"};
constexpr std::array<std::string_view, 54> kMath = {
    "sin",   "cos",    "tan",    "asin",    "acos",      "atan",      "atan2",  "sinh",   "cosh",
    "tanh",  "exp",    "exp2",   "expm1",   "log",       "log2",      "log10",  "log1p",  "pow",
    "sqrt",  "cbrt",   "hypot",  "erf",     "erfc",      "tgamma",    "lgamma", "ceil",   "floor",
    "trunc", "round",  "lround", "llround", "rint",      "nearbyint", "lrint",  "fmod",   "remainder",
    "fma",   "fmax",   "fmin",   "sincos",  "asinh",     "acosh",     "atanh",  "ldexp",  "frexp",
    "modf",  "scalbn", "ilogb",  "logb",    "nextafter", "llrint",    "fdim",   "remquo", "roundeven"};
// Prefixes of mangled names: the standard library, C++'s run-time library, fmt, the sanitizers, the emulator (whose own name
// rules.cpp refuses: only CUDA's built-in functions call it).
constexpr std::array<std::string_view, 31> kLibraries = {"_ZNSt",
                                                         "_ZNKSt",
                                                         "_ZSt",
                                                         "_ZTVSt",
                                                         "_ZTISt",
                                                         "_ZTSSt",
                                                         "_ZTTSt",
                                                         "_ZTVNSt",
                                                         "_ZTINSt",
                                                         "_ZTSNSt",
                                                         "_ZTTNSt",
                                                         "_ZNSi",
                                                         "_ZNKSi",
                                                         "_ZNSo",
                                                         "_ZNKSo",
                                                         "_ZNSd",
                                                         "_ZNKSd",
                                                         "_ZTVN10__cxxabiv1",
                                                         "_ZTIN10__cxxabiv1",
                                                         "_Zn",
                                                         "_Zd",
                                                         "__cxa_",
                                                         "_ZN3fmt",
                                                         "_ZNK3fmt",
                                                         "_ZTIN3fmt",
                                                         "_ZTVN3fmt",
                                                         "__asan_",
                                                         "__ubsan_",
                                                         "_ZNVSt",
                                                         "__tsan_",  // the emulated device's: for each access
                                                         "_ZN15ladder_emulator"};
// And of these what reaches outside the process or is a thread.
constexpr std::array<std::string_view, 18> kOutside = {
    "St6thread",     "10filesystem",  "basic_filebuf", "basic_ifstream", "basic_ofstream",
    "basic_fstream", "filebuf",       "buffered_file", "4file",          "St13__future",
    "_Async_state",  "__future_base", "_Prime_future", "St8thread",      "condition_variable",
    "_V28terminate", "set_terminate", "__cxa_demangle"};

bool starts_with_any(std::string_view name, auto& prefixes) {
  return std::ranges::any_of(prefixes, [&](std::string_view prefix) { return name.starts_with(prefix); });
}

bool is_math(std::string_view name) {
  if (std::ranges::find(kMath, name) != kMath.end()) return true;
  if (!name.ends_with('f') && !name.ends_with('l')) return false;
  return std::ranges::find(kMath, name.substr(0, name.size() - 1)) != kMath.end();
}

// What is thrown or caught of C++'s own types, such as `int` and `const char*`: _ZTIi, _ZTIPKc.
bool is_type_of_the_language(std::string_view name) {
  if (!name.starts_with("_ZTI") && !name.starts_with("_ZTS")) return false;
  name.remove_prefix(4);
  for (const char qualifier : {'P', 'K'})
    if (name.starts_with(qualifier)) name.remove_prefix(1);
  return name.size() == 1 && name[0] >= 'a' && name[0] <= 'z';
}

bool is_harmless(std::string_view name) {
  if (name.starts_with("__isoc23_"))
    name.remove_prefix(9);  // strtol() and the like, as newer C libraries name them
  if (is_type_of_the_language(name)) return true;
  if (std::ranges::find(kHarmless, name) != kHarmless.end() || is_math(name)) return true;
  if (!starts_with_any(name, kLibraries)) return false;
  return std::ranges::none_of(
      kOutside, [&](std::string_view part) { return name.find(part) != std::string_view::npos; });
}

// ladder:: in a mangled name.
bool is_ours(std::string_view name) {
  return name.starts_with("_Z") && name.find("6ladder") != std::string_view::npos;
}

std::string readable(const std::string& name) {
  const Outcome shown = run({"c++filt", name});
  return shown.ok() ? shown.output.substr(0, shown.output.find('\n')) : name;
}

}  // namespace

Symbols symbols_of(const std::filesystem::path& object) {
  const Outcome listed = run({"nm", "--format=posix", object.string()});
  if (!listed.ok()) throw LabError("nm cannot read " + object.string());
  Symbols symbols;
  std::istringstream lines(listed.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name, type;
    if (!(words >> name >> type) || type.size() != 1) continue;
    name = name.substr(0, name.find('@'));
    const char t = type[0];
    if (t == 'U' || t == 'w' || t == 'v')
      symbols.undefined.insert(name);
    else if (t == 'W' || t == 'V')
      symbols.weak.insert(name);
    else if (t == 'u' || t == 'i' || (t >= 'A' && t <= 'Z'))
      symbols.strong.insert(name);
  }
  return symbols;
}

SymbolFindings compare_symbols(const Symbols& object, const Symbols& reference,
                               const std::set<std::string>& elsewhere) {
  SymbolFindings findings;
  for (const std::string& name : object.undefined) {
    if (reference.undefined.contains(name) || reference.strong.contains(name) ||
        reference.weak.contains(name))
      continue;
    if (is_harmless(name)) continue;
    if (is_ours(name))
      findings.unusual.push_back("calls " + readable(name) + ", which the reference does not");
    else
      findings.forbidden.push_back("calls `" + readable(name) + "`, which a region may not");
  }
  for (const std::string& name : object.strong) {
    if (reference.strong.contains(name) || reference.weak.contains(name)) continue;
    if (elsewhere.contains(name))
      findings.forbidden.push_back("defines `" + readable(name) + "`, which stands elsewhere");
    else if (!is_ours(name) && !name.starts_with("_ZSt") && !name.starts_with("_ZNSt") &&
             !name.starts_with("_ZZ") && !name.starts_with("_ZGV") && !name.starts_with("DW.ref"))
      findings.forbidden.push_back("defines `" + readable(name) + "` outside namespace ladder");
  }
  return findings;
}

}  // namespace lab
