#include "lab/bug.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <regex>

#include "lab/files.h"
#include "lab/lab_error.h"
#include "lab/rules.h"
#include "lab/tokens.h"

namespace lab {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

Bug read_bug(const json& from) {
  Bug bug;
  from.at("id").get_to(bug.id);
  from.at("task").get_to(bug.task);
  from.at("title").get_to(bug.title);
  from.at("report").get_to(bug.report);
  from.at("file").get_to(bug.file);
  from.at("find").get_to(bug.find);
  from.at("replace").get_to(bug.replace);
  from.at("source").get_to(bug.source);
  from.at("target").get_to(bug.target);
  from.at("includes").get_to(bug.includes);
  from.at("hours").get_to(bug.hours);
  return bug;
}

// Of the standard library: values, containers, algorithms. None that opens files, starts threads or reads a clock.
constexpr std::array kStandard = {"algorithm",
                                  "array",
                                  "bit",
                                  "bitset",
                                  "cmath",
                                  "concepts",
                                  "cstddef",
                                  "cstdint",
                                  "cstring",
                                  "deque",
                                  "format",
                                  "functional",
                                  "initializer_list",
                                  "iomanip",
                                  "iterator",
                                  "limits",
                                  "list",
                                  "map",
                                  "memory",
                                  "numbers",
                                  "numeric",
                                  "optional",
                                  "ostream",
                                  "queue",
                                  "random",
                                  "ranges",
                                  "ratio",
                                  "set",
                                  "span",
                                  "sstream",
                                  "stack",
                                  "stdexcept",
                                  "string",
                                  "string_view",
                                  "tuple",
                                  "type_traits",
                                  "unordered_map",
                                  "unordered_set",
                                  "utility",
                                  "variant",
                                  "vector",
                                  "gtest/gtest.h",
                                  "gmock/gmock.h"};

bool may_include(const std::string& line) {
  static const std::regex kForm(R"re(#[ \t]*include[ \t]*(?:<([^>]*)>|"([^"]*)")[ \t\r]*(?://.*)?)re");
  std::smatch match;
  if (!std::regex_match(line, match, kForm)) return false;
  if (match[1].matched) return std::ranges::find(kStandard, match[1].str()) != kStandard.end();
  static const std::regex kOurs(R"re((step[1-8]_[a-z]+|tests)/[a-z0-9_/]*\.h)re");
  return std::regex_match(match[2].str(), kOurs);
}

}  // namespace

std::string Bug::name() const {
  std::string name = id;
  for (char& c : name)
    if (c == '.' || c == '#') c = '_';
  return name;
}

std::string Bug::test_path() const {
  return "tests/bugs/" + name() + "_test.cpp";
}

std::vector<Bug> read_bugs(const fs::path& root) {
  for (const fs::path& path : {root / "lab" / "bugs.json", root / ".lab" / "bugs.json"}) {
    if (!fs::exists(path)) continue;
    try {
      std::vector<Bug> bugs;
      for (const json& from : json::parse(read_file(path))) bugs.push_back(read_bug(from));
      return bugs;
    } catch (const json::exception& error) {
      throw LabError(path.string() + ": " + error.what());
    }
  }
  return {};
}

Bug find_bug(const fs::path& root, const std::string& id) {
  const std::vector<Bug> bugs = read_bugs(root);
  const auto found = std::ranges::find(bugs, id, &Bug::id);
  if (found != bugs.end()) return *found;
  std::string known;
  for (const Bug& bug : bugs) known += (known.empty() ? "" : ", ") + bug.id;
  throw LabError("no bug '" + id + "': " +
                 (known.empty() ? "the bugs of a lab come with ./ladder lab unlock" : "there are " + known));
}

std::string bug_template(const Bug& bug) {
  std::string text =
      "// Bug " + bug.id + ": " + bug.title + ".\n" +
      "// A test that fails where this happens and passes where it does not: ./ladder lab test " + bug.id +
      "\n#include <gtest/gtest.h>\n";
  for (const std::string& header : bug.includes) text += "\n#include \"" + header + "\"";
  return text + "\n\nnamespace ladder {\nnamespace {\n\nTEST(Bug" + bug.name() +
         ", SaysWhatShouldHaveHappened) {\n}\n\n}  // namespace\n}  // namespace ladder\n";
}

void prepare_bug(const Tree& tree, const Bug& bug) {
  const std::string reference = tree.reference_file(bug.file);
  const size_t at = reference.find(bug.find);
  if (at == std::string::npos || reference.find(bug.find, at + 1) != std::string::npos)
    throw LabError(bug.file + " is not the release's where bug " + bug.id + " belongs: git diff " + bug.file);
  std::string defect = reference;
  defect.replace(at, bug.find.size(), bug.replace);
  const std::string library = "ladder_" + bug.target.substr(bug.target.find('_') + 1);
  const fs::path folder = tree.root() / ".lab" / "bugs" / bug.name() / library;
  const std::string line = "#line 1 \"" + (tree.root() / bug.file).string() + "\"\n";
  write_if_changed(folder / "reference" / bug.file, line + reference);
  write_if_changed(folder / "defect" / bug.file, line + defect);
}

std::string refused_bug_test(const std::string& text) {
  for (const Token& token : tokenize(text))
    if (token.kind == TokenKind::directive && !may_include(std::string(token.text)))
      return "line " + std::to_string(line_of(text, token.begin)) + ": `" +
             std::string(token.text.substr(0, token.text.find('\n'))) +
             "` has no place in such a test: it includes headers of steps, of tests, GoogleTest and standard "
             "containers, nothing else";
  std::string code;  // the rules know no #include
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size() - 1) + 1;
    const std::string line = text.substr(at, end - at);
    code += line.substr(std::min(line.find_first_not_of(" \t"), line.size())).starts_with('#') ? "\n" : line;
    at = end;
  }
  const std::vector<std::string> forbidden = forbidden_in(code, {"tests"});
  return forbidden.empty() ? "" : forbidden.front();
}

}  // namespace lab
