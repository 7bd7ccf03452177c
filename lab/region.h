#pragma once
// Where the regions of a file stand: between `// >>> task ID: one line` and `// <<< task ID`.
#include <map>
#include <string>
#include <string_view>

namespace lab {

struct Region {
  std::string text;           // the lines between the markers, each with its line end
  size_t begin = 0, end = 0;  // offsets of that text
  int first_line = 0, last_line = 0;
  int num_lines() const;  // that are not blank
};

// By task id. Error (LabError), with the line: a marker without its other half, a region inside another or twice, or
// a merge conflict anywhere in the file.
std::map<std::string, Region> find_regions(std::string_view file);

// What a region of a copy holds instead. `source` is what the compiler's messages call it; empty: it has the same
// lines as what stands in the file.
struct NewText {
  std::string text, source;
};

// The file with other texts in some of its regions, by task.
std::string with_regions(const std::string& file, const std::map<std::string, NewText>& texts);

// The same as a copy of `path`: #line directives make the compiler's messages name the file that the student edits.
std::string copy_with_regions(const std::string& file, const std::map<std::string, NewText>& texts,
                              const std::string& path);

}  // namespace lab
