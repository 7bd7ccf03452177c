#include "lab/release_info.h"

#include <nlohmann/json.hpp>

#include "lab/files.h"
#include "lab/lab_error.h"

namespace lab {

using Json = nlohmann::ordered_json;

std::optional<ReleaseInfo> read_release_info(const std::filesystem::path& root) {
  const std::filesystem::path path = root / "lab" / "release.json";
  if (!std::filesystem::exists(path)) return std::nullopt;
  ReleaseInfo info;
  try {
    const Json all = Json::parse(read_file(path));
    if (all.at("format") != 1)
      throw LabError("lab/release.json: a release of a format that this program does not know");
    all.at("course").get_to(info.course);
    all.at("release").get_to(info.release);
    all.at("source").get_to(info.source);
    all.at("cut").get_to(info.cut);
    all.at("sealed").get_to(info.sealed);
    all.at("salt").get_to(info.salt);
    all.at("variants").get_to(info.variants);
  } catch (const nlohmann::json::exception& error) {
    throw LabError(std::string("lab/release.json is damaged: ") + error.what());
  }
  return info;
}

std::string write_release_info(const ReleaseInfo& info) {
  const Json all = {{"format", 1},           {"course", info.course},    {"release", info.release},
                    {"source", info.source}, {"cut", info.cut},          {"sealed", info.sealed},
                    {"salt", info.salt},     {"variants", info.variants}};
  return all.dump(1) + "\n";
}

}  // namespace lab
