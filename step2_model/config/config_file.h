#pragma once
// Task 2.1: checked access to the fields of a config.json. Every error names the file and the field and says
// what was found and what was expected.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "step2_model/json.h"

namespace ladder {

// A JSON object of a config file: the whole file, or one object inside it. A field that is null counts as
// absent, as in transformers.
class ConfigObject {
 public:
  ConfigObject(const Json& object, std::string what);  // Error: not an object

  const Json& json() const { return object_; }
  bool has(const std::string& key) const { return find(key) != nullptr; }
  const Json* find(const std::string& key) const;
  std::string name(std::string_view key) const;  // "DIR/config.json: key", as messages begin

  // Where there is no default, an absent field is an Error.
  int64_t integer(const std::string& key, int64_t min, int64_t max) const;
  int64_t integer(const std::string& key, int64_t min, int64_t max, int64_t default_value) const;
  std::optional<double> number(const std::string& key) const;
  double number(const std::string& key, double default_value) const;
  bool boolean(const std::string& key, bool default_value) const;
  std::optional<std::string> string(const std::string& key) const;

 private:
  const Json& object_;
  std::string what_;
};

}  // namespace ladder
