#pragma once
// What the value of a flag may be.
#include <CLI/CLI.hpp>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "step3_sequence/batch_config.h"

namespace ladder {

// What a flag's number must be: in [low, high]; an integer; an integer in the range; in (0, high]. NaN is
// none of these.
CLI::Validator in_range(double low, double high);
CLI::Validator whole_number();
CLI::Validator whole_in_range(int64_t low, int64_t high);
CLI::Validator whole_in_range(FlagRange range);
CLI::Validator above_zero(double high = std::numeric_limits<double>::max());

// "512MiB", "2GiB", "1.5G", "4096". Error naming the flag.
int64_t parse_bytes(std::string_view text, std::string_view flag);

// "1,2,3". Error naming the flag.
std::vector<int32_t> parse_token_ids(std::string_view text, std::string_view flag);

// What of these options was given, as words to give to this program again. What came from an environment variable is in
// the other process' environment too, and not for everybody to see in a command line.
std::vector<std::string> arguments_of(const std::vector<const CLI::Option*>& options);

}  // namespace ladder
