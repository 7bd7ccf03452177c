#include "step8_advanced/quantization/config/quantization_config.h"

#include <algorithm>
#include <cctype>

#include "step1_layers/core/error.h"
#include "step8_advanced/quantization/config/read_config.h"
#include "step8_advanced/quantization/config/write_config.h"

namespace ladder {
namespace {

constexpr std::string_view kPattern = "re:";
constexpr std::string_view kEveryLinear = "Linear";
// Patterns are not trusted: this many, this long, and so many steps for one name.
constexpr size_t kMaxPatterns = 1024;
constexpr size_t kMaxPatternBytes = 1024;
constexpr int64_t kMaxSteps = 10'000;

// Whether `piece` is some whole components of a name: "mlp.gate" of "model.layers.0.mlp.gate", not of "...mlp.gate_proj".
bool has_components(std::string_view name, std::string_view piece) {
  if (piece.empty()) return false;
  for (size_t at = name.find(piece); at != std::string_view::npos; at = name.find(piece, at + 1)) {
    const size_t end = at + piece.size();
    if ((at == 0 || name[at - 1] == '.') && (end == name.size() || name[end] == '.')) return true;
  }
  return false;
}

// Names of modules are ASCII, and so are the words of their patterns: \w and \b, which Regex refuses since in other texts its engine and
// others part over what a word is.
std::string with_ascii_words(std::string_view pattern) {
  constexpr std::string_view kWord = "A-Za-z0-9_";
  const std::string before = fmt::format("(?<=[{}])", kWord), not_before = fmt::format("(?<![{}])", kWord),
                    behind = fmt::format("(?=[{}])", kWord), not_behind = fmt::format("(?![{}])", kWord);
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    const std::string_view two = pattern.substr(i, 2);
    if (two == "\\w" && in_class)
      out += kWord;
    else if (two == "\\w" || (two == "\\W" && !in_class))
      out += fmt::format("[{}{}]", two == "\\W" ? "^" : "", kWord);
    else if (two == "\\b" && !in_class)
      out += fmt::format("(?:{}{}|{}{})", before, not_behind, not_before, behind);
    else if (two == "\\B" && !in_class)
      out += fmt::format("(?:{}{}|{}{})", before, behind, not_before, not_behind);
    else if (c == '\\')
      out += two;
    else
      out += c;
    if (c == '\\')
      ++i;
    else if (c == '[' || c == ']')  // as the first of a class ] is refused
      in_class = c == '[';
  }
  return out;
}

// The longest run of characters that is in all that matches; of patterns with more than dots, stars, pluses and the names' own
// characters: none.
std::string always_there(std::string_view pattern) {
  std::string longest, run;
  const auto end_run = [&] {
    if (run.size() > longest.size()) longest = run;
    run.clear();
  };
  for (size_t i = 0; i < pattern.size(); ++i) {
    char c = pattern[i];
    const bool escaped = c == '\\' && i + 1 < pattern.size() && pattern[i + 1] == '.';
    if (escaped) c = pattern[++i];
    if (escaped || c == '_' || c == '-' || std::isalnum(static_cast<unsigned char>(c)) != 0) {
      run += c;
    } else if (c == '*') {  // what stands before it may be missing
      if (!run.empty()) run.pop_back();
      end_run();
    } else if (c == '.' || c == '+' || c == '^' || c == '$') {
      end_run();
    } else {
      return "";
    }
  }
  end_run();
  return longest;
}

// The keys of a member, if it is an object, as they stand in the file.
std::vector<std::string> keys_in_order(std::string_view json, std::string_view what, const char* member) {
  const OrderedJson root = parse_ordered_json(json, what);
  std::vector<std::string> keys;
  if (const auto found = root.find(member); found != root.end() && found->is_object())
    for (const auto& [key, _] : found->items()) keys.push_back(key);
  return keys;
}

}  // namespace

void refuse_unknown_keys(const ConfigObject& config, std::initializer_list<std::string_view> known,
                         std::span<const std::string_view> known_too) {
  const auto has = [](const auto& list, const std::string& key) {
    return std::find(list.begin(), list.end(), key) != list.end();
  };
  for (const auto& [key, value] : config.json().items())
    LADDER_CHECK(value.is_null() || has(known, key) || has(known_too, key), "{}: not known",
                 config.name(json_brief(Json(key))));
}

void refuse_unless_empty(const ConfigObject& config, const std::string& key, std::string_view why) {
  const Json* value = config.find(key);
  const bool empty = value == nullptr || *value == false || (value->is_structured() && value->empty());
  LADDER_CHECK(empty, "{}: {}, found {}", config.name(key), why, json_brief(*value));
}

std::vector<std::string> string_list(const ConfigObject& config, const std::string& key) {
  std::vector<std::string> list;
  const Json* value = config.find(key);
  if (value == nullptr) return list;
  LADDER_CHECK(value->is_array(), "{}: expected a list of strings, found {}", config.name(key),
               json_brief(*value));
  for (const Json& entry : *value) list.push_back(json_string(entry, config.name(key)));
  return list;
}

std::string lower_string(const ConfigObject& config, const std::string& key, std::string_view default_value) {
  std::string text = config.string(key).value_or(std::string(default_value));
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + 32);
  return text;
}

QuantizationConfig::QuantizationConfig(std::string what, std::vector<QuantizationGroup> groups,
                                       std::vector<std::string> ignored, IgnoreRule ignore_rule,
                                       std::optional<StoredKvCache> kv_cache, TwoOfFourTargets two_of_four,
                                       std::vector<std::string> quantized_ends, bool first_counts)
    : what_(std::move(what)),
      groups_(std::move(groups)),
      ignored_(std::move(ignored)),
      ignore_rule_(ignore_rule),
      kv_cache_(kv_cache),
      two_of_four_(std::move(two_of_four)),
      quantized_ends_(std::move(quantized_ends)),
      first_counts_(first_counts) {
  const auto compile = [this](const std::string& target, std::string_view list) {
    const std::string name = fmt::format("{}: {} {}", what_, list, json_brief(Json(target)));
    if (!target.starts_with(kPattern) || patterns_.contains(target)) return;
    LADDER_CHECK(target.size() <= kMaxPatternBytes, "{}: a pattern of {} bytes, at most {}", name,
                 target.size(), kMaxPatternBytes);
    LADDER_CHECK(patterns_.size() < kMaxPatterns, "{}: more than {} patterns", name, kMaxPatterns);
    const std::string_view pattern = std::string_view(target).substr(kPattern.size());
    patterns_[target] = {std::make_shared<const Regex>(with_ascii_words(pattern), name),
                         always_there(pattern)};
  };
  const auto check_target = [&](const std::string& target) {
    // The class of a module, as in "LlamaAttention". Names of modules begin with a small letter.
    const bool is_class = !target.empty() && target[0] >= 'A' && target[0] <= 'Z' && target != kEveryLinear;
    LADDER_CHECK(!target.empty() && !is_class,
                 "{}: target {}: expected a module's name, a pattern (re:...) or Linear", what_,
                 json_brief(Json(target)));
    compile(target, "target");
  };
  for (const QuantizationGroup& group : groups_)
    for (const std::string& target : group.targets) check_target(target);
  for (const std::string& target : two_of_four_.targets) check_target(target);
  for (const std::string& entry : two_of_four_.ignored) compile(entry, "ignore");
  if (ignore_rule_ == IgnoreRule::target)
    for (const std::string& entry : ignored_) compile(entry, "ignore");
}

QuantizationConfig QuantizationConfig::parse(std::string_view json, std::string_view what) {
  const Json root = parse_json(json, what);
  const ConfigObject config(root, std::string(what));
  const std::string method = config.string("quant_method").value_or("");
  ReadGroups read;
  if (method == "compressed-tensors")
    read = read_compressed_tensors(config);
  else if (method == "gptq")
    read = read_gptq(config, keys_in_order(json, what, "dynamic"));
  else if (method == "awq")
    read = read_awq(config);
  else if (method == "auto-round")
    read = read_auto_round(config, std::string(what), keys_in_order(json, what, "extra_config"));
  else if (method == "fp8")
    read = read_fp8(config);
  else if (method == "modelopt")
    read = read_modelopt(config, std::string(what));
  else
    fail("{}: expected compressed-tensors, gptq, awq, auto-round, fp8 or modelopt, found {}",
         config.name("quant_method"), json_brief(Json(method)));
  return QuantizationConfig(std::string(what), std::move(read.groups), std::move(read.ignored),
                            read.ignore_rule, read.kv_cache, std::move(read.two_of_four),
                            std::move(read.quantized_ends), read.first_counts);
}

std::optional<StoredLinear> QuantizationConfig::stored_part(const std::string& name) const {
  const auto names = [&](const std::vector<std::string>& list) {
    return std::any_of(list.begin(), list.end(),
                       [&](const std::string& entry) { return match(entry, name) != Match::none; });
  };
  const bool may_be =
      quantized_ends_.empty() || name == "lm_head" ||
      std::ranges::any_of(quantized_ends_, [&](const std::string& end) { return name.ends_with(end); });
  std::optional<StoredLinear> linear = may_be ? part(name) : std::nullopt;
  if (linear && linear->format == StoredFormat::dense) linear.reset();
  if (!names(two_of_four_.targets) || names(two_of_four_.ignored)) return linear;
  if (!linear) linear = StoredLinear{.format = StoredFormat::dense};
  LADDER_CHECK(linear->format == StoredFormat::dense || linear->format == StoredFormat::plain,
               "{}: {}: sparse-24-bitmask of {}: expected weights of a byte each or dense ones", what_, name,
               format_name(*linear));
  linear->two_of_four = true;
  return linear;
}

// >>> task 8.2.config: which target names a linear best, and whether a merged one's parts agree
QuantizationConfig::Match QuantizationConfig::match(const std::string& target,
                                                    const std::string& name) const {
  if (target == name) return Match::name;
  if (target == kEveryLinear) return Match::all;
  if (!target.starts_with(kPattern)) return Match::none;
  const Pattern& pattern = patterns_.at(target);
  if (name.find(pattern.part) == std::string::npos) return Match::none;
  return pattern.regex->matches_beginning(name, kMaxSteps) ? Match::pattern : Match::none;
}

bool QuantizationConfig::is_ignored(const std::string& name) const {
  return std::any_of(ignored_.begin(), ignored_.end(), [&](const std::string& entry) {
    switch (ignore_rule_) {
      case IgnoreRule::target:
        return match(entry, name) != Match::none;
      case IgnoreRule::module:
        return has_components(name, entry);
      case IgnoreRule::substring:
        return !entry.empty() && name.find(entry) != std::string::npos;
    }
    return false;
  });
}

std::optional<StoredLinear> QuantizationConfig::part(const std::string& name) const {
  if (is_ignored(name)) return std::nullopt;
  Match best = Match::none;
  std::vector<std::pair<const std::string*, const StoredLinear*>> found;  // all as specific as the best
  for (const QuantizationGroup& group : groups_)
    for (const std::string& target : group.targets) {
      const Match how = match(target, name);
      if (how == Match::none || how < best || (how == best && first_counts_)) continue;
      if (how > best) found.clear();
      best = how;
      found.emplace_back(&target, &group.linear);
    }
  if (found.empty()) return std::nullopt;
  for (const auto& [target, linear] : found)
    LADDER_CHECK(*linear == *found[0].second, "{}: targets {} and {} both name {} and say different things",
                 what_, json_brief(Json(*found[0].first)), json_brief(Json(*target)), name);
  return *found[0].second;
}

std::optional<StoredLinear> QuantizationConfig::linear(std::span<const std::string> part_names) const {
  if (part_names.empty()) return std::nullopt;
  const std::optional<StoredLinear> first = stored_part(part_names[0]);
  for (const std::string& name : part_names.subspan(1)) {
    const std::optional<StoredLinear> other = stored_part(name);
    if (!(other == first))
      fail("{}: {} and {} are parts of one linear, but one is {} and the other {}", what_, part_names[0],
           name, describe(first), describe(other));
  }
  return first;
}
// <<< task 8.2.config

}  // namespace ladder
