#include <algorithm>
#include <cmath>

#include "step1_layers/core/error.h"
#include "step2_model/config/config.h"

namespace ladder {
namespace {

constexpr int64_t kMaxPositions = int64_t{1} << 31;
constexpr double kDefaultTheta = 10000.0;

// Every key that one of the kinds reads. A kind ignores the keys of the others, as transformers does; a key
// of none of them is a kind of rotation that we do not know.
constexpr std::string_view kKnownKeys[] = {"rope_theta",
                                           "rope_type",
                                           "type",
                                           "factor",
                                           "original_max_position_embeddings",
                                           "partial_rotary_factor",
                                           "beta_fast",
                                           "beta_slow",
                                           "attention_factor",
                                           "mscale",
                                           "mscale_all_dim",
                                           "truncate",
                                           "low_freq_factor",
                                           "high_freq_factor",
                                           "finetuned",
                                           "short_factor",
                                           "long_factor",
                                           "short_mscale",
                                           "long_mscale"};

double positive(const ConfigObject& rope, const std::string& key, double default_value) {
  const double value = rope.number(key, default_value);
  LADDER_CHECK(value > 0 && value <= 1e12, "{}: expected a number above 0, found {}", rope.name(key), value);
  return value;
}

double required_factor(const ConfigObject& rope) {
  LADDER_CHECK(rope.has("factor"), "{} is missing", rope.name("factor"));
  const double factor = positive(rope, "factor", 1.0);
  LADDER_CHECK(factor >= 1.0, "{}: expected a number of at least 1, found {}", rope.name("factor"), factor);
  return factor;
}

// A divisor for each frequency.
std::vector<double> frequency_factors(const ConfigObject& rope, const std::string& key, int64_t count) {
  const Json* list = rope.find(key);
  LADDER_CHECK(list != nullptr, "{} is missing", rope.name(key));
  LADDER_CHECK(list->is_array() && std::ssize(*list) == count,
               "{}: expected a list of {} numbers (half of head_dim), found {}", rope.name(key), count,
               list->is_array() ? fmt::format("{} of them", list->size()) : json_brief(*list));
  std::vector<double> factors;
  for (const Json& value : *list) {
    LADDER_CHECK(value.is_number() && value.get<double>() > 0 && value.get<double>() <= 1e12,
                 "{}: expected numbers above 0, found {}", rope.name(key), json_brief(value));
    factors.push_back(value.get<double>());
  }
  return factors;
}

std::optional<double> optional_positive(const ConfigObject& rope, const std::string& key) {
  if (!rope.has(key)) return std::nullopt;
  return positive(rope, key, 1.0);
}

RopeKind kind_from_name(const std::string& name, const ConfigObject& rope) {
  if (name == "default") return RopeKind::standard;
  if (name == "linear") return RopeKind::linear;
  if (name == "dynamic") return RopeKind::dynamic_ntk;
  if (name == "yarn") return RopeKind::yarn;
  if (name == "llama3") return RopeKind::llama3;
  if (name == "longrope") return RopeKind::longrope;
  fail("{}: expected default, linear, dynamic, yarn, llama3 or longrope, found {}", rope.name("rope_type"),
       json_brief(Json(name)));
}

}  // namespace

// >>> task 2.1.rope: read the rotary embedding from the older and the newer keys
RopeConfig parse_rope_config(const ConfigObject& config, int64_t head_dim, int64_t max_position_embeddings) {
  const Json* scaling = config.find("rope_scaling");
  const char* key = scaling != nullptr && !scaling->empty() ? "rope_scaling" : "rope_parameters";
  static const Json nothing = Json::object();
  const Json* object = config.find(key);
  const ConfigObject rope(object == nullptr ? nothing : *object, config.name(key));
  for (const auto& [name, value] : rope.json().items())
    LADDER_CHECK(std::find(std::begin(kKnownKeys), std::end(kKnownKeys), name) != std::end(kKnownKeys),
                 "{}: this field is not supported", rope.name(json_brief(Json(name))));

  RopeConfig result;
  result.theta = positive(rope, "rope_theta", positive(config, "rope_theta", kDefaultTheta));
  LADDER_CHECK(result.theta > 1.0, "{}: expected a number above 1, found {}", config.name("rope_theta"),
               result.theta);
  result.rotary_dim = head_dim;
  // None of the three families rotates a part of a head; transformers would ignore the key.
  const double partial = rope.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0));
  LADDER_CHECK(partial == 1.0, "{}: {} is not supported, expected 1", config.name("partial_rotary_factor"),
               partial);

  const auto type = rope.string("rope_type");
  result.kind = kind_from_name(type ? *type : rope.string("type").value_or("default"), rope);
  // Beside rope_scaling it counts more than inside: that is how configs that carry both were published.
  const int64_t original = config.integer(
      "original_max_position_embeddings", 1, kMaxPositions,
      rope.integer("original_max_position_embeddings", 1, kMaxPositions, max_position_embeddings));
  const auto factor_or_ratio = [&] {
    return rope.has("factor")
               ? required_factor(rope)
               : std::max(1.0, static_cast<double>(max_position_embeddings) / static_cast<double>(original));
  };
  switch (result.kind) {
    case RopeKind::standard:
      break;
    case RopeKind::linear:
      result.factor = required_factor(rope);
      break;
    case RopeKind::dynamic_ntk:
      result.factor = required_factor(rope);
      result.original_max_position_embeddings = max_position_embeddings;
      LADDER_CHECK(head_dim > 2, "{}: dynamic needs a head_dim above 2, found {}", rope.name("rope_type"),
                   head_dim);
      break;
    case RopeKind::yarn:
      result.original_max_position_embeddings = original;
      result.factor = factor_or_ratio();
      // transformers writes `x or 32`: a zero is an absent value
      result.beta_fast = rope.number("beta_fast", 0) == 0 ? 32.0 : positive(rope, "beta_fast", 32.0);
      result.beta_slow = rope.number("beta_slow", 0) == 0 ? 1.0 : positive(rope, "beta_slow", 1.0);
      LADDER_CHECK(result.beta_fast >= result.beta_slow, "{}: expected at least beta_slow ({}), found {}",
                   rope.name("beta_fast"), result.beta_slow, result.beta_fast);
      result.attention_factor = optional_positive(rope, "attention_factor");
      result.mscale = rope.number("mscale");
      result.mscale_all_dim = rope.number("mscale_all_dim");
      LADDER_CHECK(result.mscale.value_or(0) >= 0 && result.mscale_all_dim.value_or(0) >= 0,
                   "{}: expected a number of at least 0", rope.name("mscale, mscale_all_dim"));
      result.truncate = rope.boolean("truncate", true);
      break;
    case RopeKind::llama3:
      result.original_max_position_embeddings = original;
      result.factor = required_factor(rope);
      LADDER_CHECK(rope.has("low_freq_factor"), "{} is missing", rope.name("low_freq_factor"));
      LADDER_CHECK(rope.has("high_freq_factor"), "{} is missing", rope.name("high_freq_factor"));
      result.low_freq_factor = positive(rope, "low_freq_factor", 1.0);
      result.high_freq_factor = positive(rope, "high_freq_factor", 4.0);
      LADDER_CHECK(result.high_freq_factor > result.low_freq_factor,
                   "{}: expected more than low_freq_factor ({}), found {}", rope.name("high_freq_factor"),
                   result.low_freq_factor, result.high_freq_factor);
      break;
    case RopeKind::longrope:
      LADDER_CHECK(original > 1, "{}: expected more than 1, found {}",
                   rope.name("original_max_position_embeddings"), original);
      result.original_max_position_embeddings = original;
      result.factor = factor_or_ratio();
      result.short_factor = frequency_factors(rope, "short_factor", head_dim / 2);
      result.long_factor = frequency_factors(rope, "long_factor", head_dim / 2);
      result.short_mscale = optional_positive(rope, "short_mscale");
      result.long_mscale = optional_positive(rope, "long_mscale");
      result.attention_factor = optional_positive(rope, "attention_factor");
      break;
  }
  return result;
}
// <<< task 2.1.rope

}  // namespace ladder
