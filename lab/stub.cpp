#include "lab/stub.h"

#include <algorithm>

#include "lab/functions.h"
#include "lab/lab_error.h"
#include "lab/tokens.h"

namespace lab {
namespace {

std::string indent_of_line(std::string_view text, size_t offset) {
  const size_t begin = text.rfind('\n', offset) == std::string_view::npos ? 0 : text.rfind('\n', offset) + 1;
  return std::string(text.substr(begin, text.find_first_not_of(" \t", begin) - begin));
}

constexpr std::string_view kRungNote =
    "// Delete the line of a rung when it is written: until then the rung is left out of the choice.\n";

}  // namespace

std::string make_stub(std::string_view region, std::string_view task, const std::vector<Rung>& rungs) {
  std::vector<Function> functions = find_functions(region);
  if (functions.empty()) throw LabError("the region of task " + std::string(task) + " defines no function");
  std::string stub(region);
  std::ranges::reverse(functions);
  for (const Function& function : functions) {
    const std::string indent = indent_of_line(region, function.close);
    std::string body = "throw ladder::TaskNotImplemented(\"" + std::string(task) + "\");";
    if (function.on_gpu) body = function.returns_value ? "return {};" : "";
    const bool destructor = function.name.find('~') != std::string::npos;  // it must not throw
    body = body.empty() || destructor ? "{}" : "{\n" + indent + "  " + body + "\n" + indent + "}";
    stub.replace(function.open, function.close + 1 - function.open, body);
  }
  std::string lines;
  for (const Rung& rung : rungs)
    for (const std::string& name : rung.names) {
      const std::string line = "LADDER_UNWRITTEN(\"" + rung.op + "\", \"" + name + "\")\n";
      if (stub.find(line) == std::string::npos) lines += line;
    }
  if (!lines.empty() && stub.find(kRungNote) == std::string::npos)
    lines = "\n" + std::string(kRungNote) + lines;
  return stub + lines;
}

bool is_stub(std::string_view region, std::string_view task, const std::vector<Rung>& rungs) {
  try {
    return make_stub(region, task, rungs) == region;
  } catch (const LabError&) {  // a student's text need not be one that a stub can be made of
    return false;
  }
}

bool is_unfinished(std::string_view region) {
  try {
    return std::ranges::any_of(tokenize(region), [](const Token& token) {
      return token.text == "TaskNotImplemented" || token.text == "LADDER_UNWRITTEN";
    });
  } catch (const LabError&) {
    return true;
  }
}

std::string make_traced(std::string_view region, std::string_view task) {
  std::vector<Function> functions = find_functions(region);
  std::ranges::reverse(functions);
  std::string traced(region);
  for (const Function& function : functions)
    if (!function.on_gpu)
      traced.insert(function.open + 1,
                    " LADDER_LAB_RAN(\"" + std::string(task) + "\", \"" + function.name + "\")");
  return traced;
}

}  // namespace lab
