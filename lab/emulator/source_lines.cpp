#include "lab/emulator/source_lines.h"

#include <link.h>
#include <stdio.h>
#include <unistd.h>

#include <map>
#include <sstream>

namespace ladder_emulator {

namespace {

uintptr_t load_address() {
  static const uintptr_t base = [] {
    uintptr_t found = 0;
    ::dl_iterate_phdr(
        [](dl_phdr_info* info, size_t, void* result) {
          *static_cast<uintptr_t*>(result) = info->dlpi_addr;
          return 1;  // the program itself comes first
        },
        &found);
    return found;
  }();
  return base;
}

// Pairs of lines, the innermost first: function, file:line.
std::string addr2line(uintptr_t address) {
  char program[4096];
  const ssize_t length = ::readlink("/proc/self/exe", program, sizeof(program) - 1);
  if (length <= 0) return "";
  program[length] = '\0';
  char command[4400];
  snprintf(command, sizeof(command), "addr2line -C -f -i -e '%s' 0x%llx 2>/dev/null", program,
           static_cast<unsigned long long>(address));
  FILE* pipe = ::popen(command, "r");
  if (pipe == nullptr) return "";
  std::string text;
  char part[1024];
  for (size_t n; (n = fread(part, 1, sizeof(part), pipe)) > 0;) text.append(part, n);
  ::pclose(pipe);
  return text;
}

SourceLine parse(const std::string& text) {
  SourceLine line;
  const size_t colon = text.rfind(':');
  if (colon == std::string::npos) return line;
  line.file = text.substr(0, colon);
  line.line = atoi(text.c_str() + colon + 1);
  if (line.file.starts_with(LADDER_SOURCE_DIR "/")) line.file = line.file.substr(sizeof(LADDER_SOURCE_DIR));
  return line;
}

}  // namespace

uint32_t place_of(const void* return_address) {
  return static_cast<uint32_t>(reinterpret_cast<uintptr_t>(return_address) - load_address());
}

SourceLine source_line_at(uint32_t place) {
  static std::map<uint32_t, SourceLine>* known = new std::map<uint32_t, SourceLine>;
  const auto found = known->find(place);
  if (found != known->end()) return found->second;
  std::istringstream lines(addr2line(place - 1));
  SourceLine best;
  for (std::string function, at; std::getline(lines, function) && std::getline(lines, at);) {
    const SourceLine line = parse(at);
    if (best.file.empty() || line.file.ends_with(".cu")) best = line;
    if (line.file.ends_with(".cu")) break;
  }
  return (*known)[place] = best;
}

std::string line_at(uint32_t place) {
  const SourceLine line = source_line_at(place);
  if (line.line == 0) return "?";
  return line.file.substr(line.file.rfind('/') + 1) + ":" + std::to_string(line.line);
}

std::string function_at(const void* function) {
  std::istringstream lines(addr2line(place_of(function)));
  std::string name;
  std::getline(lines, name);
  int depth = 0;
  size_t end = name.size(), begin = 0;
  for (size_t i = 0; i < name.size(); ++i) {  // "void a::(anonymous namespace)::b<c<d> >(e)"
    if (name.compare(i, 21, "(anonymous namespace)") == 0) {
      i += 20;
      continue;
    }
    if (depth == 0 && (name[i] == '<' || name[i] == '(')) {
      end = i;
      break;
    }
    depth += name[i] == '<';
    depth -= name[i] == '>';
    if (name[i] == ' ' || name[i] == ':') begin = i + 1;
  }
  return name.substr(begin, end - begin);
}

}  // namespace ladder_emulator
