#pragma once
// SHA-256 of what two processes compare: fields, files, and samples of files that are too large to be read for that.
#include <array>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string_view>

struct evp_md_ctx_st;  // OpenSSL's

namespace ladder {

using Sha256Digest = std::array<uint8_t, 32>;

class Sha256 {
 public:
  Sha256();
  void add(const void* bytes, size_t size);
  void add(std::string_view field);  // with its length before it: fields do not run into each other
  void add_number(int64_t number);
  Sha256Digest finish();

 private:
  std::unique_ptr<evp_md_ctx_st, void (*)(evp_md_ctx_st*)> context_;
};

// Error: the file cannot be read.
void add_file(Sha256& hash, const std::filesystem::path& path);
void add_file_begin(Sha256& hash, const std::filesystem::path& path, int64_t size);  // all of a shorter one
// The size and the first MiB of each 16th: all of a file of up to 16 MiB.
void add_file_samples(Sha256& hash, const std::filesystem::path& path);

}  // namespace ladder
