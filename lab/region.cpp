#include "lab/region.h"

#include <algorithm>
#include <vector>

#include "lab/lab_error.h"

namespace lab {
namespace {

constexpr std::string_view kOpen = "// >>> task ", kClose = "// <<< task ";

bool only_blanks(std::string_view text) {
  return text.find_first_not_of(" \t\r\n") == std::string_view::npos;
}

[[noreturn]] void wrong(int line, const std::string& what) {
  throw LabError("line " + std::to_string(line) + ": " + what);
}

}  // namespace

int Region::num_lines() const {
  int count = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    count += !only_blanks(std::string_view(text).substr(at, end - at));
    at = end + 1;
  }
  return count;
}

std::map<std::string, Region> find_regions(std::string_view file) {
  std::map<std::string, Region> regions;
  std::string open;
  Region region;
  int number = 0;
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    std::string_view line = file.substr(at, end - at);
    const size_t after = std::min(end + 1, file.size());
    ++number;
    if (line.starts_with("<<<<<<< ") || line.starts_with(">>>>>>> "))
      wrong(number, "a merge conflict that is not resolved");
    line = line.substr(std::min(line.find_first_not_of(" \t"), line.size()));
    if (line.starts_with(kOpen)) {
      line.remove_prefix(kOpen.size());
      const std::string id(line.substr(0, line.find_first_of(": \r")));
      if (!open.empty()) wrong(number, "the region of task " + id + " begins inside that of task " + open);
      if (regions.contains(id)) wrong(number, "the region of task " + id + " begins a second time");
      open = id;
      region = {};
      region.begin = after;
      region.first_line = number + 1;
    } else if (line.starts_with(kClose)) {
      line.remove_prefix(kClose.size());
      const std::string id(line.substr(0, line.find_first_of(": \r")));
      if (open != id)
        wrong(number, "the region of task " + id + " ends here, but its beginning `" + std::string(kOpen) +
                          id + ": ...` is missing");
      region.end = at;
      region.last_line = number - 1;
      region.text = file.substr(region.begin, at - region.begin);
      regions[id] = std::move(region);
      open.clear();
    }
    at = after;
  }
  if (!open.empty())
    wrong(region.first_line - 1,
          "the region of task " + open + " has no end: `" + std::string(kClose) + open + "` is missing");
  return regions;
}

std::string with_regions(const std::string& file, const std::map<std::string, NewText>& texts) {
  return copy_with_regions(file, texts, "");
}

std::string copy_with_regions(const std::string& file, const std::map<std::string, NewText>& texts,
                              const std::string& path) {
  const std::map<std::string, Region> regions = find_regions(file);
  std::vector<const std::pair<const std::string, Region>*> in_order;
  for (const auto& region : regions)
    if (texts.contains(region.first)) in_order.push_back(&region);
  std::ranges::sort(in_order, {}, [](const auto* region) { return region->second.begin; });
  std::string out;
  const auto directive = [&](int line, const std::string& name) {
    if (!path.empty() && !name.empty()) out += "#line " + std::to_string(line) + " \"" + name + "\"\n";
  };
  directive(1, path);
  size_t at = 0;
  for (const auto* place : in_order) {
    const auto& [id, region] = *place;
    const NewText& with = texts.at(id);
    out += file.substr(at, region.begin - at);
    directive(1, with.source);
    out += with.text;
    if (!with.source.empty()) directive(region.last_line + 1, path);
    at = region.end;
  }
  return out + file.substr(at);
}

}  // namespace lab
