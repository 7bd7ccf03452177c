#pragma once
// The files of window/page/, as CMake has put them into the binary (cmake/embed_text.cmake).
#include <span>
#include <string_view>

namespace ladder {

struct WindowFile {
  std::string_view name;  // "main.js"
  std::string_view text;
};

std::span<const WindowFile> window_files();

}  // namespace ladder
