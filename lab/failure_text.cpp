#include "lab/failure_text.h"

#include <algorithm>
#include <sstream>
#include <vector>

namespace lab {
namespace {

constexpr const char* kEquality = "Expected equality of these values:";
constexpr const char* kWhich = "    Which is: ";

constexpr const char* kThrown = "C++ exception with description \"";

// The value at lines[at] ("  expression", and perhaps "    Which is: value"); moves on behind it.
std::string value(const std::vector<std::string>& lines, size_t& at) {
  const std::string expression = lines[at++].substr(2);
  if (at >= lines.size() || !lines[at].starts_with(kWhich)) return expression;
  return lines[at++].substr(std::string(kWhich).size()) + "   (" + expression + ")";
}

}  // namespace

std::string failure_text(const std::string& message, const std::string& root, int max_lines) {
  std::vector<std::string> lines, out;
  std::istringstream in(message);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  bool thrown = false;
  for (size_t i = 0; i < lines.size();) {
    const bool equality = lines[i] == kEquality && i + 2 < lines.size() && lines[i + 1].starts_with("  ");
    if (!equality) {
      std::string line = lines[i++];
      if (line == "unknown file") continue;  // of an exception
      if (line.starts_with(kThrown)) {       // of one line or several
        line = "threw: " + line.substr(std::string(kThrown).size());
        thrown = true;
      }
      if (const size_t end = line.rfind("\" thrown in "); thrown && end != std::string::npos) {
        line.erase(end);
        thrown = false;
      }
      if (const size_t at = line.find(root + "/"); !root.empty() && at != std::string::npos)
        line.erase(at, root.size() + 1);
      while (line.starts_with("../")) line.erase(0, 3);  // as ninja calls the compiler
      out.push_back(line);
      continue;
    }
    ++i;
    out.push_back("  seen      " + value(lines, i));
    if (i < lines.size() && lines[i].starts_with("  ")) out.push_back("  expected  " + value(lines, i));
  }
  if (static_cast<int>(out.size()) > max_lines) {
    out.resize(max_lines);
    out.push_back("  ...");
  }
  std::string text;
  for (const std::string& line : out) text += (text.empty() ? "" : "\n") + line;
  return text;
}

}  // namespace lab
