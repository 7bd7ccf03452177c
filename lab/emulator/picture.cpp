#include "lab/emulator/picture.h"

#include <algorithm>
#include <bit>
#include <map>

#include "lab/emulator/source_lines.h"

namespace ladder_emulator {

namespace {

constexpr uintptr_t kRow = 128, kWord = 4, kSector = 32;

std::string counted(int64_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : what[0] == 'p' ? "es" : "s");
}

// Twelve hues that neighbouring lanes do not share.
std::string color_of(char word) {
  if (word == '.') return "#dddddd";
  const int lane = word <= '9' ? word - '0' : word - 'a' + 10;
  return "hsl(" + std::to_string(lane * 67 % 360) + ",65%," + std::to_string(55 + lane / 8 * 5) + "%)";
}

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text)
    safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  return safe;
}

}  // namespace

Drawing draw(const Instruction& instruction) {
  const Request& request = instruction.shown;
  const bool global = instruction.space == Space::global;
  Drawing drawing;
  drawing.title = line_at(instruction.place) + "  " + (instruction.store ? "store" : "load") + " of " +
                  counted(request.bytes, "byte") + " by " + counted(std::popcount(request.lanes), "lane") +
                  (instruction.store ? " to " : " from ") + (global ? "global memory: " : "shared memory: ");
  if (global) {
    const int sectors = sectors_of(request), fewest = fewest_sectors_of(request);
    drawing.title +=
        counted(sectors, "sector") + (sectors > fewest ? ", " + std::to_string(fewest) + " would do" : "");
  } else {
    const Passes passes = passes_of(request);
    drawing.title +=
        counted(passes.taken, "pass") +
        (passes.taken > passes.fewest ? ", " + std::to_string(passes.fewest) + " without bank conflicts"
                                      : "");
  }
  std::map<uintptr_t, Drawing::Row> rows;  // by address / 128
  uintptr_t first = ~uintptr_t{0};
  for (int lane = 0; lane < 32; ++lane)
    if ((request.lanes >> lane & 1) != 0) first = std::min(first, request.address[lane] / kRow);
  for (int lane = 0; lane < 32; ++lane) {
    if ((request.lanes >> lane & 1) == 0) continue;
    const uintptr_t begin = request.address[lane], end = begin + request.bytes;
    for (uintptr_t word = begin / kWord; word <= (end - 1) / kWord; ++word) {
      const uintptr_t row = word * kWord / kRow;
      auto [place, is_new] = rows.try_emplace(row);
      if (is_new) {
        place->second.offset = static_cast<int64_t>((row - first) * kRow);
        std::fill_n(place->second.words, 32, ' ');
      }
      char* words = place->second.words;
      const auto at = static_cast<int>(word * kWord % kRow / kWord), sector = at / 8 * 8;
      for (int i = sector; global && i < sector + 8; ++i)
        if (words[i] == ' ') words[i] = '.';
      if (words[at] == ' ' || words[at] == '.')
        words[at] = static_cast<char>(lane < 10 ? '0' + lane : 'a' + lane - 10);
    }
  }
  for (const auto& [number, row] : rows) drawing.rows.push_back(row);
  return drawing;
}

std::string as_text(const Drawing& drawing, int max_rows) {
  std::string text = "  " + drawing.title + "\n";
  for (size_t i = 0; i < drawing.rows.size(); ++i) {
    if (static_cast<int>(i) == max_rows)
      return text + "    and " + counted(static_cast<int64_t>(drawing.rows.size() - i), "row") + " more\n";
    std::string offset = "+" + std::to_string(drawing.rows[i].offset);
    offset.resize(std::max<size_t>(8, offset.size()), ' ');
    text += "    " + offset;
    for (int word = 0; word < 32; word += 8) text += " " + std::string(drawing.rows[i].words + word, 8);
    while (text.back() == ' ') text.pop_back();
    text += "\n";
  }
  return text;
}

std::string as_svg(const std::vector<Drawing>& drawings) {
  constexpr int kCell = 16, kLeft = 80, kGap = 6, kMaxRows = 40;
  std::string body;
  int y = 10;
  const auto label = [&](int x, int at, const std::string& text) {
    body += "<text x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(at) + "\">" + escaped(text) +
            "</text>\n";
  };
  for (const Drawing& drawing : drawings) {
    label(10, y += 18, drawing.title);
    y += 8;
    const size_t shown = std::min<size_t>(drawing.rows.size(), kMaxRows);
    for (size_t i = 0; i < shown; ++i, y += kCell + 2) {
      label(10, y + 12, "+" + std::to_string(drawing.rows[i].offset));
      for (int word = 0; word < 32; ++word) {
        const char sign = drawing.rows[i].words[word];
        if (sign == ' ') continue;
        const int x = kLeft + word * kCell + word / 8 * kGap;
        body += "<rect x=\"" + std::to_string(x) + "\" y=\"" + std::to_string(y) + "\" width=\"" +
                std::to_string(kCell - 1) + "\" height=\"" + std::to_string(kCell - 1) + "\" fill=\"" +
                color_of(sign) + "\"/>\n";
        if (sign != '.') label(x + 4, y + 12, std::string(1, sign));
      }
    }
    if (shown < drawing.rows.size())
      label(10, y += 14,
            "and " + counted(static_cast<int64_t>(drawing.rows.size() - shown), "row") + " more");
    y += 10;
  }
  return "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"720\" height=\"" + std::to_string(y + 10) +
         "\" font-family=\"monospace\" font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n" +
         body + "</svg>\n";
}

}  // namespace ladder_emulator
