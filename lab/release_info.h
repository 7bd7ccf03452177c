#pragma once
// lab/release.json: what a released repository says of itself, and nothing secret.
//
//   {"format": 1, "course": "Engines 101", "release": "4f0c...", "source": "the commit it was made from",
//    "cut": ["memory", ...], "sealed": {"memory": "the id of its key", ...}, "salt": "an id of the salt",
//    "variants": {"free-order": "standard", ...}}
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace lab {

struct ReleaseInfo {
  std::string course, release, source;
  std::vector<std::string> cut;  // labs whose tasks are stubs, without their reference
  std::map<std::string, std::string>
      sealed;  // lab -> id of the key of lab/sealed/LAB.bin; empty: none is there
  std::string salt;
  std::map<std::string, std::string> variants;  // which choice the course's text has
};

// Of the checkout at `root`; none: it is no release. Error: the file is damaged.
std::optional<ReleaseInfo> read_release_info(const std::filesystem::path& root);
std::string write_release_info(const ReleaseInfo& info);

}  // namespace lab
