#include "cli/request_lines.h"

#include <iostream>
#include <iterator>

#include "step1_layers/core/error.h"
#include "step2_model/json.h"
#include "step6_engine/request_json.h"

namespace ladder {

std::vector<RequestLine> read_request_lines(const std::string& file, const SamplingParams& defaults) {
  const std::string name = file == "-" ? "standard input" : file;
  const std::string text =
      file == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : read_text_file(file);
  std::vector<RequestLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = std::string_view(text).substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    std::string where = fmt::format("{}, line {}", name, number);
    Request request = parse_request_json(line, where, defaults);
    lines.push_back({std::move(where), std::move(request)});
  }
  LADDER_CHECK(!lines.empty(), "{}: no request in it; expected one JSON object per line", name);
  return lines;
}

}  // namespace ladder
