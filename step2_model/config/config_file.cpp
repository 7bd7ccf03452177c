#include "step2_model/config/config_file.h"

#include "step1_layers/core/error.h"

namespace ladder {

ConfigObject::ConfigObject(const Json& object, std::string what) : object_(object), what_(std::move(what)) {
  LADDER_CHECK(object.is_object(), "{}: expected a JSON object, found {}", what_, json_brief(object));
}

const Json* ConfigObject::find(const std::string& key) const {
  return json_find(object_, key, what_);
}

std::string ConfigObject::name(std::string_view key) const {
  return fmt::format("{}: {}", what_, key);
}

int64_t ConfigObject::integer(const std::string& key, int64_t min, int64_t max) const {
  return json_int(json_at(object_, key, what_), name(key), min, max);
}

int64_t ConfigObject::integer(const std::string& key, int64_t min, int64_t max, int64_t default_value) const {
  const Json* value = find(key);
  return value == nullptr ? default_value : json_int(*value, name(key), min, max);
}

std::optional<double> ConfigObject::number(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return json_number(*value, name(key));
}

double ConfigObject::number(const std::string& key, double default_value) const {
  return number(key).value_or(default_value);
}

bool ConfigObject::boolean(const std::string& key, bool default_value) const {
  const Json* value = find(key);
  return value == nullptr ? default_value : json_bool(*value, name(key));
}

std::optional<std::string> ConfigObject::string(const std::string& key) const {
  const Json* value = find(key);
  if (value == nullptr) return std::nullopt;
  return json_string(*value, name(key));
}

}  // namespace ladder
