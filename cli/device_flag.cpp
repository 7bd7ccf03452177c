#include "cli/device_flag.h"

#include <charconv>
#include <optional>

#include "step1_layers/core/error.h"

namespace ladder {

namespace {

// The N of cuda:N, 0 for cuda alone; none for anything else.
std::optional<int> cuda_index(std::string_view text) {
  if (text == "cuda") return 0;
  if (!text.starts_with("cuda:")) return {};
  text.remove_prefix(5);
  int index = -1;
  const auto [rest, error] = std::from_chars(text.data(), text.data() + text.size(), index);
  if (error != std::errc() || rest != text.data() + text.size() || index < 0) return {};
  return index;
}

}  // namespace

CLI::Validator device_name_check() {
  return CLI::Validator(
      [](std::string& text) -> std::string {
        if (text == "auto" || text == "cpu" || cuda_index(text)) return {};
        return fmt::format("expected auto, cpu, cuda or cuda:N, found \"{}\"", text);
      },
      "");
}

Device find_device(const std::string& text) {
  if (text == "cpu") return {};
  std::string reason;
  const int count = cuda_device_count(&reason);
  if (text == "auto") {
    return count > 0 && usable(cuda_device_info(0)) ? Device{DeviceType::cuda, 0} : Device{};
  }
  LADDER_CHECK(count > 0, "--device {}: no GPU can be used: {}", text, reason);
  const int index = cuda_index(text).value();
  LADDER_CHECK(index < count, "--device {}: this machine has {} GPU{}, the last is cuda:{}", text, count,
               count == 1 ? "" : "s", count - 1);
  check_usable(cuda_device_info(index), "--device " + text);
  return {DeviceType::cuda, index};
}

}  // namespace ladder
