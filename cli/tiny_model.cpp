#include "cli/tiny_model.h"

#include <filesystem>

namespace ladder {

std::string tiny_model_folder() {
  const std::filesystem::path tiny = std::filesystem::path("models") / "tinyworld";
  std::error_code none;
  std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", none).parent_path();
  while (!std::filesystem::is_directory(tiny, none) && folder.has_relative_path()) {
    if (std::filesystem::is_directory(folder / tiny, none)) return (folder / tiny).string();
    folder = folder.parent_path();
  }
  return tiny.string();
}

}  // namespace ladder
